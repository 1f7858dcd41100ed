"""A validated body -> the Request that goes to the queue, and its View.

The template is rendered, the prompt tokenized, and every limit that depends on the model checked.
Pure, and CPU-bound for long prompts: the caller decides on which thread. Every limit that depends on the
model is checked here, before anything is queued, so an accepted request can run.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from gateway.openai.allowance import Size, check_all_allowed, check_allowed, longest_answer
from gateway.openai.constraints import constraint_of
from gateway.openai.identity import part_id
from gateway.openai.protocol import ChatCompletionRequest, CompletionRequest, GenerationRequest
from gateway.openai.tools.plan import plan_of
from gateway.openai.view import Endpoint, View
from shared.access.entries import ANONYMOUS, Tenant
from shared.errors import ContextLengthExceeded, InvalidRequest
from shared.schemas import Constraint, ModelCard, Request, SamplingParams
from shared.text.tokenizer import Tokenizer

DEFAULT_COMPLETION_TOKENS = 16
# With the logprobs of prompts: of all their tokens with their alternatives, in all choices.
MAX_PROMPT_LOGPROBS = 65_536
# Seeds stay below 2**53 when drawn here, so that every JSON reader shows them exactly.
DRAWN_SEED_BITS = 53
SEED_MASK = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Target:
    """For whom a request is converted: the model, its tokenizer, what this gateway and the tenant's key allow.

    `asked` is what the client calls the model; '' for its own name."""

    request_id: str
    card: ModelCard
    tokenizer: Tokenizer
    max_choices: int
    tenant: Tenant = ANONYMOUS
    asked: str = ""

    @property
    def name(self) -> str:
        """What the client is told the model is: what it asked for."""
        return self.asked or self.card.name

    @property
    def max_total_tokens(self) -> int:
        """Prompt and answer of one choice: the model's context, or less where the KV pool is smaller."""
        return min(self.card.context_length, self.card.max_request_tokens)


@dataclass(frozen=True, slots=True)
class Converted:
    """A request for the queue, and how its client sees it: what any gateway needs beside the journal. `prompt` is a
    chat's, as its template wrote it."""

    request: Request
    view: View
    prompt: str = ""


def chat_request(body: ChatCompletionRequest, target: Target) -> Converted:
    """Raises InvalidRequest or ContextLengthExceeded. `max_tokens` defaults to what the context and the key leave."""
    plan = plan_of(body, target.card, target.tokenizer)
    prompt_ids = target.tokenizer.encode(plan.prompt)
    asked = body.max_completion_tokens or body.max_tokens
    room = _room(target, len(prompt_ids), asked or 1, "messages")
    max_tokens = asked or longest_answer(target.tenant, len(prompt_ids), body.n, room)
    answer_param = "max_completion_tokens" if body.max_completion_tokens else "max_tokens"
    size = Size(len(prompt_ids), max_tokens, body.n)
    check_allowed(target.tenant, size, prompt_param="messages", answer_param=answer_param)
    request = _request(body, target, prompt_ids, max_tokens, plan.constraint)
    if plan.special_ids:
        request = replace(request, params=replace(request.params, visible_token_ids=plan.special_ids))
    return Converted(request, replace(_view(body, target, prompt_ids, "chat"), answer=plan.answer), plan.prompt)


def completion_requests(body: CompletionRequest, target: Target) -> list[Converted]:
    """As `chat_request`, one for each prompt; `max_tokens` defaults to 16, or less where the context or the key ends
    sooner. 0 is none. Their choices are numbered on, from prompt to prompt."""
    constraint = constraint_of(body)
    converted = [_completion(body, target, constraint, index) for index in range(len(body.prompt))]
    requests = [one.request for one in converted]
    check_all_allowed(target.tenant, [Size(len(r.prompt_ids), r.params.max_tokens, body.n) for r in requests])
    if body.echo and body.logprobs is not None:
        _check_prompt_logprobs(sum(len(r.prompt_ids) for r in requests), body.logprobs, body.n)
    return converted


def _completion(body: CompletionRequest, target: Target, constraint: Constraint | None, index: int) -> Converted:
    prompt, param = body.prompt[index], f"prompt[{index}]" if len(body.prompt) > 1 else "prompt"
    prompt_ids = _prompt_ids(prompt, target, param)
    asked = body.max_tokens
    room = _room(target, len(prompt_ids), 1 if asked is None else asked, param)
    most = longest_answer(target.tenant, len(prompt_ids), body.n, room)
    max_tokens = min(DEFAULT_COMPLETION_TOKENS, most) if asked is None else asked
    size = Size(len(prompt_ids), max_tokens, body.n)
    check_allowed(target.tenant, size, prompt_param=param, answer_param="max_tokens")
    target = dataclasses.replace(target, request_id=part_id(target.request_id, index))
    request = _request(body, target, prompt_ids, max_tokens, constraint)
    view = replace(_view(body, target, prompt_ids, "completion"), first_index=index * body.n)
    if not body.echo:
        return Converted(request, view)
    return _with_echo(Converted(request, view), body, prompt, target.tokenizer)


