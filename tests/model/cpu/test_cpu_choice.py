"""Which path computes, and what is compiled when: once, by whom there is, and otherwise PyTorch with a reason."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shared.errors import ConfigurationError
from tests.model.conftest import Load
from tests.model.tiny_model import write_model
from worker.model.cpu import build, choice
from worker.model.cpu.build import BuildError, find_library
from worker.model.cpu.choice import KernelConfig
from worker.model.cpu.machine import INSTRUCTION_SETS, available_sets, physical_cores
from worker.model.cpu.runner import CpuRunner
from worker.model.torch_runner import TorchRunner

pytestmark = pytest.mark.timeout(300)  # the first of them compiles
Kernels = Callable[..., KernelConfig]
BEST = available_sets()[0]


@pytest.fixture
def compiler(tmp_path: Path) -> Callable[[str], str]:
    """A compiler that is a shell script; each of its runs writes a line into `runs` beside it."""

    def make(body: str) -> str:
        script = tmp_path / "compiler"
        script.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/runs\n{body}\n')
        script.chmod(0o755)
        return str(script)

    return make


def compilations(tmp_path: Path) -> int:
    return (tmp_path / "runs").read_text().count("-shared")


def test_the_second_start_does_not_compile(tmp_path: Path, compiler: Callable[[str], str]) -> None:
    makes_a_file = 'while [ $# -gt 0 ]; do [ "$1" = -o ] && echo made > "$2"; shift; done'
    script = compiler(makes_a_file)
    first = find_library(BEST, tmp_path / "cache", script)
    assert first.read_text() == "made\n"
    assert find_library(BEST, tmp_path / "cache", script) == first
    assert compilations(tmp_path) == 1
    assert sorted(os.listdir(tmp_path / "cache")) == [first.name]  # nothing half made is left


def test_other_sources_other_flags_and_another_compiler_are_another_library(
    tmp_path: Path, compiler: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = compiler('[ "$1" = --version ] && cat version 2>/dev/null; touch "$(eval echo \\${$#})"')
    monkeypatch.chdir(tmp_path)
    found = {find_library(instructions, tmp_path, script) for instructions in INSTRUCTION_SETS}
    (tmp_path / "version").write_text("next")
    found.add(find_library(BEST, tmp_path, script))
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "a.cpp").write_text("other")
    monkeypatch.setattr(build, "SOURCES", tmp_path / "kernels")
    found.add(find_library(BEST, tmp_path, script))
    assert len(found) == len(INSTRUCTION_SETS) + 2


def test_without_a_compiler_what_another_built_is_taken(
    tmp_path: Path, kernels: Kernels, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_model(tmp_path)
    load(folder, kernels=kernels())  # builds it
    monkeypatch.setattr(build, "COMPILERS", ("no-such-compiler",))
    assert isinstance(load(folder, kernels=kernels()).runner, CpuRunner)
    with pytest.raises(BuildError, match="no C\\+\\+ compiler"):
        find_library(BEST, tmp_path / "empty")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('[ "$1" = --version ] || { echo "a.cpp:3: error: no such thing" >&2; exit 1; }', "no such thing"),
        ('touch "$(eval echo \\${$#})"', "file too short"),
    ],
)
def test_a_compiler_that_fails_is_told_and_pytorch_computes(
    load: Load, tmp_path: Path, compiler: Callable[[str], str], caplog: pytest.LogCaptureFixture, body: str, words: str
) -> None:
    config = KernelConfig(library_cache=str(tmp_path / "cache"), compiler=compiler(body))
    with caplog.at_level(logging.INFO):
        runner = load(write_model(tmp_path), kernels=config).runner
    assert isinstance(runner, TorchRunner)
    (line,) = said(caplog)
    assert (line.levelno, line.path) == (logging.WARNING, "torch") and words in line.why  # type: ignore[attr-defined]


def said(caplog: pytest.LogCaptureFixture) -> list[Any]:
    return [record for record in caplog.records if record.msg == "compute_path"]


CANNOT: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"sliding_window": 64, "architectures": ["MistralForCausalLM"]}, {}, "sliding windows"),
    ({}, {"dtype": "float64"}, "float64 is asked for"),
    ({}, {"kernels": KernelConfig(instructions="none such")}, "no none such"),
]


@pytest.mark.parametrize("case", CANNOT, ids=[words for _, _, words in CANNOT])
def test_what_the_kernels_cannot_do_pytorch_does(
    load: Load, kernels: Kernels, tmp_path: Path, caplog: pytest.LogCaptureFixture, case: tuple[Any, Any, str]
) -> None:
    changes, asked, words = case
    folder = write_model(tmp_path, **changes)
    with caplog.at_level(logging.INFO):
        assert isinstance(load(folder, **{"kernels": kernels(mode="auto")} | asked).runner, TorchRunner)
    assert words in said(caplog)[0].why


def test_native_refuses_to_start_without_the_kernels(load: Load, kernels: Kernels, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="float64 is asked for"):
        load(write_model(tmp_path), kernels=kernels(mode="native"), dtype="float64")


def test_one_line_says_which_path_runs(
    load: Load, kernels: Kernels, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        load(write_model(tmp_path), kernels=kernels(mode="auto"), threads=2)
        load(tmp_path, kernels=kernels(mode="torch"))
    native, torch = said(caplog)
    assert (native.path, native.why) == ("native", f"{BEST.name}, 2 threads, int16 activations, float16 KV cache")
    assert (torch.path, torch.why, torch.levelno) == ("torch", "asked for", logging.INFO)


def test_another_users_cache_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.getuid() == 0:
        os.chown(tmp_path, 4321, -1)
    owner = os.stat(tmp_path).st_uid
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    with pytest.raises(BuildError, match="another user"):
        choice._cache_folder(KernelConfig(library_cache=str(tmp_path)))


def test_a_pool_that_holds_no_block_is_refused(load: Load, kernels: Kernels, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="does not hold one block"):
        load(write_model(tmp_path), kernels=kernels(), kv_cache_bytes=1000)


def test_cores_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.model.cpu.machine._siblings", lambda number: f"{number // 2}")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3, 6}, raising=False)
    assert physical_cores() == 3
