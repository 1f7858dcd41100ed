"""The fleets in virtual time: the real scripts on a real server and the real engines, but their clock is ours.

A step takes the time it says it costs and nothing else takes any, so a busy machine changes nothing and a run repeats
to the last figure. Workers ask as worker/consumer.py does: when they are rung, when they have taken something, 50 ms
later when what waits is not for them.
"""

from __future__ import annotations

import heapq
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from loadtest.locality.conversations import Answered, Conversation, possible_tokens
from loadtest.locality.variants import NUM_WORKERS, PREFILL_US, SLOTS, STEP_US, Variant
from shared import keys
from shared.redis_client import Scripts
from shared.request_queue import Bounds, Delivery, RequestQueue, Ticket
from shared.schemas import EndFrame, Prefix, Request, SamplingParams, TokensFrame, encode_frames
from shared.text.prefixes import NO_PREFIXES, prefixes_of
from shared.token_stream import Emission, TokenStream
from worker.backends.simulated import SimulatedConfig, build_simulated
from worker.engine.outputs import StepOutput
from worker.engine.scheduling.config import SchedulerConfig

ASKS_AGAIN_MS, LISTENS_MS, WAKES_MS = 50, 850, 1
LEASE_MS = 3_600_000
STARTS_MS = 1_764_500_000_000
TIMED = {
    "local time = redis.call('TIME')": "local time = {0, 1000 * redis.call('GET', 'clock')}",
    "base .. stream, '*'": "base .. stream, now .. '-*'",
    "redis.call('PEXPIRE', lane, lane_ms)": "",  # it would run out by the server's own clock
}


class TimedScripts(Scripts):
    """The scripts, told the time by the key `clock`."""

    def text(self, name: str) -> str:
        text = super().text(name)
        for old, new in TIMED.items():
            text = text.replace(old, new)
        return text


@dataclass(slots=True)
class Asked:
    """A turn under way."""

    conversation: Conversation
    turn: int
    prompt: list[int]
    possible_tokens: int
    asked_ms: float
    first_ms: float = 0.0
    answer: list[int] = field(default_factory=list[int])


@dataclass(slots=True)
class Holding:
    delivery: Delivery
    offset: int


class Fleet:
    """`hold` runs all events in the order of their time, one after the other."""

    def __init__(self, client: Any, variant: Variant) -> None:
        self._client = client
        self.variant = variant
        self.scripts = TimedScripts(client)
        self.now_ms = 0.0
        self.answered: list[Answered] = []
        self.undone: dict[str, Asked] = {}
        self._events: list[tuple[float, int, Callable[[], Awaitable[None]]]] = []
        self._num_events = 0
        models = NUM_WORKERS if variant.is_sticky else 1
        self._queues = [RequestQueue(self.scripts, f"m{i}@0123456789ab", 60, LEASE_MS) for i in range(models)]
        self._workers = [Worker(self, self._queues[i % models], f"w{i}") for i in range(NUM_WORKERS)]

    def at(self, time_ms: float, event: Callable[[], Awaitable[None]]) -> None:
        self._num_events += 1
        heapq.heappush(self._events, (time_ms, self._num_events, event))

    async def hold(self, conversations: list[Conversation]) -> list[Answered]:
        await self._tell_time(0)
        for worker in self._workers:
            await worker.queue.register(worker.name, "nonce", b"{}")
            self.at(0, worker.ask)
        for conversation in conversations:
            self.at(conversation.begins_s * 1000, lambda c=conversation: self._ask(c, 1, list(c.system), 0))
        while len(self.answered) < sum(len(conversation.turns) for conversation in conversations):
            time_ms, _, event = heapq.heappop(self._events)
            await self._tell_time(time_ms)
            await event()
        return self.answered

    async def lanes(self) -> tuple[int, int]:
        """Kept requests, taken by whom they were kept for, and by others."""
        counts = [await queue.counts() for queue in self._queues]
        hits, misses = (sum(int(c.get(name, 0)) for c in counts) for name in ("lane_hits", "lane_misses"))
        return hits, misses

    async def ring(self) -> None:
        """Who was rung comes."""
        for worker in self._workers:
            if worker.is_listening and await self._client.delete(keys.bell(worker.queue.model, worker.name)):
                worker.is_listening = False
                self.at(self.now_ms + WAKES_MS, worker.ask)

    def told(self, output: StepOutput) -> None:
        """What its client is sent after a step; at the end it reads, and asks again."""
        asked = self.undone[output.request_id]
        for frame in output.frames:
            if isinstance(frame, TokensFrame):
                asked.first_ms = asked.first_ms or self.now_ms
                asked.answer += frame.token_ids
            if isinstance(frame, EndFrame):
                self._end(output.request_id, asked, frame)

    async def _tell_time(self, time_ms: float) -> None:
        self.now_ms = time_ms
        await self._client.set("clock", str(int(STARTS_MS + time_ms)))

    async def _ask(self, conversation: Conversation, number: int, before: list[int], known: int) -> None:
        turn, request_id = conversation.turns[number - 1], f"r-{conversation.number}-{number}"
        prompt = [*before, *turn.question]
        self.undone[request_id] = Asked(conversation, number, prompt, possible_tokens(known), self.now_ms)
        queue = self._queues[conversation.number % len(self._queues)]
        prefixes = prefixes_of(prompt, "t") if self.variant.lane_ms else NO_PREFIXES
        ticket = Ticket(
            request_id, "default", "t", len(prompt), turn.answer_tokens, 1, lane_ms=self.variant.lane_ms,
            prefixes=prefixes,
        )  # fmt: skip
        assert (await queue.admit(ticket, b"{}", Bounds(0, 0, 0), gateway="g")).decision == "accepted"
        await self.ring()

    def _end(self, request_id: str, asked: Asked, end: EndFrame) -> None:
        assert end.usage is not None and end.usage.prompt_tokens == len(asked.prompt), end
        conversation, turn = asked.conversation, asked.conversation.turns[asked.turn - 1]
        self.answered.append(
            Answered(
                asked.turn, (asked.first_ms - asked.asked_ms) / 1000, len(asked.prompt), end.usage.cached_tokens,
                asked.possible_tokens,
            )
        )  # fmt: skip
        del self.undone[request_id]
        if asked.turn < len(conversation.turns):
            so_far = [*asked.prompt, *asked.answer]
            following = asked.turn + 1
            self.at(
                self.now_ms + turn.reading_s * 1000,
                lambda: self._ask(conversation, following, so_far, len(so_far) - 1),
            )


