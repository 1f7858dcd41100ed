"""The engine: requests in, journal frames out, one step at a time. Every backend that schedules for itself is
this class with its own executor.

Synchronous, owned by one thread. Knows no model code, no Redis, no asyncio: the executor, the text decoder and
the clock are given to it. Invariants (worker/backends/interface.py): a request not aborted ends with exactly one
output that has an outcome; its tokens depend on its prompt, parameters and seed only.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from shared.errors import HeadraceError, RequestFailed
from shared.schemas import ModelCard, Prefix, Request, TokenizerBlob, TokenLogprobs
from worker.engine.adapters import NO_ADAPTER, AdapterShelf
from worker.engine.executor import Computed, Executor, Launched, NewTokens, Schedule, Scores, Taken, Work
from worker.engine.ledger import Ledger
from worker.engine.outputs import EngineLoad, StepOutput
from worker.engine.request import (
    Arrival,
    LiveRequest,
    Sequence,
    Vocabulary,
    check_servable,
    open_request,
    output_not_finite,
)
from worker.engine.scheduling.scheduler import Scheduler
from worker.engine.stats import SYSTEM_CLOCK, Clock, StepRecorder


@dataclass(slots=True)
class Flight:
    """A step that was launched: when it began to be scheduled, and when that was done."""

    schedule: Schedule
    work: Work
    launched: Launched
    began: float
    scheduled: float


class EngineCore:
    """`_next` is a step that was launched ahead; the one before it has ended, at `_executed`, when `step` returns."""

    resume_exact = True

    def __init__(  # noqa: PLR0913 - what an engine is made of, each by its name
        self,
        card: ModelCard,
        tokenizer_blob: TokenizerBlob,
        *,
        scheduler: Scheduler,
        executor: Executor,
        vocabulary: Vocabulary,
        clock: Clock = SYSTEM_CLOCK,
        adapters: AdapterShelf | None = None,
    ) -> None:
        self.card = card
        self.adapters = adapters
        self.tokenizer_blob = tokenizer_blob
        self._scheduler = scheduler
        self._executor = executor
        self._vocabulary = vocabulary
        self._clock = clock
        self.recorder = StepRecorder(clock.seconds)
        self._max_tokens = min(card.max_request_tokens, scheduler.kv.capacity_tokens)
        self._ledger = Ledger(clock.unix_ms)
        self._num_added = 0
        self._num_steps = 0
        self._next: Flight | None = None
        self._executed = 0.0

    def add(self, request: Request, prefixes: SequenceOf[Prefix]) -> None:
        """See the Engine contract. An id added again replaces the earlier one: a worker that lost a lease may
        be given the same request before it learned of the loss."""
        self.abort([request.request_id])
        self._num_added += 1
        try:
            live = self._open(request, prefixes)
        except HeadraceError as error:
            self._ledger.refuse(request.request_id, error)
            return
        self._ledger.open(live)
        if live.scorer.num_tokens_to_score:
            self._scheduler.add(live.scorer)
            return
        for sequence, prefix in zip(live.sequences, prefixes, strict=True):
            if sequence.finish_reason is None:
                self._scheduler.add(sequence)
            elif prefix.finish_reason is None:
                self._ledger.end_resumed(sequence)
        self._ledger.settle_if_ended(live)

    def abort(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            for sequence in self._ledger.forget(request_id):
                self._scheduler.drop(sequence)

    def step(self) -> list[StepOutput]:
        """Where the next step can be foreseen it is launched before this one is waited for."""
        flight, self._next = self._next or self._launch(), None
        schedule = flight.schedule
        following = self._scheduler.foresee(schedule)
        if following is not None:
            self._next = self._launch(following, flight)
        made = flight.launched.wait()
        executed = self._clock.seconds()
        taken = self._scheduler.update(schedule, made.token_ids)
        outputs = self._collect(schedule, made, taken)
        self._num_steps += 1
        if schedule.chunks:
            self._record(flight, executed)
        return outputs

    def has_work(self) -> bool:
        return not self._ledger.is_empty

    def forget_prefixes(self) -> None:
        self._scheduler.kv.forget_free()

    def load(self) -> EngineLoad:
        scheduler = self._scheduler
        return EngineLoad(
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            free_slots=scheduler.free_slots(),
            free_tokens=scheduler.free_tokens(),
            kv_blocks_total=scheduler.kv.pool.total,
            kv_blocks_used=scheduler.kv.num_used,
            preemptions=scheduler.num_preemptions,
            steps=self._num_steps,
            last_step=self.recorder.last,
        )

    def close(self) -> None:
        if self._next is not None:
            self._next.launched.wait()
        self._executor.close()

    def _launch(self, following: Schedule | None = None, before: Flight | None = None) -> Flight:
        """The step that is due, or one that follows a step under way."""
        began = self._clock.seconds()
        schedule = following or self._scheduler.schedule()
        scheduled, work = self._clock.seconds(), schedule.work()
        if not schedule.chunks:
            return Flight(schedule, work, Computed(NewTokens([])), began, scheduled)
        launched = self._executor.launch(schedule, before and before.launched)
        return Flight(schedule, work, launched, began, scheduled)

    def _open(self, request: Request, prefixes: SequenceOf[Prefix]) -> LiveRequest:
        check_servable(request, prefixes, max_tokens=self._max_tokens, vocab_size=self.card.vocab_size)
        adapter = NO_ADAPTER if self.adapters is None else self.adapters.slot_of(request.model)
        salt = self._scheduler.kv.salt_of(request.tenant, "" if adapter == NO_ADAPTER else request.model)
        return open_request(
            request,
            prefixes,
            arrival=Arrival(self._num_added, self._clock.seconds(), salt),
            eos_ids=self.card.stop_token_ids,
            vocabulary=self._vocabulary,
            adapter=adapter,
        )

    def _collect(self, schedule: Schedule, made: NewTokens, taken: list[Taken]) -> list[StepOutput]:
        for sequence in schedule.preempted:
            self._ledger.tell_preempted(sequence)
        self._tell_prompts(made.scored)
        ended: list[Sequence] = []
        for sequence, new in zip(schedule.sampled, taken, strict=True):
            if not new.token_ids:
                continue  # it was gone when the step ended
            self._emit(sequence, new, made.logprobs.get(new.sample))
            if sequence.finish_reason is not None:
                ended.append(sequence)
        for sequence in ended:
            if sequence.request_id in self._ledger.live:
                self._ledger.settle_if_ended(self._ledger.live[sequence.request_id])
        return self._ledger.take()

    def _tell_prompts(self, scores: Scores) -> None:
        """Logprobs of prompts, each once; where all of one are told its answers can begin."""
        for sequence, logprobs in scores.items():
            live = self._ledger.live.get(sequence.request_id)
            if live is None or live.scorer is not sequence:
                continue  # it was gone when the step ended
            if logprobs is None:
                self._scheduler.kv.distrust(sequence)
                self._fail(sequence.request_id, output_not_finite())
                continue
            self._ledger.tell_prompt(sequence, logprobs)
            if not sequence.num_tokens_to_score:
                self._begin_answers(live)

    def _begin_answers(self, live: LiveRequest) -> None:
        """The prompt is scored by one choice. The others find it in the cache; of no tokens all are over."""
        if live.request.params.max_tokens:
            for sequence in live.sequences[1:]:
                sequence.num_scored_tokens = live.scorer.num_scored_tokens
                self._scheduler.add(sequence)
            return
        self._scheduler.drop(live.scorer)
        self._ledger.end_without_tokens(live)

    def _emit(self, sequence: Sequence, new: Taken, logprobs: TokenLogprobs | None) -> None:
        if sequence.request_id not in self._ledger.live:
            return  # another choice of the request failed in this step
        if sequence.failure is not None:
            self._fail(sequence.request_id, sequence.failure)
            return
        self._ledger.tell_tokens(sequence, new.token_ids, new.text, logprobs)

    def _fail(self, request_id: str, failure: RequestFailed) -> None:
        """A choice cannot be what was asked for: the whole request ends, what this step made of it is dropped."""
        self.abort([request_id])
        self._ledger.refuse(request_id, failure)

    def _record(self, flight: Flight, executed: float) -> None:
        """A step that was launched while another ran took from the end of that one on."""
        scheduler = self._scheduler
        began, scheduled = max(flight.began, self._executed), max(flight.scheduled, self._executed)
        self._executed = executed
        stats = self.recorder.record(
            flight.schedule,
            flight.work,
            (began, scheduled, executed),
            num_waiting=len(scheduler.waiting),
            num_used=scheduler.kv.num_used,
        )
        if not flight.schedule.scored:  # whose logits cost what no other prompt's do
            scheduler.pace.model.observe(flight.work, stats.seconds)