def _view(body: GenerationRequest, target: Target, prompt_ids: Sequence[int], endpoint: Endpoint) -> View:
    needs_ids = body.return_token_ids or body.continuous_usage
    return View(
        endpoint=endpoint,
        model=target.name,
        n=body.n,
        include_usage=body.include_usage,
        service_tier=body.service_class.value,
        logprobs=body.num_logprobs is not None,
        token_ids=body.return_token_ids,
        continuous_usage=body.continuous_usage,
        prompt_ids=tuple(prompt_ids) if needs_ids else (),
    )


def _with_echo(
    converted: Converted, body: CompletionRequest, prompt: str | list[int], tokenizer: Tokenizer
) -> Converted:
    """Repeats the prompt as it was given; of token ids their text, with that of special ones. Where logprobs are asked,
    those of the prompt are too."""
    ids, params = converted.request.prompt_ids, converted.request.params
    echo = prompt if isinstance(prompt, str) else tokenizer.decode(ids, False)
    view = replace(converted.view, echo=echo)
    if body.logprobs is None:
        return Converted(converted.request, view)
    request = replace(converted.request, params=replace(params, prompt_logprobs=body.logprobs))
    return Converted(request, replace(view, is_scored=True, prompt_ids=ids))


def _check_prompt_logprobs(num_tokens: int, num_rivals: int, n: int) -> None:
    count = num_tokens * (num_rivals + 1) * n
    if count > MAX_PROMPT_LOGPROBS:
        raise InvalidRequest(
            f"logprobs: with echo, {num_tokens} prompt tokens with {num_rivals} alternatives each in {n} choices are "
            f"{count} logprobs; at most {MAX_PROMPT_LOGPROBS} are told",
            param="logprobs",
        )


def _prompt_ids(prompt: str | list[int], target: Target, param: str) -> list[int]:
    ids = target.tokenizer.encode(prompt, add_special_tokens=True) if prompt and isinstance(prompt, str) else prompt
    if not ids or isinstance(ids, str):
        raise InvalidRequest(f"{param}: has no tokens", param=param)
    check_ids(ids, target.card.vocab_size, param)
    return ids


def _room(target: Target, num_prompt_tokens: int, answer: int, param: str) -> int:
    """What the context leaves for the answer, which must be enough for `answer` tokens."""
    limit = target.max_total_tokens
    if num_prompt_tokens + answer > limit:
        raise ContextLengthExceeded(
            f"This model's maximum context length is {limit} tokens. However, you requested "
            f"{num_prompt_tokens + answer} tokens ({num_prompt_tokens} in the {param}, {answer} in the completion). "
            "Please reduce the length of the messages or completion. (context_length_exceeded: prompt is too long)",
            param=param,
        )
    return limit - num_prompt_tokens


def _request(
    body: GenerationRequest,
    target: Target,
    prompt_ids: Sequence[int],
    max_tokens: int,
    constraint: Constraint | None,
) -> Request:
    if body.n > target.max_choices:
        raise InvalidRequest(f"n: must be at most {target.max_choices}", param="n")
    check_ids(body.stop_token_ids, target.card.vocab_size, "stop_token_ids")
    biases = [(int(token_id), bias) for token_id, bias in body.logit_bias.items()]
    check_ids([token_id for token_id, _ in biases], target.card.vocab_size, "logit_bias")
    if body.min_tokens > max_tokens:
        raise InvalidRequest(f"min_tokens: must be at most max_tokens, which is {max_tokens}", param="min_tokens")
    params = SamplingParams(
        max_tokens=max_tokens,
        seed=secrets.randbits(DRAWN_SEED_BITS) if body.seed is None else body.seed & SEED_MASK,
        temperature=body.temperature,
        top_p=body.top_p or 1.0,
        top_k=_top_k(body),
        n=body.n,
        stop=tuple(body.stop),
        stop_token_ids=tuple(body.stop_token_ids),
        ignore_eos=body.ignore_eos,
        min_p=body.min_p,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        repetition_penalty=body.repetition_penalty,
        logit_bias=tuple(biases),
        min_tokens=body.min_tokens,
        logprobs=body.num_logprobs,
        constraint=constraint,
    )
    return Request(
        request_id=target.request_id, model=target.card.revision, prompt_ids=tuple(prompt_ids), params=params,
        service_class=body.service_class, tenant=target.tenant.name,
    )  # fmt: skip


def _top_k(body: GenerationRequest) -> int:
    """0 is off, as is -1 in other servers' dialect; `top_p` 0 leaves the most likely token only."""
    return 1 if body.top_p == 0 else max(body.top_k, 0)


def check_ids(ids: Sequence[int], vocab_size: int, param: str) -> None:
    """Raises InvalidRequest for an id that is no token."""
    if ids and (min(ids) < 0 or max(ids) >= vocab_size):
        raise InvalidRequest(f"{param}: token ids must be at least 0 and below {vocab_size}", param=param)
