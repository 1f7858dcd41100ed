"""The engine over vLLM: requests in, journal frames out, one step of vLLM at a time.

vLLM schedules, keeps the blocks and computes. What a request is, what ends it, its text, and what is said of it is
ours as in every backend (`Sequence`, `Ledger`); its tokens are chosen by our sampler (choosing.py). A request is
resumed as a prompt that has its journaled tokens: they are computed as a prompt is, and all else goes on from there.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from math import isnan

from shared.errors import ContextLengthExceeded, HeadraceError, InvalidRequest, RequestFailed
from shared.schemas import ModelCard, Prefix, Request, SamplingParams, TokenizerBlob, TokenLogprobs
from worker.backends.vllm_engine.core import Entry, Made, VllmCore
from worker.backends.vllm_engine.room import Room, StepFigures
from worker.engine.kv_cache_manager import CacheScope
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
from worker.engine.stats import SYSTEM_CLOCK, Clock, StepStats


class VllmEngine:
    """`_running` has what vLLM holds, by key: a key names one run of one choice and is never used again."""

    def __init__(
        self,
        card: ModelCard,
        tokenizer_blob: TokenizerBlob,
        *,
        core: VllmCore,
        vocabulary: Vocabulary,
        scope: CacheScope = CacheScope.TENANT,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.card = card
        self.tokenizer_blob = tokenizer_blob
        # In half precision a prompt's logits differ from a decode's by more than now and then a tie.
        self.resume_exact = core.dtype == "float32"
        self._core = core
        self._vocabulary = vocabulary
        self._scope = scope
        self._clock = clock
        self._ledger = Ledger(clock.unix_ms)
        self._room = Room(core)
        self._running: dict[str, Sequence] = {}
        self._keys: dict[Sequence, str] = {}
        self._num_keys = 0
        self._num_added = 0
        self._num_steps = 0
        self._num_preemptions = 0
        self._last_step: StepStats | None = None

    def add(self, request: Request, prefixes: SequenceOf[Prefix]) -> None:
        """See the Engine contract; an id added again replaces the earlier one."""
        self.abort([request.request_id])
        self._num_added += 1
        try:
            live = self._open(request, prefixes)
            self._ledger.open(live)
            self._start(live, prefixes)
        except HeadraceError as error:
            self._fail(request.request_id, error)

    def abort(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            self._drop(self._ledger.forget(request_id))

    def step(self) -> list[StepOutput]:
        if not self._running:
            return self._ledger.take()
        began = self._clock.seconds()
        made = self._core.step()
        executed = self._clock.seconds()
        figures = self._look(made)
        for one in made:
            self._take(one)
        outputs = self._ledger.take()
        self._num_steps += 1
        self._last_step = figures.as_stats(executed - began, self._clock.seconds() - executed)
        return outputs

    def has_work(self) -> bool:
        return not self._ledger.is_empty

    def forget_prefixes(self) -> None:
        """Only when nothing runs: vLLM forgets all or none."""
        self._core.forget_prefixes()

    def load(self) -> EngineLoad:
        num_running, num_waiting = self._core.num_running_and_waiting()
        return EngineLoad(
            num_running=num_running,
            num_waiting=num_waiting,
            free_slots=max(0, self._core.max_num_seqs - num_running - num_waiting),
            free_tokens=self._room.free_tokens(self._running),
            kv_blocks_total=self._core.num_blocks,
            kv_blocks_used=self._room.num_used,
            preemptions=self._num_preemptions,
            steps=self._num_steps,
            last_step=self._last_step,
        )

    def close(self) -> None:
        self._core.close()

    def _open(self, request: Request, prefixes: SequenceOf[Prefix]) -> LiveRequest:
        most = min(self.card.max_request_tokens, self._room.capacity_tokens)
        check_servable(request, prefixes, max_tokens=most, vocab_size=self.card.vocab_size)
        if not request.params.max_tokens and len(request.prompt_ids) >= self._core.context_length:
            raise ContextLengthExceeded(
                f"to score a prompt vLLM needs room for a token after it: {self._core.context_length - 1} at most",
                param="prompt",
            )
        salt = {CacheScope.OFF: None, CacheScope.SHARED: b""}.get(self._scope, request.tenant.encode())
        return open_request(
            request,
            prefixes,
            arrival=Arrival(self._num_added, self._clock.seconds(), salt),
            eos_ids=self.card.stop_token_ids,
            vocabulary=self._vocabulary,
        )

    def _start(self, live: LiveRequest, prefixes: SequenceOf[Prefix]) -> None:
        """Its choices; where its prompt is to be scored only the one that does it, first."""
        if live.scorer.num_tokens_to_score:
            self._give(live.request, live.scorer)
            return
        for sequence, prefix in zip(live.sequences, prefixes, strict=True):
            if sequence.finish_reason is None:
                self._give(live.request, sequence)
            elif prefix.finish_reason is None:
                self._ledger.end_resumed(sequence)
        self._ledger.settle_if_ended(live)

    def _give(self, request: Request, sequence: Sequence) -> None:
        """Raises InvalidRequest with vLLM's words."""
        params = sequence.params
        self._num_keys += 1
        key = f"{request.request_id}#{sequence.choice}#{self._num_keys}"
        self._running[key], self._keys[sequence] = sequence, key
        self._core.chooser.sequences[key] = sequence
        entry = Entry(
            key=key,
            token_ids=list(sequence.token_ids),
            max_tokens=max(1, params.max_tokens - sequence.num_generated_tokens),
            priority=sequence.rank,
            salt=request.tenant if self._scope is CacheScope.TENANT else None,
            prompt_logprobs=params.prompt_logprobs if sequence.num_tokens_to_score else None,
        )
        try:
            self._core.add(entry)
        except ValueError as error:
            raise InvalidRequest(f"vLLM does not take the request: {error}") from error

    def _drop(self, sequences: Iterable[Sequence]) -> None:
        keys = [key for key in (self._keys.pop(sequence, None) for sequence in sequences) if key is not None]
        self._core.abort(keys)
        for key in keys:
            del self._running[key]
            del self._core.chooser.sequences[key]

    def _fail(self, request_id: str, error: HeadraceError) -> None:
        self.abort([request_id])
        self._ledger.refuse(request_id, error)

    def _take(self, one: Made) -> None:
        """A token, and before the first one what was asked of the prompt."""
        sequence = self._running.get(one.key)
        if sequence is None:
            return  # another choice of the request failed in this step
        live = self._ledger.live[sequence.request_id]
        if one.prompt_logprobs is not None and not self._tell_prompt(live, one.prompt_logprobs):
            return
        text = sequence.append(self._core.chooser.chosen[one.key].token_id)
        if sequence.failure is not None:
            self._fail(sequence.request_id, sequence.failure)
            return
        token_id = sequence.token_ids[-1]
        self._ledger.tell_tokens(sequence, [token_id], text, self._core.chooser.chosen[one.key].logprobs)
        if sequence.finish_reason is not None:
            self._room.note_end(sequence)
            self._drop([sequence])
            self._ledger.settle_if_ended(live)
        elif one.is_over:
            self._fail(sequence.request_id, RequestFailed("vLLM ended the answer before it was complete"))

    def _tell_prompt(self, live: LiveRequest, told: list[TokenLogprobs]) -> bool:
        """What the journal does not have yet, and the other choices begin. False: no answer follows."""
        request, scorer = live.request, live.scorer
        if any(isnan(one.logprob) for one in told):
            self._fail(request.request_id, output_not_finite())
            return False
        self._ledger.tell_prompt(scorer, [_narrowed(one, request.params) for one in told[scorer.num_scored_tokens :]])
        if not request.params.max_tokens:
            self._drop(live.sequences)
            self._ledger.end_without_tokens(live)
            return False
        for sequence in live.sequences[1:]:
            sequence.num_scored_tokens = scorer.num_scored_tokens
            self._give(request, sequence)
        return True

    def _look(self, made: list[Made]) -> StepFigures:
        """What the step did, and who lost its blocks in it: told as soon as it is seen."""
        figures = self._room.figures(self._running, made)
        for sequence in figures.preempted:
            self._ledger.tell_preempted(sequence)
        self._num_preemptions += len(figures.preempted)
        return figures


def _narrowed(told: TokenLogprobs, params: SamplingParams) -> TokenLogprobs:
    """vLLM tells the token itself among its rivals, beside as many as were asked for."""
    return TokenLogprobs(told.logprob, told.top[: params.prompt_logprobs])
