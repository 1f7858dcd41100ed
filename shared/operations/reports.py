"""One answer to an operator, whoever asks: the facts, and the redis-cli lines behind them.

The `headrace` command prints a report as a table or as JSON, `/operator/v1` sends the same JSON. No report holds text
of a prompt or of an answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec
import orjson

from shared.operations import redis_cli
from shared.operations.dead_letters import Letter
from shared.operations.desk import Desk, PausedModel
from shared.operations.overview import Overview
from shared.operations.scaling.figures import ModelScaling
from shared.operations.scaling.wanted import Policy
from shared.operations.timeline import Timeline
from shared.registry import WorkerRow

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Report(Generic[T]):
    data: T
    redis_cli: list[str]

    def json(self) -> bytes:
        return orjson.dumps(self, default=msgspec.to_builtins)


@dataclass(frozen=True, slots=True)
class Fleet:
    """Workers by model revision; milliseconds left of each gateway's lease."""

    workers: dict[str, list[WorkerRow]]
    gateways: dict[str, int]


@dataclass(frozen=True, slots=True)
class Held:
    """What a worker owns: id -> milliseconds since it took it, the longest first."""

    worker: str
    model: str
    requests: dict[str, int]


@dataclass(frozen=True, slots=True)
class Ledger:
    model: str
    problems: list[str]
    sums: dict[str, int]


@dataclass(frozen=True, slots=True)
class DeadRequest:
    """`params`: how it was to be answered (length, temperature, seed)."""

    letter: Letter
    timeline: Timeline
    prompt_tokens: int
    params: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Drained:
    worker: str
    model: str


@dataclass(frozen=True, slots=True)
class Ended:
    """`state` is the one the request is in now."""

    request_id: str
    state: str


@dataclass(frozen=True, slots=True)
class Retried:
    request_id: str
    retried_as: str


@dataclass(frozen=True, slots=True)
class AllRetried:
    """`failed`: letters that cannot run again, and why. `stopped`: why the rest was not tried; '' when all were.
    `left`: letters that are still there."""

    retried: list[Retried]
    failed: dict[str, str]
    stopped: str
    left: int


async def queue(desk: Desk, name: str = "") -> Report[list[Overview]]:
    rows = await desk.overview(name)
    return Report(rows, [line for row in rows for line in redis_cli.overview(row.model)])


async def scaling(
    desk: Desk, name: str = "", policy: Policy | None = None, current: int | None = None
) -> Report[list[ModelScaling]]:
    found = await desk.wanted_workers(name, policy, current)
    return Report(found, [line for row in found for each in row.revisions for line in redis_cli.scaling(each.model)])


async def request(desk: Desk, request_id: str) -> Report[Timeline]:
    timeline = await desk.timeline(request_id)
    return Report(timeline, redis_cli.request(timeline.model, request_id))


async def workers(desk: Desk) -> Report[Fleet]:
    fleet = Fleet(await desk.workers(), await desk.gateways())
    behind = [line for model in fleet.workers for line in redis_cli.workers(model)]
    for model, rows in fleet.workers.items():
        behind += [line for row in rows for line in redis_cli.worker(model, row.worker_id)]
    return Report(fleet, list(dict.fromkeys(behind)))


async def worker(desk: Desk, worker_id: str) -> Report[Held]:
    model, held = await desk.held(worker_id)
    return Report(Held(worker_id, model, held), redis_cli.worker(model, worker_id))


async def dead_letters(desk: Desk, name: str = "", count: int = 100) -> Report[list[Letter]]:
    models = await desk.revisions(name)
    letters = await desk.dead_letters(name, count)
    return Report(letters, [line for model in models for line in redis_cli.dead_letters(model, count)])


async def dead_letter(desk: Desk, request_id: str) -> Report[DeadRequest]:
    letter = await desk.dead_letter(request_id)
    asked = await desk.asked(letter)
    timeline = await desk.timeline(request_id)
    found = DeadRequest(letter, timeline, len(asked.prompt_ids), msgspec.to_builtins(asked.params))
    return Report(found, redis_cli.request(letter.model, request_id))


async def fsck(desk: Desk, name: str = "") -> Report[list[Ledger]]:
    books = await desk.fsck(name)
    behind = [_script(desk, "fsck", model, "REQUEST_ID") for model in books]
    return Report([Ledger(model, found.problems, dict(found.sums)) for model, found in books.items()], behind)


async def pause(desk: Desk, name: str, by: str, why: str) -> Report[list[PausedModel]]:
    done = await desk.pause(name, by=by, why=why)
    return Report(done, [_script(desk, "pause", row.model, by, why) for row in done])


async def resume(desk: Desk, name: str, by: str) -> Report[list[str]]:
    models = await desk.revisions(name)
    done = await desk.resume(name, by=by)
    return Report(done, [_script(desk, "resume", model, by) for model in models])


async def drain(desk: Desk, worker_id: str, by: str, *, is_now: bool) -> Report[Drained]:
    model = await desk.drain(worker_id, by=by, is_now=is_now)
    return Report(Drained(worker_id, model), [_script(desk, "drain", model, worker_id, "now" if is_now else "", by)])


async def cancel(desk: Desk, request_id: str, by: str) -> Report[Ended]:
    state = await desk.cancel(request_id, by=by)
    model = (await desk.timeline(request_id)).model
    return Report(Ended(request_id, state), [_script(desk, "cancel", model, request_id, desk.settings.retention_s, by)])


async def retry(desk: Desk, request_id: str, by: str) -> Report[Retried]:
    letter = await desk.dead_letter(request_id)
    new_id = await desk.retry(request_id, by=by)
    return Report(Retried(request_id, new_id), redis_cli.request(letter.model, new_id))


async def retry_all(desk: Desk, name: str, by: str, count: int) -> Report[AllRetried]:
    models = await desk.revisions(name)
    done, left = await desk.retry_all(name, by=by, count=count)
    pairs = [Retried(request_id, new_id) for request_id, new_id in done.retried.items()]
    behind = [line for model in models for line in (*redis_cli.dead_letters(model, count), redis_cli.audit(model))]
    return Report(AllRetried(pairs, done.failed, done.stopped, left), behind)


async def drop(desk: Desk, request_id: str, by: str, why: str) -> Report[Ended]:
    letter = await desk.dead_letter(request_id)
    await desk.drop(request_id, by=by, why=why)
    line = _script(desk, "dead_drop", letter.model, request_id, desk.settings.retention_s, "dropped", why, by)
    return Report(Ended(request_id, "dead"), [line])


def _script(desk: Desk, name: str, model: str, *args: str | int) -> str:
    return redis_cli.script(desk.scripts.text(name), model, *args)
