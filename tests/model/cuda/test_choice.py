"""Which path computes on a GPU, what is refused, and that the script of a GPU's checks runs."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import orjson
import pytest
import torch
from typer.testing import CliRunner

from loadtest.__main__ import app
from shared.errors import ConfigurationError
from tests.model.conftest import Load
from tests.model.cuda.parts import checkpoint_of, runner_of
from tests.model.tiny_model import write_model
from worker.model.cpu.choice import KernelConfig, Placement
from worker.model.cuda import assembly
from worker.model.cuda.choice import CudaOptions, Mode, try_load_cuda


def load_on(device: str, mode: Mode = "auto", dtype: str = "bfloat16") -> Any:
    place = Placement(device=device, dtype=dtype, threads=0, kv_cache_bytes=1 << 20, context_length=100)
    return try_load_cuda(CudaOptions(mode=mode), checkpoint_of("llama"), place, lambda _: None)


@pytest.fixture
def cuda_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if PyTorch were one for GPUs, with Triton, and the GPU a new one."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(assembly.importlib.util, "find_spec", lambda _: object())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))


def test_a_cpu_is_not_its_business() -> None:
    assert load_on("cpu", "triton") is None


@pytest.mark.skipif(torch.version.cuda is not None, reason="this PyTorch is one for GPUs")
def test_what_the_kernels_cannot_run_goes_to_pytorch_and_a_warning_says_why(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert load_on("cuda:0") is None
    [record] = caplog.records
    assert (record.levelname, record.msg) == ("WARNING", "compute_path")
    assert record.__dict__["why"] == "this PyTorch is not one for NVIDIA GPUs"
    with pytest.raises(ConfigurationError, match="asked for and cannot be used: this PyTorch"):
        load_on("cuda:0", "triton")


@pytest.mark.usefixtures("cuda_build")
def test_reasons_against_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    config = checkpoint_of("llama").config
    place = Placement(device="cuda:0", dtype="bfloat16", threads=0, kv_cache_bytes=0, context_length=9)
    assert assembly.obstacle(config, place) is None
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    assert assembly.obstacle(config, place) == "compute capability 7.5 is below 8.0"
    monkeypatch.setattr(assembly.importlib.util, "find_spec", lambda _: None)
    assert assembly.obstacle(config, place) == "Triton is not installed"


@pytest.mark.usefixtures("cuda_build")
def test_the_kernels_are_taken_where_they_can_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runner = runner_of()
    monkeypatch.setattr(assembly, "build_cuda_runner", lambda *_: runner)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a GPU")
    with caplog.at_level(logging.INFO):
        assert load_on("cuda:0") is runner
        assert load_on("cuda:0", "torch") is None
    assert [record.__dict__["why"] for record in caplog.records] == [
        "a GPU, bfloat16, products by cuBLAS, 6 decode graphs up to 32 sequences",
        "asked for",
    ]


def test_deterministic_is_refused_where_pytorch_would_compute(load: Load, tmp_path: Path) -> None:
    folder, options = write_model(tmp_path), CudaOptions(deterministic=True)
    with pytest.raises(ConfigurationError, match="deterministic is asked for, and PyTorch would compute"):
        load(folder, kernels=KernelConfig(mode="torch"), cuda=options)


def test_the_script_of_a_gpus_checks_runs_without_one(tmp_path: Path) -> None:
    output = tmp_path / "gpu.json"
    result = CliRunner().invoke(app, ["gpu", "--device", "cpu", "--tiny", "--output", str(output)])
    assert result.exit_code == 0, result.output
    figures = orjson.loads(output.read_bytes())
    assert figures["is_ok"] and figures["left_out"] == []
    assert {each["path"] for each in figures["speed"]} == {"sdpa", "eager", "graphs", "deterministic"}
    assert sum("gemma3" in check["name"] for check in figures["checks"]) == 3
    assert "FAILED" not in result.output


def test_the_script_names_what_it_has_no_time_for(tmp_path: Path) -> None:
    arguments = ["gpu", "--device", "cpu", "--tiny", "--budget-s", "0", "--output", str(tmp_path / "gpu.json")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    assert "left out for want of time: families" in result.output
