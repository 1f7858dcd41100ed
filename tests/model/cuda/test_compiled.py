"""The kernels compile for GPUs of compute capability 8.0 and 9.0, within shared memory and (all but) registers."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.source_tree import ROOT

SHARED_BYTES = {80: 163 << 10, 90: 227 << 10}
LEAST_SHARED_BYTES = 99 << 10  # 8.6 and 8.9, which run what is compiled for 8.0
SPILLED_BYTES = 64  # a thread; more would be a tile too large


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_is_launched_compiles_without_spilling(tmp_path: Path) -> None:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("TRITON KERNELS NOT COMPILED: pip install triton (it needs no GPU)")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    command = [sys.executable, "-m", "tests.model.cuda.compile_launches"]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    made = [json.loads(line) for line in result.stdout.splitlines()]
    assert {(each["kernel"], each["capability"]) for each in made} == {
        (kernel, capability)
        for capability in SHARED_BYTES
        for kernel in (
            *("store_kernel", "rows_kernel", "merge_kernel", "tiles_kernel"),
            *("linear_kernel", "norm_kernel", "rotate_kernel", "gate_kernel"),
        )
    }
    assert [each for each in made if each["shared"] > LEAST_SHARED_BYTES] == []
    half = [each for each in made if "bfloat16" in each["of"]]  # fp32 is there to compare with
    assert [each for each in half if each["stack"] > SPILLED_BYTES] == []
