"""A gateway's and a worker's calls in short words, so that a protocol test reads as a schedule."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from shared import keys
from shared.fsck import fsck
from shared.redis_client import Scripts
from shared.request_queue import Admitted, Bounds, Delivery, Reaped, RequestQueue, Ticket
from shared.schemas import ChoiceEndFrame, EndFrame, Frame, Outcome, TokensFrame, Usage, decode_frames, encode_frames
from shared.token_stream import Emission, Emitted, TokenStream

MODEL = "tiny@0123456789ab"
NO_BOUNDS = Bounds(0, 0, 0)
END = encode_frames([ChoiceEndFrame(0, "length"), EndFrame(Outcome.FINISHED, Usage(4, 2))])


def tokens(*ids: int) -> bytes:
    return encode_frames([TokensFrame(0, list(ids), "".join(f"<{i}>" for i in ids))])


def actors_on(scripts: Scripts) -> Actors:
    queue = RequestQueue(scripts, MODEL, retention_s=60, lease_ms=300)
    return Actors(queue, TokenStream(scripts, MODEL, retention_s=60, lease_ms=300), scripts)


@dataclass
class Actors:
    """`tail` tracks where each delivery's journal ends, as its worker sees it."""

    queue: RequestQueue
    stream: TokenStream
    scripts: Scripts
    tail: dict[tuple[str, str], int] = field(default_factory=dict)

    async def admit(
        self, request_id: str, *, gateway: str = "g1", bounds: Bounds = NO_BOUNDS, **ticket: Any
    ) -> Admitted:
        values: dict[str, Any] = {
            "service_class": "default",
            "tenant": "t",
            "prompt_tokens": 4,
            "max_tokens": 8,
            "n": 1,
        } | ticket
        return await self.queue.admit(Ticket(request_id, **values), b"body", bounds, gateway=gateway)

    async def register(self, worker: str) -> None:
        await self.queue.register(worker, "nonce", b"{}")

    async def take(self, worker: str, *, slots: int = 8, room: int = 1000) -> list[Delivery]:
        deliveries = (await self.queue.take(worker, "nonce", slots=slots, room=room)).deliveries
        self.tail |= {(d.request_id, d.owner): len(d.journal) for d in deliveries}
        return deliveries

    async def take_one(self, worker: str) -> Delivery:
        (delivery,) = await self.take(worker)
        return delivery

    async def begin(self, request_id: str = "r1", worker: str = "w1") -> Delivery:
        """Admitted, and taken by a worker that has just registered."""
        await self.admit(request_id)
        await self.register(worker)
        return await self.take_one(worker)

    async def begin_running(self, request_id: str = "r1", worker: str = "w1") -> Delivery:
        """Begun, and with token 7 in its journal."""
        delivery = await self.begin(request_id, worker)
        await self.emit(worker, delivery, tokens(7))
        return delivery

    def forget_sent(self, d: Delivery) -> None:
        """Its worker sends again from the beginning, as after a lost reply."""
        self.tail[d.request_id, d.owner] = len(d.journal)

    async def emit(self, worker: str, d: Delivery, frames: bytes, *, final: str = "", num_tokens: int = 1) -> Emitted:
        tail = self.tail[d.request_id, d.owner]
        known = decode_frames((await self.stream.journal(d.request_id))[:tail] + frames)
        total = sum(len(frame.token_ids) for frame in known if isinstance(frame, TokensFrame))
        emission = Emission(d.request_id, d.owner, tail, frames, num_tokens, d.gateways, final, b"{}", total)
        emitted = await self.stream.emit(worker, "nonce", [emission])
        if emitted.is_published:
            self.tail[d.request_id, d.owner] += len(frames)
        return emitted

    async def finish(self, worker: str, d: Delivery) -> Emitted:
        return await self.emit(worker, d, END, final="finished", num_tokens=0)

    async def reap(self, *dead_gateways: str, max_crashes: int = 3) -> Reaped:
        return await self.queue.reap(dead_gateways, max_crashes=max_crashes)

    async def lose(self, worker: str) -> None:
        """The worker's lease runs out now, and reaping is past its grace."""
        client = self.scripts.client
        await client.execute_command("ZADD", keys.lease(MODEL), 1, worker)  # type: ignore[attr-defined]
        await self.forget_grace()

    async def forget_grace(self) -> None:
        seconds, micros = await self.scripts.client.time()
        await self.scripts.client.hset(keys.counts(MODEL), "reaped_at", str(seconds * 1000 + micros // 1000))
        await self.scripts.client.hset(keys.counts(MODEL), "grace_until", "0")

    async def state(self, request_id: str) -> str:
        value = await self.scripts.client.hget(keys.request(MODEL, request_id), "state")
        return value.decode() if value else "gone"

    async def frames(self, request_id: str) -> list[Frame]:
        return decode_frames(await self.stream.journal(request_id))

    async def ids(self, request_id: str) -> list[int]:
        return [i for f in await self.frames(request_id) if isinstance(f, TokensFrame) for i in f.token_ids]

    async def problems(self) -> list[str]:
        return (await fsck(self.scripts, MODEL)).problems
