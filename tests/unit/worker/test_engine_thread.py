from __future__ import annotations

import asyncio

from shared.schemas import Prefix
from tests.unit.worker.engine.harness import make_request
from worker.backends.simulated import SimulatedConfig, build_simulated
from worker.engine.outputs import EngineLoad
from worker.engine_thread import EngineThread


async def test_who_was_aborted_is_not_counted_any_more() -> None:
    """Nothing is said of it, so the figures after it are the only word that its blocks are free."""
    loop, told = asyncio.get_running_loop(), asyncio.Queue[EngineLoad]()

    def on_step(_seconds: float, load: EngineLoad) -> None:
        loop.call_soon_threadsafe(told.put_nowait, load)

    thread = EngineThread(lambda: build_simulated(SimulatedConfig(step_us=1000.0)), on_step)
    engine = await thread.start()
    thread.add(make_request(max_tokens=4000), [Prefix()])
    while not (await told.get()).kv_blocks_used:
        pass
    thread.abort(["r"])
    while (await told.get()).kv_blocks_used:
        pass
    assert not engine.has_work()
    await thread.stop()
