"""What is known of models, tokenizers, workers, gateways and single requests; the read side of consoles and gateways.

Model cards stay when no worker lives, so that a known model still queues. The server's run id tells when
everything must be registered again.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass, field
from typing import Any

import msgspec

from shared import keys
from shared.redis_client import Client, Scripts, run_ids
from shared.schemas import WIRE_VERSION, ModelCard, State, WorkerInfo

log = logging.getLogger(__name__)


class AdapterState(msgspec.Struct, frozen=True):
    """How an adapter stands on a worker: loading, ready, unloading, unloaded or failed (`code` and `message` say why).

    `order` is the operator's that it comes from; '' of one that was configured.
    """

    name: str
    path: str
    state: str
    revision: str = ""
    order: str = ""
    code: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """One worker: `state` is live, draining (an operator sent it away), late (its lease ran out) or quarantined: then
    `why` says what failed, and `lease_left_ms` is of what it said, since it has no lease.

    `info` is None when this version cannot read what the worker said of itself.
    """

    worker_id: str
    info: WorkerInfo | None
    lease_left_ms: int
    num_owned: int
    load: dict[str, float] = field(default_factory=dict[str, float])
    beat_age_ms: int = 0
    state: str = "live"
    why: str = ""
    adapters: list[AdapterState] = field(default_factory=list[AdapterState])


class _Versioned(msgspec.Struct):
    version: int = 1


@dataclass(slots=True)
class Registry:
    """`newer`: revisions whose cards this version cannot read, and why."""

    scripts: Scripts
    newer: dict[str, str] = field(default_factory=dict[str, str])

    async def publish_model(self, card: ModelCard, tokenizer: bytes) -> None:
        """Make a model known. Idempotent."""
        client = self.scripts.client
        await client.set(keys.tokenizer(card.tokenizer_digest), tokenizer)
        await client.hset(keys.MODELS, card.revision, msgspec.json.encode(card))

    async def is_published(self, card: ModelCard) -> bool:
        client = self.scripts.client
        known = await client.hget(keys.MODELS, card.revision)
        return known is not None and await client.exists(keys.tokenizer(card.tokenizer_digest)) == 1

    async def models(self) -> list[ModelCard]:
        raw = await self.scripts.client.hgetall(keys.MODELS)
        cards = [card for name, written in raw.items() if (card := self._read_card(name.decode(), written))]
        return sorted(cards, key=lambda card: (card.name, card.created_s, card.revision))

    def _read_card(self, revision: str, written: bytes) -> ModelCard | None:
        """None: a newer version wrote it, or something else. Said once."""
        try:
            version = msgspec.json.decode(written, type=_Versioned).version
            if version <= WIRE_VERSION:
                self.newer.pop(revision, None)
                return msgspec.json.decode(written, type=ModelCard)
            why = f"its workers speak wire version {version}, this process {WIRE_VERSION}"
        except msgspec.DecodeError as error:
            why = f"its card cannot be read: {error}"
        if self.newer.get(revision) != why:
            log.error("model_not_understood", extra={"model": revision, "why": why})
        self.newer[revision] = why
        return None

    async def tokenizer(self, digest: str) -> bytes | None:
        raw = await self.scripts.client.get(keys.tokenizer(digest))
        return raw

    async def num_live_workers(self, model: str) -> int:
        """Workers of a model whose lease has not run out."""
        return int(await self.scripts.client.zcount(keys.lease(model), await self._now_ms(), "+inf"))

    async def workers(self, model: str) -> list[WorkerRow]:
        client = self.scripts.client
        now = await self._now_ms()
        leases: list[tuple[bytes, float]] = await client.zrange(keys.lease(model), 0, -1, withscores=True)
        rows: list[WorkerRow] = []
        for name, deadline in leases:
            worker_id = name.decode()
            raw = await client.hgetall(keys.worker(model, worker_id))
            if raw:
                owned = int(await client.zcard(keys.owned(model, worker_id)))
                rows.append(_worker_row(worker_id, raw, int(deadline) - now, owned, now))
        said: dict[bytes, bytes] = await client.hgetall(keys.quarantine(model))
        return rows + [row for name, words in said.items() if (row := _quarantined_row(name.decode(), words, now))]

    async def begin_run(self, name: str, run: str, window_s: float) -> int:
        """A named worker starts: how many of its starts within the window ended early, without this one."""
        client, now = self.scripts.client, await self._now_ms()
        key, first = keys.starts(name), now - int(window_s * 1000)
        await client.zremrangebyscore(key, "-inf", first)
        num_before = int(await client.zcard(key))
        await client.zadd(key, {run: now})
        await client.pexpire(key, int(window_s * 1000))
        return num_before

    async def end_run(self, name: str, run: str) -> None:
        """This start did not end early: it lived, or was told to end."""
        await self.scripts.client.zrem(keys.starts(name), run)

    async def held(self, model: str, worker_id: str) -> dict[str, int]:
        """What a worker owns: id -> milliseconds since it took it, the longest first."""
        now = await self._now_ms()
        owned: list[tuple[bytes, float]] = await self.scripts.client.zrange(
            keys.owned(model, worker_id), 0, -1, withscores=True
        )
        return {request_id.decode(): now - int(taken_at) for request_id, taken_at in owned}

    async def gateways(self) -> dict[str, int]:
        """Milliseconds left of each gateway's lease; below 0: late."""
        now = await self._now_ms()
        leases: list[tuple[bytes, float]] = await self.scripts.client.zrange(keys.GATEWAYS, 0, -1, withscores=True)
        return {name.decode(): int(deadline) - now for name, deadline in leases}

    async def beat_gateway(self, gateway: str, lease_ms: int, grace_ms: int) -> list[str]:
        """Say that `gateway` lives ('' only asks); returns gateways dead for longer than the grace."""
        dead: list[bytes] = await self.scripts.run("gateway_beat", keys.GATEWAYS, gateway, lease_ms, grace_ms)
        return [name.decode() for name in dead]

    async def forget_gateways(self, gateways: list[str]) -> None:
        if gateways:
            await self.scripts.client.zrem(keys.GATEWAYS, *gateways)

    async def run_id(self) -> str:
        """Changes whenever the server was restarted or another one took over."""
        return await run_ids(self.scripts.client)

    async def _now_ms(self) -> int:
        seconds, micros = await self.scripts.client.time()
        return seconds * 1000 + micros // 1000


