"""Both ends of the tokens: emit (worker), check and repair (gateway), and the subscription between them.

The byte offset of the journal is the sequence number. Pub/sub is a hint: what a gateway missed it reads from
the journal. A message is a JSON list of [request id, owner, offset, frames].
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec
import orjson

from shared import keys
from shared.redis_client import Scripts
from shared.request_queue import LeaseLost


@dataclass(frozen=True, slots=True)
class Emission:
    """New frames of one request, from `offset` of its journal. `final` is its outcome, '' while it goes on; `error` is
    the code of one that failed or expired.

    `num_tokens` are in these frames; `total_tokens` in the whole journal, told now and then (0: not this time).
    """

    request_id: str
    owner: str
    offset: int
    frames: bytes
    num_tokens: int
    gateways: tuple[str, ...]
    final: str = ""
    usage: bytes = b""
    total_tokens: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class Emitted:
    """`fenced`: no longer this owner's. `lost`: id -> the journal length to send again from."""

    is_published: bool
    fenced: list[str]
    lost: dict[str, int]
    commands: list[bytes]
    num_waiting: int


class Message(msgspec.Struct, frozen=True, array_like=True):
    """One request's part of what a worker published after a step."""

    request_id: str
    owner: str
    offset: int
    frames: str


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a journal is: state `gone` when its request's hash is not there."""

    state: str
    length: int = 0
    owner: str = ""


@dataclass(frozen=True, slots=True)
class Repaired:
    """`verdict` is tail, gone, wait, mismatch, requeued or contradiction; see lua/repair.lua."""

    verdict: str
    state: str = ""
    owner: str = ""
    tail: bytes = b""


_message_decoder = msgspec.json.Decoder(list[Message])
_step_encoder = msgspec.msgpack.Encoder()


def decode_messages(payload: bytes) -> list[Message]:
    return _message_decoder.decode(payload)


@dataclass(slots=True)
class TokenStream:
    """The token journals of one model revision."""

    scripts: Scripts
    model: str
    retention_s: int
    lease_ms: int
    _key: str = field(init=False)

    def __post_init__(self) -> None:
        self._key = keys.counts(self.model)

    async def emit(self, worker: str, nonce: str, emissions: Sequence[Emission]) -> Emitted:
        """Append a step to the journals and publish it, one message a gateway. Raises LeaseLost.

        All good requests are appended; nothing is published unless all are good.
        """
        args: list[bytes | str] = [_step_of(emissions)]
        for gateway, payload in payloads_of(emissions).items():
            args += (gateway, payload)
        reply = await self.scripts.run("emit", self._key, worker, nonce, self.lease_ms, self.retention_s, *args)
        if reply[0] == b"nolease":
            raise LeaseLost
        fenced = [bad[0].decode() for bad in reply[1] if bad[1] == b"fenced"]
        lost = {bad[0].decode(): int(bad[2]) for bad in reply[1] if bad[1] == b"lost"}
        return Emitted(reply[0] == b"ok", fenced, lost, list(reply[2]), int(reply[3]))

    async def check(self, request_ids: Sequence[str]) -> list[Standing]:
        """The standing of each id, in order."""
        replies = await self.scripts.run("check", self._key, *request_ids)
        return [
            Standing("gone") if r[0] == b"gone" else Standing(r[0].decode(), int(r[1]), r[2].decode()) for r in replies
        ]

    async def repair(
        self, request_id: str, gateway: str, prefix: bytes, owner: str, *, send_prefix: bool = False
    ) -> Repaired:
        """Compare a delivered prefix with the journal. After `mismatch`, call again with `send_prefix`."""
        digest = hashlib.sha1(prefix, usedforsecurity=False).hexdigest()
        reply = await self.scripts.run(
            "repair", self._key, request_id, gateway, len(prefix), digest, owner, prefix if send_prefix else b""
        )
        verdict = reply[0].decode()
        if verdict != "tail":
            return Repaired(verdict)
        return Repaired(verdict, reply[1].decode(), reply[2].decode(), reply[3])

    async def journal(self, request_id: str) -> bytes:
        """The whole journal; empty when there is none."""
        raw = await self.scripts.client.get(keys.journal(self.model, request_id))
        return raw or b""


def _step_of(emissions: Sequence[Emission]) -> bytes:
    """One argument for all requests: unpacked at once it costs the server half of what five a request do."""
    requests: list[str | int] = []
    for e in emissions:
        requests += (e.request_id, e.owner, e.offset, e.frames.decode(), e.num_tokens, e.total_tokens)
    ends = {e.request_id: (e.final, e.usage.decode(), e.error) for e in emissions if e.final}
    return _step_encoder.encode((requests, ends))


def payloads_of(emissions: Iterable[Emission]) -> dict[str, bytes]:
    """One message a gateway: the parts of this step it listens to."""
    parts: dict[str, list[tuple[str, str, int, str]]] = {}
    for e in emissions:
        part = (e.request_id, e.owner, e.offset, e.frames.decode())
        for gateway in e.gateways:
            parts.setdefault(gateway, []).append(part)
    return {gateway: orjson.dumps(part) for gateway, part in parts.items()}
