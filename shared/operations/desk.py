"""The operator's desk: all an operator may look at or do, behind the `headrace` command and `/operator/v1` alike.

Talks to Redis only, so it works with no gateway and no worker alive. Every action goes into the audit stream
`events` with who did it. Raises the typed errors of shared/errors.py; RedisError passes through.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import orjson

from shared import keys
from shared.config import RedisSettings
from shared.errors import ModelNotFound, RequestNotFound, WorkerNotFound
from shared.fsck import Books, fsck
from shared.operations.dead_letters import DeadLetters, Letter, Retries
from shared.operations.overview import Overview, Paused, read_overview
from shared.operations.scaling.figures import ModelScaling
from shared.operations.scaling.reading import read_scaling
from shared.operations.scaling.wanted import Policy
from shared.operations.timeline import Timeline, steps_of, time_in, workers_of
from shared.redis_client import Scripts
from shared.registry import Registry, WorkerRow
from shared.request_queue import Bounds, RequestQueue
from shared.routing.store import RouteStore
from shared.schemas import Request, decode_frames

MAX_LETTERS = 1000
_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


@dataclass(frozen=True, slots=True)
class PausedModel:
    """`is_new` is False when somebody had paused it before; they stay the one who did."""

    model: str
    paused: Paused
    is_new: bool


@dataclass(frozen=True, slots=True)
class Desk:
    """`bounds`: of a queue whose model has none of its own; shown, and respected by a retry. `scaling`: what is
    wanted of a fleet."""

    scripts: Scripts
    settings: RedisSettings
    bounds: Bounds
    scaling: Policy = field(default_factory=Policy)

    # looking

    async def revisions(self, name: str = "") -> list[str]:
        """All revisions, or those of a model name, or the one named. Raises ModelNotFound."""
        cards = await Registry(self.scripts).models()
        found = [card.revision for card in cards if not name or name in (card.name, card.revision)]
        if name and not found:
            raise ModelNotFound(f"no model {name}; known: {', '.join(card.revision for card in cards) or 'none'}")
        return found

    async def overview(self, name: str = "") -> list[Overview]:
        models = await self.revisions(name)
        routes, _ = await RouteStore(self.scripts).table()
        return [await read_overview(self.scripts, model, routes.bounds(model, self.bounds)) for model in models]

    async def wanted_workers(
        self, name: str = "", policy: Policy | None = None, current: int | None = None
    ) -> list[ModelScaling]:
        """By model name. `current`: how many workers its caller has started. Raises ModelNotFound."""
        await self.revisions(name)
        return await read_scaling(self.scripts, policy or self.scaling, name, current)

    async def workers(self) -> dict[str, list[WorkerRow]]:
        """By model revision."""
        registry = Registry(self.scripts)
        return {model: await registry.workers(model) for model in await self.revisions()}

    async def held(self, worker_id: str) -> tuple[str, dict[str, int]]:
        """The model of a worker, and what it owns: id -> milliseconds since it took it. Raises WorkerNotFound."""
        for model in await self.revisions():
            if await self.scripts.client.exists(keys.worker(model, worker_id)):
                return model, await Registry(self.scripts).held(model, worker_id)
        raise WorkerNotFound(f"no worker {worker_id} is registered")

    async def gateways(self) -> dict[str, int]:
        """Milliseconds left of each gateway's lease; below 0: late."""
        return await Registry(self.scripts).gateways()

    async def timeline(self, request_id: str) -> Timeline:
        """Raises RequestNotFound."""
        model = await self._model_of(request_id)
        client = self.scripts.client
        raw = await client.hgetall(keys.request(model, request_id))
        journal = await client.get(keys.journal(model, request_id)) or b""
        gateways = await client.smembers(keys.listeners(model, request_id))
        fields = {name.decode(): value.decode() for name, value in raw.items()}
        seconds, micros = await client.time()
        steps = steps_of(fields, decode_frames(journal), seconds * 1000 + micros // 1000)
        listening = sorted(name.decode() for name in gateways)
        state = fields.get("state", "gone")
        return Timeline(request_id, model, state, fields, listening, steps, workers_of(steps), time_in(steps))

    async def dead_letters(self, name: str = "", count: int = MAX_LETTERS) -> list[Letter]:
        """Newest first."""
        letters = [letter for m in await self.revisions(name) for letter in await self._letters(m).newest(count)]
        return sorted(letters, key=lambda letter: letter.died_at_ms, reverse=True)[:count]

    async def dead_letter(self, request_id: str) -> Letter:
        """Raises RequestNotFound."""
        return await self._letters(await self._model_of(request_id)).find(request_id)

    async def asked(self, letter: Letter) -> Request:
        """What a dead letter's client asked for. Raises RequestNotFound when its body is gone."""
        return await self._letters(letter.model).body(letter)

    async def fsck(self, name: str = "") -> dict[str, Books]:
        """The books of each model revision; exact where nothing moves."""
        return {model: await fsck(self.scripts, model) for model in await self.revisions(name)}

    # acting

    async def pause(self, name: str, *, by: str, why: str) -> list[PausedModel]:
        """All revisions of a name, or one revision."""
        done: list[PausedModel] = []
        for model in await self.revisions(name):
            how, who, reason, since = await self.scripts.run("pause", keys.counts(model), by, why)
            paused = Paused(who.decode(), reason.decode(), int(since))
            done.append(PausedModel(model, paused, is_new=how == b"paused"))
        return done

    async def resume(self, name: str, *, by: str) -> list[str]:
        """The revisions that were paused."""
        done: list[str] = []
        for model in await self.revisions(name):
            if (await self.scripts.run("resume", keys.counts(model), by))[0] == b"resumed":
                done.append(model)
        return done

    async def drain(self, worker_id: str, *, by: str, is_now: bool = False) -> str:
        """The model it serves. The worker hears it within a heartbeat. Raises WorkerNotFound."""
        for model in await self.revisions():
            how = "now" if is_now else ""
            if (await self.scripts.run("drain", keys.counts(model), worker_id, how, by))[0] == b"told":
                return model
        raise WorkerNotFound(f"no worker {worker_id} is registered")

    async def order(self, worker_id: str, words: list[str], *, by: str) -> str:
        """A command to a worker, which hears it within a heartbeat; its model. Raises WorkerNotFound."""
        for model in await self.revisions():
            queue = RequestQueue(self.scripts, model, self.settings.retention_s, self.settings.lease_ms)
            if await queue.order(worker_id, orjson.dumps(words), by):
                return model
        raise WorkerNotFound(f"no worker {worker_id} is registered")

    async def cancel(self, request_id: str, *, by: str) -> str:
        """The state it is in now: `cancelled`, or how it had ended before. Raises RequestNotFound."""
        model = await self._model_of(request_id)
        queue = RequestQueue(self.scripts, model, self.settings.retention_s, self.settings.lease_ms)
        return await queue.cancel(request_id, by)

    async def retry(self, request_id: str, *, by: str) -> str:
        """The new id a dead letter runs again under. Raises RequestNotFound, Overloaded."""
        model = await self._model_of(request_id)
        return await self._letters(model).retry(request_id, by, await self._bounds_of(model))

    async def retry_all(self, name: str, *, by: str, count: int = MAX_LETTERS) -> tuple[Retries, int]:
        """The oldest `count` letters of a model, or of all, run again; and how many letters are left."""
        letters = [letter for m in await self.revisions(name) for letter in await self._letters(m).newest(MAX_LETTERS)]
        letters.sort(key=lambda letter: letter.died_at_ms)
        done = Retries()
        for model in dict.fromkeys(letter.model for letter in letters[:count]):
            of_model = [letter for letter in letters[:count] if letter.model == model]
            done.add(await self._letters(model).retry_many(of_model, by, await self._bounds_of(model)))
        return done, len(letters) - len(done.retried)

    async def drop(self, request_id: str, *, by: str, why: str) -> None:
        """Raises RequestNotFound."""
        await self._letters(await self._model_of(request_id)).drop(request_id, by, why)

    async def _bounds_of(self, model: str) -> Bounds:
        routes, _ = await RouteStore(self.scripts).table()
        return routes.bounds(model, self.bounds)

    def _letters(self, model: str) -> DeadLetters:
        return DeadLetters(self.scripts, model, self.settings.retention_s, self.settings.lease_ms)

    async def _model_of(self, request_id: str) -> str:
        if _ID.fullmatch(request_id):
            for model in await self.revisions():
                if await self.scripts.client.exists(keys.request(model, request_id)):
                    return model
        raise RequestNotFound(f"no request {request_id[:128]} (one that ended is kept for retention_s)")
