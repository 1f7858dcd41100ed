"""Structured output: the automaton that says which tokens a choice may take next.

It belongs to its sequence and is advanced by the code that takes tokens, new or journaled: a resumed choice has the
automaton an undisturbed one would have. Knows no model: a mask is packed bits.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLTokenizer

from shared.errors import UnsupportedParameter
from shared.schemas import Constraint, ModelCard
from shared.text.grammar import matcher_of, tokenizer_of
from shared.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)
_MAX_COMPILED = 64
_MAX_FAULT_CHARS = 300
BitArray = npt.NDArray[np.uint32]


class Automaton(Protocol):
    """Fails at most once and then for good: `failure` says why, the request ends, nothing is raised.

    `mask` may be called in another thread, never at the same time as `advance`.
    """

    @property
    def failure(self) -> str | None: ...

    @property
    def is_ended(self) -> bool:
        """The text is complete and nothing can follow it."""
        ...

    def advance(self, token_id: int) -> None:
        """Take the next token; one that is not allowed is a failure."""
        ...

    def mask(self) -> BitArray:
        """[words], bit i of word w is token 32 * w + i. All tokens, when it has failed."""
        ...


def refuse_constraints(constraint: Constraint) -> Automaton:
    """Of an engine that cannot hold an answer to a format: better no answer than an unconstrained one."""
    raise UnsupportedParameter("this worker cannot hold an answer to a format", param=constraint.kind.value)


class Automata:
    """Opens the automaton of each choice of one model. A constraint is compiled once, in a thread: a choice waits for
    it when it takes its first token, which is after its prompt was computed."""

    def __init__(self, load: Callable[[], LLTokenizer], vocab_size: int) -> None:
        self._load = load
        self._num_words = -(-vocab_size // 32)
        self._vocabulary: LLTokenizer | None = None
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        self._compiled: OrderedDict[Constraint, Future[LLMatcher | None]] = OrderedDict()

    @classmethod
    def of_model(cls, tokenizer: Tokenizer, card: ModelCard) -> Automata:
        """The vocabulary is read when the first constraint comes."""
        return cls(lambda: _vocabulary_of(tokenizer, card), card.vocab_size)

    def open(self, constraint: Constraint) -> Automaton:
        matcher = self._compiled.get(constraint)
        if matcher is None:
            matcher = self._compiled[constraint] = self._threads.submit(self._compile, constraint)
            if len(self._compiled) > _MAX_COMPILED:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(constraint)
        return _TokenAutomaton(matcher, self._num_words)

    def _compile(self, constraint: Constraint) -> LLMatcher | None:
        """None: the library cannot read the model's vocabulary."""
        try:
            self._vocabulary = self._vocabulary or self._load()
        except ValueError:
            log.exception("vocabulary_without_constraints")
            return None
        return matcher_of(constraint, self._vocabulary)


def _vocabulary_of(tokenizer: Tokenizer, card: ModelCard) -> LLTokenizer:
    pieces = [tokenizer.token_bytes(token_id) for token_id in range(card.vocab_size)]
    return tokenizer_of(pieces, tokenizer.special_ids, card.stop_token_ids, tokenizer.encode)


class _TokenAutomaton:
    """See Automaton. One choice's copy of a compiled constraint, made when it is first needed."""

    def __init__(self, compiled: Future[LLMatcher | None], num_words: int) -> None:
        self._compiled = compiled
        self._own: LLMatcher | None = None
        self._num_words = num_words
        self.failure: str | None = None

    @property
    def is_ended(self) -> bool:
        matcher = self._matcher()
        return matcher is not None and matcher.is_stopped()

    def advance(self, token_id: int) -> None:
        matcher = self._matcher()
        if matcher is not None and not matcher.consume_token(token_id):
            self._fail(matcher.get_error())

    def mask(self) -> BitArray:
        matcher = self._matcher()
        if matcher is not None:
            bits = np.frombuffer(matcher.compute_bitmask(), np.uint32)[: self._num_words]
            if not matcher.is_error() and bits.any():
                return bits
            self._fail(matcher.get_error() or "no token can follow")
        return np.full(self._num_words, 0xFFFF_FFFF, np.uint32)

    def _matcher(self) -> LLMatcher | None:
        """None once it has failed."""
        if self._own is None and self.failure is None:
            compiled = self._compiled.result()
            if compiled is None:
                self._fail("the model's vocabulary cannot be read")
            elif compiled.is_error():
                self._fail(compiled.get_error())
            else:
                self._own = compiled.deep_copy()
        return self._own if self.failure is None else None

    def _fail(self, error: str) -> None:
        words = " ".join(error.split())[:_MAX_FAULT_CHARS]
        self.failure = f"the answer cannot be held to the format asked for: {words}"
