"""Step outputs -> one emit in flight; applies its verdicts and the commands its reply carries.

Steps that end while an emit is under way join the next one. The engine is held back when what it made cannot
be sent. Retries are blind: the offset makes a repeat harmless.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable

import orjson

from shared import faults
from shared.redis_client import AWAY
from shared.token_stream import Emission, Emitted, TokenStream
from worker.engine.outputs import StepOutput
from worker.holdings import Holdings, Settlement
from worker.shares import Share

log = logging.getLogger(__name__)
# An operator's, to the worker; what else is left for it concerns one request.
ORDERS = ("drain", "load_adapter", "unload_adapter")
_MAX_UNSENT_S = 2.0
_MAX_UNSENT_BYTES = 8_000_000
_BACKOFF_S = (0.05, 0.1, 0.2, 0.4, 0.8)


class Publisher:
    """`offer` on the event loop, `run` as a task. Raises LeaseLost out of `run`."""

    def __init__(
        self, stream: TokenStream, engine: Share, holdings: Holdings, identity: tuple[str, str],
        on_emit: Callable[[float, Emitted, list[Emission]], None], on_order: Callable[[str, list[str]], None],
    ) -> None:  # fmt: skip
        self._stream = stream
        self._engine = engine
        self._holdings = holdings
        self._identity = identity
        self._on_emit = on_emit
        self._on_order = on_order
        self._dirty: dict[str, None] = {}
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._unsent_bytes = 0
        self._unsent_since: float | None = None

    def offer(self, outputs: Iterable[StepOutput]) -> None:
        """What a step made. Outputs of requests no longer held are dropped."""
        for output in outputs:
            held = self._holdings.get(output.request_id)
            if held is not None:
                before = len(held.journal)
                held.add(output)
                self._unsent_bytes += len(held.journal) - before
                self._dirty[output.request_id] = None
        if self._dirty:
            self._unsent_since = self._unsent_since or time.monotonic()
            self._hold_engine_back()
            self._idle.clear()
            self._wake.set()

    async def flush(self) -> None:
        """Returns when everything offered so far was sent."""
        await self._idle.wait()

    async def run(self) -> None:
        failures = 0
        while True:
            await self._wake.wait()
            self._wake.clear()
            while emissions := self._collect():
                try:
                    await self._emit(emissions)
                    failures = 0
                except AWAY as error:
                    delay_s = _BACKOFF_S[min(failures, len(_BACKOFF_S) - 1)]
                    failures += 1
                    log.warning("emit_failed", extra={"error": str(error), "retry_in_s": delay_s})
                    self._hold_engine_back()
                    await asyncio.sleep(delay_s)
            self._rest()

    def _rest(self) -> None:
        """Nothing is left to send."""
        self._unsent_bytes, self._unsent_since = 0, None
        self._engine.pause(is_paused=False)
        self._idle.set()

    def _collect(self) -> list[Emission]:
        held = [self._holdings.get(request_id) for request_id in self._dirty]
        unsent = [h for h in held if h is not None and len(h.journal) > h.sent]
        # What was settled meanwhile has nothing to send any more.
        self._dirty = dict.fromkeys(h.request_id for h in unsent)
        return [h.emission() for h in unsent]

    async def _emit(self, emissions: list[Emission]) -> None:
        started = time.perf_counter()
        await faults.hit("before_emit")
        emitted = await self._stream.emit(*self._identity, emissions)
        await faults.hit("after_emit_before_reply")
        self._on_emit(time.perf_counter() - started, emitted, emissions)
        for request_id, length in emitted.lost.items():
            held = self._holdings.get(request_id)
            if held is not None:
                held.rewind(length)
        for emission in emissions:
            if emission.request_id in emitted.fenced:
                await self._holdings.settle(emission.request_id, emission.owner, Settlement.FENCED)
        if emitted.is_published:
            for emission in emissions:
                await self._advance(emission)
        await self.obey(emitted.commands)

    async def _advance(self, emission: Emission) -> None:
        """This emission is in Redis; what came since stays to be sent."""
        held = self._holdings.get(emission.request_id)
        if held is None or held.owner != emission.owner:
            return
        held.advance(emission)
        if len(held.journal) == held.sent:
            self._dirty.pop(emission.request_id, None)
        if emission.final:
            await self._holdings.settle(held.request_id, held.owner, Settlement.EMITTED)

    async def obey(self, commands: Iterable[bytes]) -> None:
        """Commands left for this worker, by emit and heartbeat alike."""
        for raw in commands:
            name, *args = orjson.loads(raw)
            if name in ORDERS:
                self._on_order(name, args)
                continue
            held = self._holdings.get(args[0]) if args else None
            if held is None:
                continue
            elif name == "cancel":
                await self._holdings.settle(held.request_id, held.owner, Settlement.CANCELLED)
            elif name == "attach":
                held.gateways.add(args[1])
            elif name == "detach":
                held.gateways.discard(args[1])

    def _hold_engine_back(self) -> None:
        waited_s = time.monotonic() - self._unsent_since if self._unsent_since else 0.0
        if waited_s > _MAX_UNSENT_S or self._unsent_bytes > _MAX_UNSENT_BYTES:
            self._engine.pause(is_paused=True)
