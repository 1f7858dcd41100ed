# pyright: reportMissingImports=false
"""Compiles what the GPU path launches, as it launches it, for GPUs that are not here. Run as a program: one JSON line
a kernel, with its shared memory, registers and stack (what registers did not hold).

Kernels are replaced by ones that compile instead of running; the arguments are real, on a CPU.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from worker.model.cuda import kernels, operations, row_kernels
from worker.model.cuda.attention import BlockAttention, BlockPlan, LayerPool
from worker.model.cuda.triton_kernels import TritonKernels

TYPES = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.int32: "*i32"}
OPTIONS = ("num_warps", "num_stages", "enable_fp_fusion")
TOOL = Path(str(triton.__file__)).parent / "backends/nvidia/bin/cuobjdump"


class Compiled:
    """Stands in for a kernel."""

    def __init__(self, kernel: Any, capability: int, label: str) -> None:
        self._kernel, self._capability, self._label = kernel, capability, label

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return self._compile

    def _compile(self, *values: Any, **named: Any) -> None:
        given = dict(zip(self._kernel.arg_names, values, strict=False)) | named
        options = {name: given.pop(name) for name in OPTIONS if name in given}
        signature = {name: _type_of(given[name], is_constant=name in named) for name in self._kernel.arg_names}
        constants = {name: given[name] for name, kind in signature.items() if kind == "constexpr"}
        aligned = {
            (i,): [["tt.divisibility", 16]]
            for i, (name, kind) in enumerate(signature.items())
            if kind != "constexpr" and name != "num_rows"
        }
        source = ASTSource(self._kernel, signature, constants, aligned)
        made = triton.compile(source, target=GPUTarget("cuda", self._capability, 32), options=options)
        told = {"kernel": self._kernel.__name__, "of": self._label, "capability": self._capability}
        print(json.dumps({**told, "shared": made.metadata.shared, **_resources(made.asm["cubin"])}), flush=True)


def _type_of(value: Any, *, is_constant: bool) -> str:
    if is_constant:
        return "constexpr"
    return TYPES[value.dtype] if isinstance(value, torch.Tensor) else "i32"


def _resources(binary: bytes) -> dict[str, int]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        command = [str(TOOL), "-res-usage", file.name]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", said)
    assert found is not None, said
    return {"registers": int(found[1]), "stack": int(found[2])}


def launch_all(heads: tuple[int, int, int], dtype: torch.dtype) -> None:
    num_heads, kv_heads, head_dim = heads
    config: Any = types.SimpleNamespace(
        num_layers=1, num_heads=num_heads, num_kv_heads=kv_heads, head_dim=head_dim, attention_scale=head_dim**-0.5
    )
    pool = BlockAttention.new_pool(config, 2, torch.device("cpu"), dtype)
    launches = TritonKernels(config, pool, context_length=8192, max_rows=64, num_processors=132)
    layer = LayerPool(pool[0, 0], pool[0, 1], 512)
    ids = torch.zeros(64, dtype=torch.int32)
    plan = BlockPlan(ids, ids, ids, ids[:4], ids[:4].view(2, 2), ids)
    qkv = torch.zeros(4, num_heads + 2 * kv_heads, head_dim, dtype=dtype)
    output = torch.zeros(4, num_heads, head_dim, dtype=dtype)
    launches.store(layer, qkv, ids)
    launches.attend_rows(layer, qkv, plan, output)
    launches.attend_tiles(layer, qkv, plan, output)
    ours = operations.invariant_operations()
    x = torch.zeros(4, 2048, dtype=dtype)
    ours.make_linear(torch.zeros(256, 2048, dtype=dtype), None)(x)
    ours.rms_norm(x, x[0], 1e-5)
    ours.rms_norm(qkv[:, :num_heads], None, 1e-5)
    ours.rotate(qkv[:, :num_heads], torch.zeros(4, 1, head_dim // 2, dtype=torch.complex64))
    ours.gated(x, "gelu_tanh")


def main() -> None:
    originals = {
        (module, name): getattr(module, name)
        for module in (kernels, row_kernels)
        for name in dir(module)
        if name.endswith("_kernel")
    }
    for capability in (80, 90):
        for dtype in (torch.bfloat16, torch.float32):
            for heads in ((32, 8, 64), (28, 4, 128), (8, 4, 256)):
                for (module, name), kernel in originals.items():
                    setattr(module, name, Compiled(kernel, capability, f"{heads} {dtype}"))
                launch_all(heads, dtype)


if __name__ == "__main__":
    sys.exit(main())
