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
from shared.schemas import (
    ChoiceEndFrame,
    EndFrame,
    ErrorInfo,
    EventFrame,
    ModelCard,
    Outcome,
    Prefix,
    PromptFrame,
    Request,
    TokenizerBlob,
    TokenLogprobs,
    TokensFrame,
)
from worker.engine.executor import Computed, Executor, Launched, NewTokens, Schedule, Scores, Taken, Work
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
    """`_outputs` is what the next step returns: filled by the step, and by `add` for what ends at the door. `_next` is
    a step that was launched ahead; the one before it has ended, at `_executed`, when `step` returns."""

    resume_exact = True

    def __init__(
        self,
        card: ModelCard,
        tokenizer_blob: TokenizerBlob,
        *,
        scheduler: Scheduler,
        executor: Executor,
        vocabulary: Vocabulary,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.card = card
        self.tokenizer_blob = tokenizer_blob
        self._scheduler = scheduler
        self._executor = executor
        self._vocabulary = vocabulary
        self._clock = clock
        self.recorder = StepRecorder(clock.seconds)
        self._max_tokens = min(card.max_request_tokens, scheduler.kv.capacity_tokens)
        self._live: dict[str, LiveRequest] = {}
        self._outputs: dict[str, StepOutput] = {}
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
            self._refuse(request.request_id, error)
            return
        self._live[request.request_id] = live
        if live.scorer.num_tokens_to_score:
            self._scheduler.add(live.scorer)
            return
        for sequence, prefix in zip(live.sequences, prefixes, strict=True):
            if sequence.finish_reason is None:
                self._scheduler.add(sequence)
            elif prefix.finish_reason is None:
                self._end_resumed(sequence)
        self._settle_if_ended(live)

    def abort(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            self._outputs.pop(request_id, None)
            live = self._live.pop(request_id, None)
            if live is not None:
                for sequence in live.sequences:
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
        return bool(self._live or self._outputs)

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
        return open_request(
            request,
            prefixes,
            arrival=Arrival(self._num_added, self._clock.seconds(), self._scheduler.kv.salt_of(request.tenant)),
            eos_ids=self.card.stop_token_ids,
            vocabulary=self._vocabulary,
        )

    def _refuse(self, request_id: str, error: HeadraceError) -> None:
        output = self._output_of(request_id)
        output.frames.append(EndFrame(Outcome.FAILED, None, ErrorInfo(error.code, error.message)))
        output.outcome = Outcome.FAILED

    def _end_resumed(self, sequence: Sequence) -> None:
        """The journaled tokens ended the choice, but the journal was cut before it said so."""
        frames = self._output_of(sequence.request_id).frames
        text = sequence.detokenizer.take_owed()
        if text:
            frames.append(TokensFrame(sequence.choice, [], text))
        frames.append(ChoiceEndFrame(sequence.choice, str(sequence.finish_reason)))

    def _collect(self, schedule: Schedule, made: NewTokens, taken: list[Taken]) -> list[StepOutput]:
        for sequence in schedule.preempted:
            event = EventFrame("preempted", {"choice": sequence.choice, "at": self._clock.unix_ms()})
            self._output_of(sequence.request_id).frames.append(event)
        self._tell_prompts(made.scored)
        ended: list[Sequence] = []
        for sequence, new in zip(schedule.sampled, taken, strict=True):
            if not new.token_ids:
                continue  # it was gone when the step ended
            self._emit(sequence, new, made.logprobs.get(new.sample))
            if sequence.finish_reason is not None:
                ended.append(sequence)
        for sequence in ended:
            if sequence.request_id in self._live:
                self._settle_if_ended(self._live[sequence.request_id])
        outputs, self._outputs = self._outputs, {}
        return list(outputs.values())

    def _tell_prompts(self, scores: Scores) -> None:
        """Logprobs of prompts, each once; where all of one are told its answers can begin."""
        for sequence, logprobs in scores.items():
            live = self._live.get(sequence.request_id)
            if live is None or live.scorer is not sequence:
                continue  # it was gone when the step ended
            if logprobs is None:
                self._scheduler.kv.distrust(sequence)
                self._fail(sequence.request_id, output_not_finite())
                continue
            sequence.num_scored_tokens += len(logprobs)
            self._output_of(sequence.request_id).frames.append(PromptFrame(tuple(logprobs)))
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
        for sequence in live.sequences:
            sequence.finish_reason = "length"
            self._end_resumed(sequence)
        self._settle_if_ended(live)

    def _emit(self, sequence: Sequence, new: Taken, logprobs: TokenLogprobs | None) -> None:
        live = self._live.get(sequence.request_id)
        if live is None:
            return  # another choice of the request failed in this step
        if sequence.failure is not None:
            self._fail(sequence.request_id, sequence.failure)
            return
        output = self._output_of(sequence.request_id)
        if not live.has_first_token:
            live.has_first_token = True
            output.frames.append(EventFrame("first_token", {"at": self._clock.unix_ms()}))
        told = None if logprobs is None or new.token_ids[-1] in sequence.stop_ids else (logprobs,)
        output.frames.append(TokensFrame(sequence.choice, new.token_ids, new.text, told))
        output.num_tokens += len(new.token_ids)
        if sequence.finish_reason is not None:
            output.frames.append(ChoiceEndFrame(sequence.choice, sequence.finish_reason))

    def _fail(self, request_id: str, failure: RequestFailed) -> None:
        """A choice cannot be what was asked for: the whole request ends, what this step made of it is dropped."""
        self.abort([request_id])
        self._refuse(request_id, failure)

    def _settle_if_ended(self, live: LiveRequest) -> None:
        if not live.is_ended:
            return
        request_id = live.request.request_id
        output = self._output_of(request_id)
        output.frames.append(EndFrame(Outcome.FINISHED, live.usage()))
        output.outcome = Outcome.FINISHED
        del self._live[request_id]

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

    def _output_of(self, request_id: str) -> StepOutput:
        output = self._outputs.get(request_id)
        if output is None:
            output = self._outputs[request_id] = StepOutput(request_id)
        return output
