"""One subscription per gateway, demultiplexed to the requests it holds; finds gaps, reads the journal.

Pub/sub is a hint. A message that does not continue what was delivered starts a repair; a watchdog compares all
requests with their journals, and a subscription that misses what the journals got is made anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import Any

from redis.exceptions import RedisError

from gateway.subscription import Fit, Subscription
from shared import faults, keys
from shared.config import GatewaySettings
from shared.errors import RequestNotFound, StreamContradiction
from shared.observability import GatewayMetrics
from shared.redis_client import Client, Scripts, connect, end_tasks
from shared.request_queue import Bounds, RequestQueue
from shared.token_stream import Repaired, Standing, TokenStream, decode_messages

log = logging.getLogger(__name__)
_POLL_S = 5.0
_RECONNECT_S = 0.2
_WAITING_EVERY = 10
_DEAF_CHECKS = 3
_NO_BOUNDS = Bounds(0, 0, 0)


class Fanout:
    """start, subscribe(model) before a model's first admission, add / remove requests, stop."""

    def __init__(self, settings: GatewaySettings, scripts: Scripts, gateway: str, metrics: GatewayMetrics) -> None:
        self._settings = settings
        self._scripts = scripts
        self._gateway = gateway
        self._metrics = metrics
        self._held: dict[str, Subscription] = {}
        self._models: set[str] = set()
        self._has_channels = asyncio.Event()
        self._is_subscribed = asyncio.Event()
        self._subscribing = asyncio.Lock()
        self._confirmed: set[bytes] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._missing: set[str] = set()
        self._heard: set[bytes] = set()
        self._deaf_checks = 0
        self._client: Client = connect(settings, blocking_s=_POLL_S)
        self._pubsub: Any = self._client.pubsub()

    def start(self) -> None:
        self._listener = asyncio.create_task(self._listen_forever())
        self._watchdog = asyncio.create_task(self._check_forever())

    async def stop(self) -> None:
        await end_tasks(self._listener, self._watchdog, *self._tasks)
        await self._pubsub.aclose()
        await self._client.aclose()

    def add(self, subscription: Subscription) -> None:
        self._held[subscription.request_id] = subscription

    def remove(self, request_id: str) -> None:
        self._held.pop(request_id, None)

    def catch_up(self, subscription: Subscription) -> None:
        """Read what the journal of a request that was joined already holds."""
        if not subscription.is_repairing:
            self._spawn_repair(subscription)

    def get(self, request_id: str) -> Subscription | None:
        return self._held.get(request_id)

    async def subscribe(self, model: str) -> None:
        """Returns when this gateway hears the model's messages. Raises RedisError, TimeoutError."""
        channel = keys.channel(model, self._gateway)
        if channel.encode() in self._confirmed:
            return
        self._models.add(model)
        async with self._subscribing:  # the first of two at a time would connect twice, and one be heard by nobody
            await self._pubsub.subscribe(channel)
        self._has_channels.set()
        async with asyncio.timeout(self._settings.redis_timeout_s):
            while channel.encode() not in self._confirmed:
                self._is_subscribed.clear()
                await self._is_subscribed.wait()

    # listening

    async def _listen_forever(self) -> None:
        while True:
            try:
                await self._listen()
            except (RedisError, OSError) as error:
                log.warning("subscription_lost", extra={"error": str(error)})
            await self._reconnect()

    async def _listen(self) -> None:
        await self._has_channels.wait()
        while True:
            message = await self._pubsub.get_message(timeout=_POLL_S)
            if message is None:
                continue
            if message["type"] == "subscribe":
                self._confirmed.add(message["channel"])
                self._is_subscribed.set()
            elif message["type"] == "message" and not await faults.hit("publish_drop"):
                self._heard.add(message["channel"])
                self._deliver(message["data"])

    async def _reconnect(self) -> None:
        """A new subscription, then everything compared with its journal: nothing in between may be missed."""
        self._metrics.redis_reconnects.inc()
        self._confirmed.clear()
        self._missing = set()
        with contextlib.suppress(RedisError, OSError):
            await self._pubsub.aclose()
        self._pubsub = self._client.pubsub()
        while True:
            await asyncio.sleep(_RECONNECT_S)
            missing = await self._subscribe_to(self._models)
            # On a Cluster only some of the nodes may be away: the others are listened to meanwhile.
            if len(missing) < len(self._models) or not self._models:
                break
        self._missing = missing
        for subscription in self._held.values():
            self._start_repair(subscription, "reconnect")

    async def _subscribe_to(self, models: set[str]) -> set[str]:
        """The models whose server is away."""
        missing: set[str] = set()
        for model in list(models):
            try:
                async with self._subscribing:
                    await self._pubsub.subscribe(keys.channel(model, self._gateway))
            except (RedisError, OSError) as error:
                missing.add(model)
                log.warning("resubscribe_failed", extra={"error": str(error), "model": model})
        return missing

    def _deliver(self, payload: bytes) -> None:
        for message in decode_messages(payload):
            subscription = self._held.get(message.request_id)
            if subscription is None or subscription.is_done:
                continue
            fit = subscription.offer(message)
            if fit in (Fit.GAP, Fit.OWNER):
                self._start_repair(subscription, fit.value)

    # repairing

    def _start_repair(self, subscription: Subscription, kind: str) -> None:
        if subscription.is_repairing or subscription.is_done or not subscription.is_admitted:
            return
        self._metrics.token_gaps.labels(kind).inc()
        self._spawn_repair(subscription)

    def _spawn_repair(self, subscription: Subscription) -> None:
        subscription.is_repairing = True
        task = asyncio.create_task(self._repair(subscription))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _repair(self, s: Subscription) -> None:
        """One comparison with the journal. What cannot be asked now is asked again by the watchdog."""
        stream = TokenStream(self._scripts, s.model, self._settings.retention_s, self._settings.lease_ms)
        try:
            await faults.hit("repair")
            prefix = bytes(s.journal)
            repaired = await stream.repair(s.request_id, self._gateway, prefix, s.owner)
            if repaired.verdict == "mismatch" and self._is_followed(s):
                prefix = bytes(s.journal)
                repaired = await stream.repair(s.request_id, self._gateway, prefix, s.owner, send_prefix=True)
            self._metrics.token_recoveries.labels(repaired.verdict).inc()
            # Meanwhile the last messages may have come, or the client may have left: then nothing is to be done.
            if self._is_followed(s):
                await self._apply(s, len(prefix), repaired)
            await self._leave_again(s)
        except (RedisError, OSError) as error:
            log.warning("repair_failed", extra={"request_id": s.request_id, "error": str(error)})
        finally:
            s.is_repairing = False

    def _is_followed(self, s: Subscription) -> bool:
        return self._held.get(s.request_id) is s and not s.is_done

    async def _apply(self, s: Subscription, prefix_length: int, repaired: Repaired) -> None:
        if repaired.verdict == "tail":
            s.splice(prefix_length, repaired)
        elif repaired.verdict == "gone":
            await self._bring_back(s) if s.body else self._miss(s)
        elif repaired.verdict == "requeued":
            s.owner = ""
        elif repaired.verdict == "contradiction":
            log.error("stream_contradiction", extra={"request_id": s.request_id, "num_bytes": prefix_length})
            s.fail(StreamContradiction("the stream cannot be continued: its journal was lost and made anew"))

    def _miss(self, s: Subscription) -> None:
        """Redis has lost a request that another gateway admitted: that one brings it back, if it lives."""
        s.missing_since = s.missing_since or time.monotonic()
        if time.monotonic() - s.missing_since > self._settings.lease_ms / 1000:
            s.fail(RequestNotFound(f"request {s.request_id} is not known any more"))

    async def _leave_again(self, s: Subscription) -> None:
        """A repair attaches: where the client left while it was under way, it has undone the leaving."""
        if not s.is_done and s.request_id not in self._held:
            queue = RequestQueue(self._scripts, s.model, self._settings.retention_s, self._settings.lease_ms)
            await queue.detach(s.request_id, self._gateway)

    async def _bring_back(self, s: Subscription) -> None:
        """Redis has lost an accepted request: admit it again with what its client already saw."""
        log.warning("request_brought_back", extra={"request_id": s.request_id, "num_bytes": len(s.journal)})
        queue = RequestQueue(self._scripts, s.model, self._settings.retention_s, self._settings.lease_ms)
        prefix = bytes(s.journal)
        await queue.admit(s.remaining_ticket(), s.body, _NO_BOUNDS, gateway=self._gateway, prefix=prefix, witness=True)
        s.owner = ""

    # watching

    async def _check_forever(self) -> None:
        turn = 0
        while True:
            await asyncio.sleep(self._settings.check_ms / 1000)
            turn += 1
            if self._missing:
                self._missing = await self._subscribe_to(self._missing)
            await self._check(waiting_too=turn % _WAITING_EVERY == 0)

    async def _check(self, *, waiting_too: bool) -> None:
        by_model: dict[str, list[Subscription]] = {}
        for s in self._held.values():
            if s.is_admitted and not s.is_done and (s.is_running or waiting_too):
                by_model.setdefault(s.model, []).append(s)
        heard, self._heard = self._heard, set()
        deaf_to: list[str] = []
        for model, held in by_model.items():
            try:
                num_behind = await self._check_model(model, held)
            except (RedisError, OSError) as error:
                log.warning("check_failed", extra={"error": str(error), "model": model})
                continue
            if num_behind and keys.channel(model, self._gateway).encode() not in heard:
                deaf_to.append(model)
        self._watch_for_deafness(deaf_to)

    async def _check_model(self, model: str, held: list[Subscription]) -> int:
        """How many are behind their journal."""
        stream = TokenStream(self._scripts, model, self._settings.retention_s, self._settings.lease_ms)
        standings = await stream.check([s.request_id for s in held])
        return sum(self._compare(s, standing) for s, standing in zip(held, standings, strict=True))

    def _compare(self, s: Subscription, standing: Standing) -> bool:
        """Repair where the journal is not where the client is and nothing has come for a whole period."""
        is_still = len(s.journal) == s.length_at_check
        s.length_at_check = len(s.journal)
        if s.is_level(standing):
            return False
        if standing.state != "gone" and standing.length > len(s.journal) and not is_still:
            return False
        self._start_repair(s, "silence" if standing.state != "gone" else "gone")
        return standing.length > len(s.journal)

    def _watch_for_deafness(self, deaf_to: list[str]) -> None:
        """Journals grow and no message comes: the connection only looks alive."""
        self._deaf_checks = self._deaf_checks + 1 if deaf_to else 0
        if self._deaf_checks >= _DEAF_CHECKS:
            log.warning("subscription_deaf", extra={"models": deaf_to})
            self._deaf_checks = 0
            self._listener.cancel()
            self._listener = asyncio.create_task(self._relisten())

    async def _relisten(self) -> None:
        await self._reconnect()
        await self._listen_forever()
