"""What the engine keeps of a request: one request has n choices, each choice is one sequence.

    token_ids   p p p p p p p p g g g g            p: prompt, g: generated (journaled ones first)
                └─ num_computed ─┘  ▲
                   their KV exists  └─ the rest is to be computed; computing the last one gives the next token

The one idea: `num_computed_tokens` catches up with `len(token_ids)`. Prefill, chunk, decode, recompute after a
preemption and resume from a journal are all this. Knows no batch, no blocks beyond its own table, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from typing import NamedTuple

from shared.errors import ContextLengthExceeded, InvalidRequest, RequestFailed, StreamContradiction
from shared.schemas import Constraint, Prefix, Request, SamplingParams, ServiceClass, Usage
from worker.engine.adapters import NO_ADAPTER
from worker.engine.detokenizer import Decoder, Detokenizer
from worker.engine.prefix_cache import Chain
from worker.engine.structured import Automaton, refuse_constraints

WAITING_ROW = -1
# Instead of a token id: the model's output for the sequence has no numbers to choose by (NaN, infinity).
NOT_FINITE = -1
RANKS = {service_class: rank for rank, service_class in enumerate(ServiceClass)}


class Arrival(NamedTuple):
    """The how manieth request it is, when it came (seconds of the engine's clock), and with whom it shares prefixes."""

    number: int
    at_s: float
    salt: bytes | None


@dataclass(slots=True, eq=False, weakref_slot=True)
class Sequence:
    """One choice. `row` is its place in the batch while it runs, WAITING_ROW otherwise.

    The KV cache manager owns `block_table`, `num_computed_tokens` and `chain`; the scheduler the rest of what changes
    but the tokens. `rank` is that of its service class, 0 the highest. `num_cached_tokens` of the prompt were in the
    cache when it first ran; None: it has not. `num_lost_tokens` had been computed when it was last preempted.
    `num_scored_tokens` of the prompt, from its second on, have had their logprobs told: the first so many positions.
    `adapter` is the runner's slot of the one it is computed with.
    """

    request_id: str
    choice: int
    arrival: int
    params: SamplingParams
    stop_ids: frozenset[int]
    detokenizer: Detokenizer
    token_ids: list[int]
    num_prompt_tokens: int
    num_computed_tokens: int = 0
    block_table: list[int] = field(default_factory=list[int])
    row: int = WAITING_ROW
    num_preemptions: int = 0
    finish_reason: str | None = None
    automaton: Automaton | None = None
    failure: RequestFailed | None = None
    arrival_s: float = 0.0
    rank: int = 0
    chain: Chain = field(default_factory=Chain)
    num_cached_tokens: int | None = None
    num_lost_tokens: int = 0
    num_expected_blocks: int = 0
    num_skips: int = 0
    num_holds: int = 0
    num_scored_tokens: int = 0
    adapter: int = NO_ADAPTER

    @property
    def banned_ids(self) -> Collection[int]:
        """What the next token may not be: a stop token, before `min_tokens`."""
        return self.stop_ids if self.num_generated_tokens < self.params.min_tokens else ()

    @property
    def num_generated_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_tokens_to_compute(self) -> int:
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def num_tokens_to_score(self) -> int:
        """Of the prompt, whose logprobs are asked and not told yet: each is known when the one before is computed."""
        asked = self.num_prompt_tokens - 1 if self.params.prompt_logprobs is not None else 0
        return max(0, asked - self.num_scored_tokens)

    def append(self, token_id: int) -> str:
        """Take the next token; returns the text it releases. Sets `finish_reason` when it ends the choice, and
        `failure` when the choice cannot be what was asked for."""
        if token_id == NOT_FINITE:
            self.failure = output_not_finite()
            return ""
        self.token_ids.append(token_id)
        is_complete = self.automaton is not None and self._advance(self.automaton, token_id)
        if token_id in self.stop_ids:
            self.finish_reason = "stop"
            return self.detokenizer.flush()
        num_made = len(self.token_ids) - self.num_prompt_tokens
        text = self.detokenizer.push(token_id, may_stop=num_made > self.params.min_tokens)
        if self.detokenizer.is_stopped:
            self.finish_reason = "stop"
        elif is_complete or num_made >= self.params.max_tokens:
            text += self.detokenizer.flush()
            self.finish_reason = "stop" if is_complete or self.detokenizer.is_stopped else "length"
        return text

    def _advance(self, automaton: Automaton, token_id: int) -> bool:
        """Whether nothing can follow this token."""
        automaton.advance(token_id)
        if automaton.failure is not None:
            self.failure = RequestFailed(automaton.failure, code="constraint_failed")
        return automaton.is_ended

    def resume(self, prefix: Prefix) -> None:
        """Go on after what the journal holds: its ids go through the code that new ones go through.

        They may end the choice, where the journal was cut before it said so. Raises StreamContradiction.
        """
        self.num_scored_tokens = prefix.num_scored
        if prefix.token_ids and self.num_tokens_to_score:
            raise StreamContradiction("the journal has tokens, and not all logprobs of the prompt before them")
        if prefix.finish_reason is not None:
            self.token_ids.extend(prefix.token_ids)
            self.finish_reason = prefix.finish_reason
            return
        replayed: list[str] = []
        for token_id in prefix.token_ids:
            if self.finish_reason is not None:
                raise StreamContradiction("the journal goes on after the end of a choice")
            replayed.append(self.append(token_id))
        if self.failure is not None:
            raise StreamContradiction(f"the journal's tokens do not fit the answer's format: {self.failure}")
        self.detokenizer.resume("".join(replayed), prefix.text)
        if not self.params.max_tokens and not self.num_tokens_to_score:
            self.finish_reason = "length"


@dataclass(slots=True, eq=False)
class LiveRequest:
    """A request the engine works on. `sequences` has all choices, also those that ended before a resume."""

    request: Request
    sequences: list[Sequence]
    has_first_token: bool

    @property
    def scorer(self) -> Sequence:
        """Whose prompt is scored for all: the others have the same, and begin when that is done."""
        return self.sequences[0]

    @property
    def is_ended(self) -> bool:
        return all(sequence.finish_reason is not None for sequence in self.sequences)

    def usage(self) -> Usage:
        """`completion_tokens` counts every token made: journaled ones and stop tokens too. `cached_tokens` are those
        that no choice computed here: the first choice to run found least, the others find what it computed."""
        made = sum(sequence.num_generated_tokens for sequence in self.sequences)
        found = [s.num_cached_tokens for s in self.sequences if s.num_cached_tokens is not None]
        return Usage(
            prompt_tokens=len(self.request.prompt_ids), completion_tokens=made, cached_tokens=min(found, default=0)
        )


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What a model's token ids mean: text (`new_decoder` is given the special ones that have theirs in an answer), and
    which of them a constraint allows."""

    new_decoder: Callable[[SequenceOf[int]], Decoder]
    open_automaton: Callable[[Constraint], Automaton] = refuse_constraints


def open_request(
    request: Request,
    prefixes: SequenceOf[Prefix],
    *,
    arrival: Arrival,
    eos_ids: SequenceOf[int],
    vocabulary: Vocabulary,
    adapter: int = NO_ADAPTER,
) -> LiveRequest:
    """The request with its sequences, each resumed from its prefix. Raises StreamContradiction, InvalidRequest."""
    params = request.params
    stop_ids = frozenset((*params.stop_token_ids, *(() if params.ignore_eos else eos_ids)))
    sequences: list[Sequence] = []
    for choice, prefix in enumerate(prefixes):
        sequence = Sequence(
            request_id=request.request_id,
            choice=choice,
            arrival=arrival.number,
            arrival_s=arrival.at_s,
            rank=RANKS[request.service_class],
            chain=Chain(arrival.salt),
            params=params,
            stop_ids=stop_ids,
            detokenizer=Detokenizer(vocabulary.new_decoder(params.visible_token_ids), params.stop),
            token_ids=list(request.prompt_ids),
            num_prompt_tokens=len(request.prompt_ids),
            automaton=vocabulary.open_automaton(params.constraint) if params.constraint else None,
            adapter=adapter,
        )
        sequence.resume(prefix)
        sequences.append(sequence)
    return LiveRequest(request, sequences, has_first_token=any(prefix.token_ids for prefix in prefixes))


def output_not_finite() -> RequestFailed:
    return RequestFailed("the model's output is not finite", code="output_not_finite")


def check_servable(request: Request, prefixes: SequenceOf[Prefix], *, max_tokens: int, vocab_size: int) -> None:
    """Raises InvalidRequest when no schedule could ever serve the request. `max_tokens` is what one choice may
    have, prompt included: a choice that alone outgrows the KV cache would make preemption loop."""
    params = request.params
    if not request.prompt_ids:
        raise InvalidRequest("the prompt has no tokens", param="prompt")
    if params.max_tokens < 0 or params.n < 1:
        raise InvalidRequest("max_tokens must be at least 0, and n at least 1", param="max_tokens")
    if len(prefixes) != params.n:
        raise InvalidRequest(f"{len(prefixes)} prefixes for {params.n} choices", param="n")
    wanted = len(request.prompt_ids) + params.max_tokens
    if wanted > max_tokens:
        raise ContextLengthExceeded(
            f"prompt and max_tokens are {wanted} tokens; this worker holds {max_tokens}", param="max_tokens"
        )
    for ids in (request.prompt_ids, *(prefix.token_ids for prefix in prefixes)):
        if ids and not 0 <= min(ids) <= max(ids) < vocab_size:
            raise InvalidRequest("a token id is outside the vocabulary", param="prompt")