class _Quarantined(msgspec.Struct):
    info: WorkerInfo
    why: str = ""


def _quarantined_row(worker_id: str, words: bytes, now: int) -> WorkerRow | None:
    """None: it did not speak again in time, or what it said is not understood. Layout: see lua/quarantine.lua."""
    until, _, said = words.partition(b" ")
    with contextlib.suppress(msgspec.DecodeError, ValueError):
        if int(until) >= now:
            told = msgspec.json.decode(said, type=_Quarantined)
            return WorkerRow(worker_id, told.info, int(until) - now, 0, state="quarantined", why=told.why)
    return None


def _worker_row(worker_id: str, raw: dict[bytes, bytes], lease_left_ms: int, num_owned: int, now: int) -> WorkerRow:
    info, load = None, dict[str, float]()
    with contextlib.suppress(msgspec.DecodeError):
        info = msgspec.json.decode(raw.get(b"info", b""), type=WorkerInfo)
    with contextlib.suppress(msgspec.DecodeError):
        said = msgspec.json.decode(raw.get(b"load", b"{}"), type=dict[str, Any])
        load = {name: float(value) for name, value in said.items() if isinstance(value, int | float)}
    adapters: list[AdapterState] = []
    with contextlib.suppress(msgspec.DecodeError):
        adapters = msgspec.json.decode(raw.get(b"adapters", b"[]"), type=list[AdapterState])
    return WorkerRow(
        worker_id,
        info,
        lease_left_ms,
        num_owned,
        load=load,
        adapters=adapters,
        beat_age_ms=now - int(raw.get(b"beat_at", now)),
        state="late" if lease_left_ms < 0 else "draining" if b"draining" in raw else "live",
    )


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """`tenant` as it stands in keys, escaped. Times are milliseconds of the server's clock, 0 for not yet."""

    request_id: str
    state: State
    owner: str
    attempt: int
    tenant: str
    service_class: str
    prompt_tokens: int
    max_tokens: int
    n: int
    num_tokens: int
    is_detached: bool
    has_key: bool
    view: str
    admitted_at: int
    taken_at: int
    first_token_at: int
    finished_at: int
    error: str

    @property
    def is_done(self) -> bool:
        return self.state not in (State.WAITING, State.RUNNING)

    @property
    def worker(self) -> str:
        """Who has it or had it last; '' for nobody yet."""
        return self.owner.partition("/")[0]


async def read_record(client: Client, model: str, request_id: str) -> RequestRecord | None:
    """None when there is no such request of this model (any more)."""
    raw = await client.hgetall(keys.request(model, request_id))
    if b"state" not in raw:
        return None
    fields = {name.decode(): value.decode() for name, value in raw.items()}

    def number(name: str) -> int:
        return int(fields.get(name, "0"))

    return RequestRecord(
        request_id=request_id,
        state=State(fields["state"]),
        owner=fields.get("owner", ""),
        attempt=number("attempt"),
        tenant=fields.get("tenant", ""),
        service_class=fields.get("class", ""),
        prompt_tokens=number("prompt_tokens"),
        max_tokens=number("max_tokens"),
        n=number("n"),
        num_tokens=number("tokens"),
        is_detached=fields.get("detached") == "1",
        has_key="idem" in fields,
        view=fields.get("view", ""),
        admitted_at=number("admitted_at"),
        taken_at=number("taken_at"),
        first_token_at=number("first_token_at"),
        finished_at=number("finished_at"),
        error=fields.get("error", ""),
    )