class Worker:
    """One engine and its way in. It steps while it has work."""

    def __init__(self, fleet: Fleet, queue: RequestQueue, name: str) -> None:
        self.queue = queue
        self.name = name
        self.is_listening = False
        self._fleet = fleet
        self._stream = TokenStream(fleet.scripts, queue.model, 60, LEASE_MS)
        self._held: dict[str, Holding] = {}
        self._cost_ms = 0.0
        self._is_stepping = False
        self._wants_room = False
        config = SimulatedConfig(
            scheduling=SchedulerConfig(max_num_seqs=SLOTS, itl_target_ms=0, prefix_cache=fleet.variant.prefix_cache),
            kv_cache_tokens=fleet.variant.kv_tokens, prefill_us_per_token=PREFILL_US, step_us=STEP_US,
        )  # fmt: skip
        self._engine = build_simulated(config, sleep=self._take_time)

    async def ask(self) -> None:
        load = self._engine.load()
        self._wants_room = False
        if load.free_slots == 0:
            self._wants_room = True
            return
        taken = await self.queue.take(self.name, "nonce", slots=load.free_slots, room=load.free_tokens)
        for delivery in taken.deliveries:
            self._held[delivery.request_id] = Holding(delivery, len(delivery.journal))
            asked = self._fleet.undone[delivery.request_id]
            max_tokens = asked.conversation.turns[asked.turn - 1].answer_tokens
            params = SamplingParams(max_tokens=max_tokens, seed=1, temperature=0, ignore_eos=True)
            request = Request(
                request_id=delivery.request_id, model="m", prompt_ids=tuple(asked.prompt), params=params, tenant="t"
            )
            self._engine.add(request, [Prefix()])
        await self._fleet.ring()
        self._ask_again(len(taken.deliveries), taken.num_waiting)
        if not self._is_stepping:
            self._step()

    def _ask_again(self, num_taken: int, num_waiting: int) -> None:
        if num_taken:
            self._fleet.at(self._fleet.now_ms, self.ask)
        elif num_waiting:
            self._fleet.at(self._fleet.now_ms + ASKS_AGAIN_MS, self.ask)
        else:
            self.is_listening = True
            self._fleet.at(self._fleet.now_ms + LISTENS_MS, self._ask_if_nobody_rang)

    async def _ask_if_nobody_rang(self) -> None:
        if self.is_listening:
            self.is_listening = False
            await self.ask()

    def _step(self) -> None:
        self._is_stepping = self._engine.has_work()
        if self._is_stepping:
            self._cost_ms = 0.0
            outputs = self._engine.step()
            self._fleet.at(self._fleet.now_ms + max(self._cost_ms, 0.01), lambda: self._end_step(outputs))

    async def _end_step(self, outputs: list[StepOutput]) -> None:
        emissions = [self._emission(output) for output in outputs]
        if emissions:
            assert (await self._stream.emit(self.name, "nonce", emissions)).is_published
        for output in outputs:
            self._fleet.told(output)
        if self._wants_room and self._engine.load().free_slots:
            await self.ask()
        self._is_stepping = False
        self._step()

    def _emission(self, output: StepOutput) -> Emission:
        holding, frames = self._held[output.request_id], encode_frames(output.frames)
        final = str(output.outcome.value) if output.outcome else ""
        d, offset = holding.delivery, holding.offset
        holding.offset += len(frames)
        return Emission(
            d.request_id, d.owner, offset, frames, output.num_tokens, d.gateways, final, b"{}" if final else b""
        )

    def _take_time(self, seconds: float) -> None:
        self._cost_ms += seconds * 1000
