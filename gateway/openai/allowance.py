"""How large a request its tenant allows: prompt, answer, and both against what a minute holds.

Checked where the prompt's tokens are known. What exceeds a limit here can never succeed as it is, so it is an
InvalidRequest that names the limit, not a rate limit to wait for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shared.access.entries import Tenant
from shared.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Size:
    """Prompt tokens, and the longest answer of each of `n` choices."""

    prompt_tokens: int
    max_tokens: int
    n: int

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.n * self.max_tokens


def longest_answer(tenant: Tenant, prompt_tokens: int, n: int, room: int) -> int:
    """`max_tokens` where a client names none: as much as the context (`room`) and its tenant allow; at least 1."""
    allowed = [room]
    if tenant.max_output_tokens:
        allowed.append(tenant.max_output_tokens)
    if tenant.tokens_per_min:
        allowed.append((tenant.tokens_per_min - prompt_tokens) // n)
    return max(1, min(allowed))


def check_allowed(tenant: Tenant, size: Size, *, prompt_param: str, answer_param: str) -> None:
    """Raises InvalidRequest naming the limit that is exceeded."""
    if 0 < tenant.max_prompt_tokens < size.prompt_tokens:
        raise InvalidRequest(
            f"{prompt_param}: has {size.prompt_tokens} tokens, this API key allows max_prompt_tokens "
            f"{tenant.max_prompt_tokens}",
            param=prompt_param,
        )
    if 0 < tenant.max_output_tokens < size.max_tokens:
        raise InvalidRequest(
            f"{answer_param}: {size.max_tokens} asked for, this API key allows max_output_tokens "
            f"{tenant.max_output_tokens}",
            param=answer_param,
        )
    if 0 < tenant.tokens_per_min < size.total_tokens:
        raise InvalidRequest(
            f"{answer_param}: the request may take {size.total_tokens} tokens ({size.prompt_tokens} in the "
            f"{prompt_param}, up to {size.n} x {size.max_tokens} in the answer), this API key allows tokens_per_min "
            f"{tenant.tokens_per_min}",
            param=answer_param if size.prompt_tokens < tenant.tokens_per_min else prompt_param,
        )


def check_all_allowed(tenant: Tenant, sizes: Sequence[Size]) -> None:
    """Of prompts that are allowed each for itself: whether their tenant may have all of them at once."""
    num_tokens = sum(size.total_tokens for size in sizes)
    for name, limit, asked in (
        ("requests_per_min", tenant.requests_per_min, len(sizes)),
        ("max_concurrency", tenant.max_concurrency, len(sizes)),
        ("tokens_per_min", tenant.tokens_per_min, num_tokens),
    ):
        if 0 < limit < asked:
            raise InvalidRequest(
                f"prompt: {len(sizes)} prompts at once count as {asked}, this API key allows {name} {limit}",
                param="prompt",
            )
