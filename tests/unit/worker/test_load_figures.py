"""What a heartbeat tells of an engine is numbers that the other side reads, also after a step."""

from __future__ import annotations

import orjson

from shared.registry import _worker_row
from worker.engine.outputs import EngineLoad


def row_of(load: bytes) -> dict[str, float]:
    return _worker_row("w", {b"info": b"{}", b"load": load}, 1, 0, 1).load


def test_figures_are_read_whatever_the_engine_did() -> None:
    load = EngineLoad(1, 2, 3, 4, 100, 7)
    assert row_of(orjson.dumps(load.figures()))["kv_blocks_used"] == 7


def test_an_older_workers_figures_are_read_beside_what_is_none() -> None:
    assert row_of(b'{"num_running":2,"last_step":{"num_seqs":1}}') == {"num_running": 2}
