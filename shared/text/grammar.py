"""What an answer must be, as llguidance reads it, and whether it can be held to that.

A constraint is checked at the door and held in the worker by one library under one set of limits, so what is accepted
is what is enforced: a keyword of JSON Schema that the library cannot enforce is refused by name, never ignored. The
door needs no vocabulary: it checks with one token a byte. Cheap but not free (about a millisecond, 0.2 s for the
largest): not for an event loop.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from llguidance.gbnf_to_lark import any_to_lark, is_lark_syntax

from shared.errors import InvalidRequest, UnsupportedParameter
from shared.schemas import Constraint, ConstraintKind
from shared.text.json_schema import closed

MAX_CONSTRAINT_CHARS = 65_536
# Reading GBNF takes time by the square of its length.
MAX_GBNF_CHARS = 8192
_MAX_FAULT_CHARS = 300
# One blank, or a line break and an indent: pretty-printed JSON, but no model can go on in blanks for ever.
_JSON_BLANK = r"[ ]|\n[ \t]{0,40}"
_JSON_OPTIONS: dict[str, Any] = {
    "whitespace_pattern": _JSON_BLANK, "coerce_one_of": False, "lenient": False, "item_separator": ",",
    "key_separator": ":",
}  # fmt: skip
_UNIMPLEMENTED = re.compile(r"Unimplemented keys: (\[.*\])")


class _Bytes:
    """A vocabulary of all bytes: what `TokenizerWrapper` wants of a tokenizer."""

    eos_token_id = 256
    bos_token_id = None
    special_token_ids = (256,)
    tokens = (*(bytes([value]) for value in range(256)), b"<end>")

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())


def matcher_of(constraint: Constraint, tokenizer: LLTokenizer) -> LLMatcher:
    """At the beginning of an answer. Raises nothing: see its `get_error`. Lets other threads run."""
    return LLMatcher(tokenizer, _grammar_of(constraint), log_level=0, limits=LLParserLimits(verbose_errors=False))


def tokenizer_of(
    pieces: Sequence[bytes],
    special_ids: Sequence[int],
    stop_ids: Sequence[int],
    encode: Callable[[str], Sequence[int]] | None = None,
) -> LLTokenizer:
    """Of a vocabulary of byte strings, one a token id. Takes about 0.2 s and 15 MB at 50,000.

    Text that a grammar leaves no choice in is written in the tokens of `encode`; without it in single bytes.
    """
    vocabulary = _Vocabulary(pieces, special_ids, stop_ids[0], encode)
    return LLTokenizer(TokenizerWrapper(vocabulary), n_vocab=len(pieces), eos_token=list(stop_ids))


class _Vocabulary:
    """As `_Bytes`, of a model."""

    bos_token_id = None

    def __init__(
        self,
        pieces: Sequence[bytes],
        special_ids: Sequence[int],
        eos_id: int,
        encode: Callable[[str], Sequence[int]] | None,
    ) -> None:
        self._encode = encode
        self.tokens = pieces
        self.special_token_ids = special_ids
        self._special = frozenset(special_ids)
        self.eos_token_id = eos_id
        self._of_byte = {piece[0]: token_id for token_id, piece in enumerate(pieces) if len(piece) == 1}

    def __call__(self, text: str | bytes) -> list[int]:
        """Never a special token, though the text may name one."""
        raw = text if isinstance(text, bytes) else text.encode()
        if self._encode is not None:
            ids = self._encode(raw.decode("utf-8", "replace"))
            if b"".join(self.tokens[token_id] for token_id in ids) == raw and not self._special.intersection(ids):
                return list(ids)
        return [self._of_byte.get(byte, 0) for byte in raw]


def check_constraint(constraint: Constraint, param: str) -> None:
    """Raises InvalidRequest naming `param`: what is wrong with it, or UnsupportedParameter: what cannot be held."""
    if len(constraint.text) > MAX_CONSTRAINT_CHARS:
        raise InvalidRequest(f"{param}: must have at most {MAX_CONSTRAINT_CHARS} characters", param=param)
    fault = _fault_of(constraint)
    if fault is None:
        return
    words, is_unsupported = fault
    kind = UnsupportedParameter if is_unsupported else InvalidRequest
    raise kind(f"{param}: {words}", param=param)


def lark_of(grammar: str, param: str) -> str:
    """A grammar in Lark's notation, of one in that or in GBNF. Raises InvalidRequest."""
    if is_lark_syntax(grammar):
        return grammar
    if len(grammar) > MAX_GBNF_CHARS:
        raise InvalidRequest(f"{param}: a GBNF grammar must have at most {MAX_GBNF_CHARS} characters", param=param)
    try:
        return any_to_lark(grammar)
    except Exception as error:  # the library raises bare Exception, and RecursionError
        fault = " ".join(str(error).split())[:_MAX_FAULT_CHARS]
        raise InvalidRequest(f"{param}: neither a Lark nor a GBNF grammar: {fault}", param=param) from None


def json_rule(schema: dict[str, Any], *, is_lenient: bool = False) -> str:
    """JSON of the schema, closed, as the body of a Lark rule. Lenient: what cannot be held is passed over."""
    options = _JSON_OPTIONS | {"lenient": is_lenient, "coerce_one_of": is_lenient}
    return f"%json {json.dumps(closed(schema) | {'x-guidance': options})}"


def _grammar_of(constraint: Constraint) -> str:
    match constraint.kind:
        case ConstraintKind.JSON_SCHEMA:
            options: Any = _JSON_OPTIONS
            schema = json.dumps(closed(json.loads(constraint.text)))
            return LLMatcher.grammar_from_json_schema(schema, overrides=options)
        case ConstraintKind.REGEX:
            return LLMatcher.grammar_from_regex(constraint.text)
        case ConstraintKind.CHOICE:
            texts = msgspec.json.decode(constraint.text, type=list[str])
            choices = " | ".join(json.dumps(text, ensure_ascii=False) for text in texts)
            return LLMatcher.grammar_from_lark(f"start: {choices}")
        case ConstraintKind.GRAMMAR:
            return LLMatcher.grammar_from_lark(constraint.text)


@functools.lru_cache(maxsize=256)
def _fault_of(constraint: Constraint) -> tuple[str, bool] | None:
    """In words, and whether it is only that this server cannot hold it."""
    matcher = matcher_of(constraint, _byte_tokenizer())
    if not matcher.is_error():
        matcher.compute_bitmask()  # what it takes to begin
    if not matcher.is_error():
        return None
    error = matcher.get_error()
    keywords = _UNIMPLEMENTED.search(error)
    if keywords:
        names = ", ".join(msgspec.json.decode(keywords.group(1), type=list[str]))
        return f"the schema uses {names}, to which this server cannot hold an answer"[:_MAX_FAULT_CHARS], True
    if "oneOf constraints are not supported" in error:
        return "the schema uses oneOf with alternatives that may overlap; use anyOf", True
    words = " ".join(error.split())[:_MAX_FAULT_CHARS]
    return words, error.startswith("Unknown format")


@functools.lru_cache(maxsize=1)
def _byte_tokenizer() -> LLTokenizer:
    return LLTokenizer(TokenizerWrapper(_Bytes()), n_vocab=257, eos_token=[256], slices=[])
