"""A low-rank adapter as the kernels take it: their order of rows and columns, filled up where they are.

A (down)   columns as the part's inputs lie: heads filled up for the output projection, else the whole width
B (up)     rows as the part's outputs lie: Q and K as rotated neighbours
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from worker.model.cpu.assembly import head_rows, padded
from worker.model.cpu.library import NativeModel, Part
from worker.model.families.model_config import ModelConfig
from worker.model.lora.low_rank import LowRank, LowRankAdapter

_PARTS = {
    "q_proj": Part.QUERY,
    "k_proj": Part.KEY,
    "v_proj": Part.VALUE,
    "o_proj": Part.OUTPUT,
    "gate_proj": Part.GATE,
    "up_proj": Part.UP,
    "down_proj": Part.DOWN,
}
_RANK_MULTIPLE = 4

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]


def install_adapter(model: NativeModel, slot: int, adapter: LowRankAdapter, config: ModelConfig) -> None:
    """Into a slot that no step uses; any thread. MemoryError when it does not fit."""
    try:
        for layer, projections in enumerate(adapter.layers):
            for projection, low_rank in projections.items():
                down, up = _packed(projection, low_rank, config)
                model.set_low_rank(slot, layer, _PARTS[projection], down, up)
    except BaseException:
        model.clear_adapter(slot)
        raise


def _packed(projection: str, low_rank: LowRank, config: ModelConfig) -> tuple[FloatArray, FloatArray]:
    down, up = low_rank.down.numpy(), low_rank.up.numpy()
    more = -len(down) % _RANK_MULTIPLE
    down, up = np.pad(down, ((0, more), (0, 0))), np.pad(up, ((0, 0), (0, more)))
    if projection == "o_proj":
        columns = head_rows(config.num_heads, config.head_dim, is_interleaved=False)
    else:
        columns = _filled_up(down.shape[1])
    return _taken(down.T, columns).T, _taken(up, _rows(projection, len(up), config))


def _rows(projection: str, num_rows: int, config: ModelConfig) -> IntArray:
    if projection in ("q_proj", "k_proj", "v_proj"):
        num_heads = config.num_heads if projection == "q_proj" else config.num_kv_heads
        return head_rows(num_heads, config.head_dim, is_interleaved=projection != "v_proj")
    return _filled_up(num_rows)


def _filled_up(size: int) -> IntArray:
    return np.pad(np.arange(size), (0, padded(size) - size), constant_values=-1)


def _taken(rows: FloatArray, order: IntArray) -> FloatArray:
    """-1 is a row of zeros."""
    taken = rows[order]
    taken[order < 0] = 0
    return taken
