"""An operator loads and unloads adapters on workers, and sees how each stands.

An order is a command like any other: the worker hears it within a heartbeat, and tells in its hash what came of it.
Whoever gave the order waits for that, and raises what the worker refused with, typed as there.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass

from shared.errors import AdapterRefused
from shared.operations import redis_cli
from shared.operations.desk import Desk
from shared.operations.reports import Report
from shared.registry import AdapterState, WorkerRow

WAIT_S = 60.0
_LOOK_S = 0.1
_IS_OVER = ("ready", "unloaded", "failed")


@dataclass(frozen=True, slots=True)
class WorkersAdapter:
    """One adapter on one worker: `worker` is the id that the worker has for the adapters' base, `model`."""

    worker: str
    model: str
    adapter: AdapterState


async def listed(desk: Desk) -> Report[list[WorkersAdapter]]:
    """All that workers have told: failed orders and unloaded ones as well."""
    found = [
        WorkersAdapter(row.worker_id, model, adapter)
        for model, rows in (await desk.workers()).items()
        for row in rows
        for adapter in row.adapters
    ]
    lines = [redis_cli.worker(row.model, row.worker)[0] for row in found]
    return Report(found, list(dict.fromkeys(lines)))


async def load(desk: Desk, worker_id: str, name: str, path: str, by: str) -> Report[WorkersAdapter]:
    """`path` is a folder on the worker's machine. Raises WorkerNotFound, AdapterRefused."""
    return await _order(desk, worker_id, ["load_adapter", secrets.token_hex(8), name, path], by)


async def unload(desk: Desk, worker_id: str, name: str, by: str) -> Report[WorkersAdapter]:
    """Its requests on this worker end first, or go back. Raises WorkerNotFound, AdapterRefused."""
    return await _order(desk, worker_id, ["unload_adapter", secrets.token_hex(8), name], by)


async def _order(desk: Desk, worker_id: str, words: list[str], by: str) -> Report[WorkersAdapter]:
    """What came of it; after `WAIT_S` how it stands, which may be nothing yet (`ordered`)."""
    model, order = await desk.order(worker_id, words, by=by), words[1]
    state = AdapterState(words[2], words[3] if len(words) > 3 else "", "ordered", order=order)
    give_up = asyncio.get_running_loop().time() + WAIT_S
    while state.state not in _IS_OVER and asyncio.get_running_loop().time() < give_up:
        rows: list[WorkerRow] = (await desk.workers())[model]
        told = [one for row in rows if row.worker_id == worker_id for one in row.adapters if one.order == order]
        state = told[-1] if told else state
        await asyncio.sleep(0 if state.state in _IS_OVER else _LOOK_S)
    if state.state == "failed":
        raise AdapterRefused(state.message, code=state.code)
    return Report(WorkersAdapter(worker_id, model, state), [redis_cli.worker(model, worker_id)[0]])
