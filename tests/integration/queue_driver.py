"""Calls to the real queue with the model beside them: what the state machine's rules are made of.

Its workers remember what they hold as real ones do: a whole journal, how much of it Redis is known to have.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from hypothesis.stateful import RuleBasedStateMachine

from shared import keys
from shared.config import RedisSettings
from shared.redis_client import Scripts, connect
from shared.request_queue import Delivery, RequestQueue
from shared.token_stream import Emission, Emitted, TokenStream
from tests.integration.queue_actors import END, MODEL, Actors, tokens
from tests.integration.queue_model import MAX_CRASHES, Model


def some(pick: int, names: Iterable[str]) -> str:
    """One of them. A number decides, not a draw from the names: what is drawn may not depend on the server."""
    ordered = sorted(names)
    return ordered[pick % len(ordered)]


def cut(journal: bytes, num_frames: int) -> bytes:
    """A journal without its last frames."""
    lines = journal.splitlines(keepends=True)
    return b"".join(lines[: max(0, len(lines) - num_frames)])


# Workers share by how long an entry has waited, and are rung by when they asked: a slow machine would draw otherwise.
TIMELESS = {
    "local YOUNG_MS = 100": "local YOUNG_MS = 0",
    "local ASKS_AGAIN_MS = 2000": "local ASKS_AGAIN_MS = 1e9",
    "local WOKEN_MS = 200": "local WOKEN_MS = 1e9",
    "local BELL_MS = 10000": "local BELL_MS = 1e9",
    "tonumber(words[6]) <= now": "redis.call('EXISTS', key('w', words[4])) == 0",
    "local OVERTAKE_MS = 500": "local OVERTAKE_MS = 1e9",
}


def timeless(text: str) -> str:
    """All entries are old, all who are idle have just asked, who was woken is on its way until it asks, and what is
    kept for a worker is kept as long as it is there."""
    for old, new in TIMELESS.items():
        text = text.replace(old, new)
    return text


class AgelessScripts(Scripts):
    def text(self, name: str) -> str:
        return timeless(super().text(name))


@dataclass
class Held:
    """What a worker remembers of a request; behind `sent` it has not heard that Redis has it."""

    delivery: Delivery
    journal: bytes
    sent: int
    final: str = ""

    def emission(self, num_tokens: int) -> Emission:
        d = self.delivery
        frames = self.journal[self.sent :]
        total = self.journal.count(b'["t",')
        # Told now and then: what was not told is counted where the request ends or goes back.
        return Emission(
            d.request_id,
            d.owner,
            self.sent,
            frames,
            num_tokens,
            d.gateways,
            self.final,
            b"{}",
            total if total % 2 else 0,
        )


class QueueDriver(RuleBasedStateMachine):
    url: str

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.run = self.runner.run
        self.client = connect(RedisSettings(redis_url=self.url))
        self.command("FLUSHALL")
        scripts = AgelessScripts(self.client)
        self.queue = RequestQueue(scripts, MODEL, retention_s=60, lease_ms=60_000)
        self.stream = TokenStream(scripts, MODEL, retention_s=60, lease_ms=60_000)
        self.actors = Actors(self.queue, self.stream, scripts)
        self.model = Model()
        self.workers: dict[str, dict[str, Held]] = {}
        self.reaped: dict[str, dict[str, Held]] = {}
        self.is_paused = False
        self.num_names = 0
        self.num_tokens = 0

    def command(self, *words: str | bytes | int):
        async def call():
            return await self.client.execute_command(*words)  # type: ignore[attr-defined]

        return self.run(call())

    def name(self, kind: str) -> str:
        self.num_names += 1
        return f"{kind}{self.num_names}"

    def take_for(self, pick: int, times: int, slots: int, *, is_heard: bool) -> None:
        worker = some(pick, self.workers)
        for _ in range(times):
            deliveries = self.run(self.queue.take(worker, "nonce", slots=slots, room=1000)).deliveries
            assert len(deliveries) <= slots
            for d in deliveries:
                self.model.take(d.request_id, d.owner, worker)
                assert set(d.gateways) == self.model.entries[d.request_id].gateways
                if is_heard:
                    self.workers[worker][d.request_id] = Held(d, d.journal, len(d.journal))

    def step(self, worker: str, step: list[Held], times: int, *, ends: bool) -> None:
        """An emit, the last call's reply being the one that is heard."""
        if not step:
            return
        for held in step:
            self.num_tokens += 1
            held.journal += tokens(self.num_tokens) + (END if ends else b"")
            held.final = "finished" if ends else ""
            if self.model.owns(held.delivery.request_id, held.delivery.owner):
                self.model.emit(held.delivery.request_id, [self.num_tokens], final=ends)
        self.model.late.discard(worker)
        emissions = [held.emission(1) for held in step]
        heard = [self.run(self.stream.emit(worker, "nonce", emissions)) for _ in range(times)]
        self.hear(worker, step, heard[-1])

    def hear(self, worker: str, step: list[Held], emitted: Emitted) -> None:
        """A worker drops what it lost, sends again what Redis lost, and the rest of a step that was held back."""
        mine = self.workers[worker]
        for held in step:
            name, owner = held.delivery.request_id, held.delivery.owner
            is_ended = self.model.entries[name].owner == owner and self.model.entries[name].state == "finished"
            assert (name in emitted.fenced) == (not self.model.owns(name, owner) and not is_ended), name
            if name in emitted.fenced:
                del mine[name]
            elif name in emitted.lost:
                held.sent = emitted.lost[name]
            elif emitted.is_published:
                held.sent = len(held.journal)
                if held.final:
                    del mine[name]
        rest = [held for held in step if held.delivery.request_id in mine]
        if rest and not emitted.is_published:
            self.hear(worker, rest, self.run(self.stream.emit(worker, "nonce", [held.emission(1) for held in rest])))

    def reap_all(self, page: int) -> None:
        self.run(self.actors.forget_grace())
        while self.run(self.queue.reap((), max_crashes=MAX_CRASHES, page=page)).has_more:
            pass
        for worker in self.model.late:
            self.reaped[worker] = self.workers.pop(worker)
        self.model.reap()

    def journal(self, name: str) -> bytes:
        return self.run(self.stream.journal(name))

    def set_paused(self, *, is_paused: bool) -> None:
        self.is_paused = is_paused
        key, by = keys.counts(MODEL), ["ann", "why"] if is_paused else ["ann"]
        self.run(self.queue.scripts.run("pause" if is_paused else "resume", key, *by))

    def rung_and_not(self) -> tuple[set[str], set[str]]:
        """Workers on their way, each with its bell rung once; and live ones that are idle."""
        woken = {name.decode() for name in self.command("ZRANGE", keys.woken(MODEL), 0, -1)}
        assert {name: self.command("LLEN", keys.bell(MODEL, name)) for name in woken} == dict.fromkeys(woken, 1)
        idle = {name.decode() for name in self.command("ZRANGE", keys.idle(MODEL), 0, -1)}
        return woken, idle - self.model.late

    def end_everything(self) -> None:
        self.set_paused(is_paused=False)
        for worker in list(self.workers):
            self.run(self.queue.unregister(worker, "nonce"))
            for name in self.model.running_at(worker):
                self.model.go_back(name)
        last = self.name("w")
        self.run(self.actors.register(last))
        for _ in range(len(self.model.entries) + 1):
            for d in self.run(self.actors.take(last, slots=100, room=10_000)):
                self.model.take(d.request_id, d.owner, last)
                self.run(self.actors.finish(last, d))
                self.model.end(d.request_id, "finished")
        assert self.model.undone() == []
