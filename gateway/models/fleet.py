"""The models a gateway knows, learned from workers through Redis: cards, tokenizers, how their queues move.

A read cache, refreshed every `model_poll_s`; it keeps its last state while Redis is away. A name finds the
newest revision that has live workers, else the newest.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from redis.exceptions import RedisError

from gateway.admission import DrainRate
from gateway.models.choice import NO_WORKERS, NOT_REGISTERED, PAUSED
from shared import keys
from shared.config import GatewaySettings
from shared.errors import HeadraceError, ModelNotFound, Unavailable
from shared.observability import GatewayMetrics
from shared.redis_client import Scripts, end_tasks
from shared.registry import Registry
from shared.request_queue import RequestQueue
from shared.schemas import ModelCard
from shared.text.tokenizer import Tokenizer, decode_blob

_FORGET_S = 60.0
log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Known:
    """`seen_at`: when its card was last in Redis (monotonic)."""

    card: ModelCard
    num_workers: int = 0
    is_paused: bool = False
    seen_at: float = field(default_factory=time.monotonic)
    drain: DrainRate = field(default_factory=DrainRate)


def model_not_found(name: str, names: Sequence[str]) -> ModelNotFound:
    available = ", ".join(names) or "none"
    return ModelNotFound(f"The model '{name[:200]}' does not exist. Available models: {available}", param="model")


class Fleet:
    """start, then read; stop."""

    def __init__(self, settings: GatewaySettings, scripts: Scripts, metrics: GatewayMetrics) -> None:
        self._settings = settings
        self._scripts = scripts
        self._registry = Registry(scripts)
        self._metrics = metrics
        self._known: dict[str, _Known] = {}
        self._tokenizers: dict[str, Tokenizer] = {}
        self._has_loaded = False

    async def start(self) -> None:
        await self._try_refresh()
        self._poller = asyncio.create_task(self._poll())

    async def stop(self) -> None:
        await end_tasks(self._poller)

    def cards(self) -> list[ModelCard]:
        """One card a name."""
        return [self._best(name).card for name in sorted({known.card.name for known in self._known.values()})]

    def revisions(self) -> list[str]:
        """Every model revision known: where a request may be."""
        return list(self._known)

    def find(self, name: str) -> ModelCard:
        """The card of a model name or of one of its revisions. Raises ModelNotFound, Unavailable."""
        card = self.known(name)
        if card is None:
            raise self.unknown(name)
        return card

    def known(self, name: str) -> ModelCard | None:
        """As `find`; None where there is none."""
        known = self._find(name)
        return known.card if known else None

    def unknown(self, name: str) -> HeadraceError:
        """What is to be raised of a name that nobody knows."""
        if not self._has_loaded:
            return Unavailable("the queue is not reachable yet")
        for revision, why in self._registry.newer.items():
            if name in (revision, revision.rpartition("@")[0]):
                return Unavailable(f"the model '{name[:200]}' cannot be served by this gateway: {why}")
        return model_not_found(name, self.names())

    def names(self) -> list[str]:
        """What can be asked."""
        return [card.name for card in self.cards()]

    def trouble_of(self, name: str) -> str:
        """Why a model or revision serves nothing now, in a word; '' where it does."""
        known = self._find(name)
        if known is None:
            return NOT_REGISTERED
        if known.is_paused:
            return PAUSED
        return "" if known.num_workers else NO_WORKERS

    def workers(self) -> dict[str, int]:
        """Live workers by model name."""
        numbers: dict[str, int] = {}
        for known in self._known.values():
            numbers[known.card.name] = numbers.get(known.card.name, 0) + known.num_workers
        return numbers

    def paused(self) -> list[str]:
        """Revisions an operator has paused."""
        return sorted(revision for revision, known in self._known.items() if known.is_paused)

    def drain_per_s(self, model: str) -> float:
        """Requests of a model taken from its queue a second, when some waited last; 0: not known."""
        known = self._known.get(model)
        return known.drain.per_s if known else 0.0

    async def tokenizer(self, card: ModelCard) -> Tokenizer:
        """Loaded once a digest. Raises Unavailable when Redis does not have it."""
        tokenizer = self._tokenizers.get(card.tokenizer_digest)
        if tokenizer is None:
            raw = await self._registry.tokenizer(card.tokenizer_digest)
            if raw is None:
                raise Unavailable(f"the tokenizer of {card.name} is not registered yet")
            tokenizer = await asyncio.to_thread(lambda: Tokenizer.from_blob(decode_blob(raw)))
            self._tokenizers[card.tokenizer_digest] = tokenizer
        return tokenizer

    async def is_ready(self, min_workers: int) -> tuple[bool, str]:
        """Whether requests can be accepted now and at least `min_workers` live, and why not."""
        try:
            await self._scripts.client.ping()
        except (RedisError, OSError) as error:
            return False, f"Redis is away: {error}"
        if not self._known:
            return False, "no model is registered yet"
        num_workers = sum(self.workers().values())
        if num_workers < min_workers:
            return False, f"{num_workers} of {min_workers} workers are up"
        return True, ""

    def _find(self, name: str) -> _Known | None:
        if name in self._known:
            return self._known[name]
        return self._best(name) if any(known.card.name == name for known in self._known.values()) else None

    def _best(self, name: str) -> _Known:
        same = [known for known in self._known.values() if known.card.name == name]
        return max(same, key=lambda known: (known.num_workers > 0, known.card.created_s))

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(self._settings.model_poll_s)
            await self._try_refresh()

    async def _try_refresh(self) -> None:
        try:
            await self._refresh()
            self._has_loaded = True
            self._metrics.redis_up.set(1)
        except (RedisError, OSError) as error:
            self._metrics.redis_up.set(0)
            log.warning("catalogue_refresh_failed", extra={"error": str(error)})

    async def _refresh(self) -> None:
        cards = await self._registry.models()
        # A server that lost the cards gets them back from its workers: meanwhile a known model is no 404.
        for gone in self._known.keys() - {card.revision for card in cards}:
            if time.monotonic() - self._known[gone].seen_at > _FORGET_S:
                del self._known[gone]
        for card in cards:
            known = self._known.setdefault(card.revision, _Known(card))
            known.card, known.seen_at = card, time.monotonic()
            await self._refresh_queue(known)
            await self.tokenizer(card)
        paused = {known.card.name for known in self._known.values() if known.is_paused}
        for known in self._known.values():
            self._metrics.model_paused.labels(known.card.name).set(known.card.name in paused)

    async def _refresh_queue(self, known: _Known) -> None:
        revision, name = known.card.revision, known.card.name
        queue = RequestQueue(self._scripts, revision, self._settings.retention_s, self._settings.lease_ms)
        counts = await queue.counts()
        known.is_paused = await self._scripts.client.exists(keys.paused(revision)) == 1
        known.num_workers = await self._registry.num_live_workers(revision)
        is_draining = counts.get("waiting", 0) > 0 and known.num_workers > 0 and not known.is_paused
        known.drain.observe(counts.get("takes", 0), time.monotonic(), is_draining=is_draining)
        self._metrics.queue_depth.labels(name).set(counts.get("waiting", 0))
        self._metrics.queue_tokens.labels(name).set(counts.get("waiting_tokens", 0))
        self._metrics.queue_in_flight.labels(name).set(counts.get("running", 0))
        self._metrics.workers.labels(name).set(known.num_workers)
