"""Who an answer is, and what of it is shown: what every chunk and every body of one request share.

A request id begins with its time, so `created` follows from it and any gateway that takes a stream over
derives the same answer from the id and the journal alone.

    019ad5b2c3f0 8f14e45fceea167a5a36   milliseconds since 1970, 12 hex digits; 20 random hex digits
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass

from gateway.openai.logprobs import PromptLogprobs, TokenBytes
from gateway.openai.tools.answer import TEXT_ALONE, AnswerFormat
from shared.schemas import ModelCard, Usage

_TIME_DIGITS = 12


def new_request_id() -> str:
    return f"{time.time_ns() // 1_000_000:012x}{secrets.token_hex(10)}"


def part_id(request_id: str, index: int) -> str:
    """Of one of several prompts: a request of its own in the queue. The first has the id of all."""
    return f"{request_id}-{index}" if index else request_id


def created_s(request_id: str) -> int:
    return int(request_id[:_TIME_DIGITS], 16) // 1000


@dataclass(frozen=True, slots=True)
class Identity:
    """`model` is the public name; `system_fingerprint` changes with the weights; `service_tier` is what was used."""

    request_id: str
    created: int
    model: str
    system_fingerprint: str
    service_tier: str = "default"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a client asked to see: `n` choices, the first of them numbered `first_index`; `token_bytes` names tokens
    where it asked for logprobs; `prompt_ids` where it asked for `token_ids` or for usage in every chunk; `echo`, the
    prompt before a completion's text; with `is_scored` its logprobs too, and `prompt_ids` are there.
    """

    n: int = 1
    include_usage: bool = False
    token_bytes: TokenBytes | None = None
    answer: AnswerFormat = TEXT_ALONE
    token_ids: bool = False
    continuous_usage: bool = False
    prompt_ids: tuple[int, ...] = ()
    echo: str = ""
    first_index: int = 0
    is_scored: bool = False

    def scored_prompt(self) -> PromptLogprobs | None:
        """A new one; None where nobody asked."""
        if not self.is_scored or self.token_bytes is None:
            return None
        return PromptLogprobs(self.token_bytes, self.prompt_ids, self.echo)


def identity_of(request_id: str, card: ModelCard) -> Identity:
    return Identity(request_id, created_s(request_id), card.name, fingerprint_of(card.revision))


def fingerprint_of(revision: str) -> str:
    return f"fp_{revision.rpartition('@')[2][:12]}"


def summed(usages: Iterable[Usage]) -> Usage:
    prompt, completion, cached = 0, 0, 0
    for usage in usages:
        prompt, completion = prompt + usage.prompt_tokens, completion + usage.completion_tokens
        cached += usage.cached_tokens
    return Usage(prompt, completion, cached)


def usage_fields(usage: Usage, reasoning_tokens: int = 0) -> dict[str, object]:
    """Prompt tokens count once, completion tokens over all choices."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": reasoning_tokens},
    }
