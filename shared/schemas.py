"""Wire types: what gateways and workers say to each other through Redis.

Knows no Redis and no asyncio. A body or card is a JSON object; a journal frame is a JSON array on one
line, so that `redis-cli GET hr:{m}:j:<id>` reads as a log:

    ["v","taken",{"worker":"w-1f","attempt":1,"at":1764500000000}]
    ["t",0,[504,253],"The sea"]          choice, token ids, the text released by them
    ["t",0,[8],".",[[-0.12,[[8,-0.12]]]]]  and, where a client asked, the logprob of each id and its likeliest rivals
    ["p",[[-3.4,[[8,-0.12]]]]]           the same of the prompt's next tokens, where a client asked: before any `t`
    ["f",0,"stop"]                       choice ended: stop | length
    ["e","finished",{"prompt_tokens":31,"completion_tokens":2,"cached_tokens":0},null]

Invariants: a journal holds whole frames only; per choice the texts of its `t` frames concatenate to what
a client sees; exactly one `e` frame, and it is the last.
"""

from __future__ import annotations

import enum
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

WIRE_VERSION = 1


class State(enum.StrEnum):
    """Stored in the request hash.

    waiting ──take──▶ running ──emit──▶ finished | failed
       ▲                 │
       └──release, reap──┘        waiting and running ──▶ cancelled | expired | dead
    """

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    FAILED = "failed"
    DEAD = "dead"


class Outcome(enum.StrEnum):
    """How a request ended; the terminal half of `State`."""

    FINISHED = "finished"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    FAILED = "failed"
    DEAD = "dead"


class ServiceClass(enum.StrEnum):
    """OpenAI's `service_tier` words, and `batch`."""

    PRIORITY = "priority"
    DEFAULT = "default"
    FLEX = "flex"
    BATCH = "batch"


class ConstraintKind(enum.StrEnum):
    """What the text of a `Constraint` is: a JSON schema, a regular expression, a grammar in Lark's notation, or a JSON
    array of the texts to choose from."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    GRAMMAR = "grammar"
    CHOICE = "choice"


class Constraint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an answer must be. Checked by the gateway with the library that workers hold it with."""

    kind: ConstraintKind
    text: str


class SamplingParams(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """How to choose tokens. `temperature` 0 is greedy; `top_k` and `min_p` 0 are off; `seed` is always set by the
    gateway. `logit_bias` is (token id, bias); `logprobs` None is not asked, else how many rivals to tell as well.
    `visible_token_ids` are special tokens whose text is part of the answer; others have none. `prompt_logprobs` is as
    `logprobs`, of the prompt's tokens; `max_tokens` 0 makes none.
    """

    max_tokens: int
    seed: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    n: int = 1
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0
    logprobs: int | None = None
    constraint: Constraint | None = None
    visible_token_ids: tuple[int, ...] = ()
    prompt_logprobs: int | None = None


class Request(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """One accepted request: the body at `hr:{m}:b:<id>`. `model` is the revision (name@digest). `version` is left out
    of the JSON while it is 1, like every other default."""

    request_id: str
    model: str
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    tenant: str = "anonymous"
    service_class: ServiceClass = ServiceClass.DEFAULT
    version: int = 1


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


class ErrorInfo(msgspec.Struct, frozen=True):
    code: str
    message: str


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Of one token: the logarithm of its probability, and the likeliest tokens there were, with theirs."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class TokensFrame(msgspec.Struct, frozen=True, array_like=True, tag="t"):
    """Tokens made for one choice, and the text they released (held-back text comes with a later frame). `logprobs`, of
    the first of `token_ids` and on: left out of the line where there are none. A stop token has none."""

    choice: int
    token_ids: list[int]
    text: str
    logprobs: tuple[TokenLogprobs, ...] | None = None


class PromptFrame(msgspec.Struct, frozen=True, array_like=True, tag="p"):
    """Logprobs of the prompt's next tokens. All such frames of a journal stand before its first tokens, and are about
    the second token and on: the first has none."""

    logprobs: tuple[TokenLogprobs, ...]


class ChoiceEndFrame(msgspec.Struct, frozen=True, array_like=True, tag="f"):
    choice: int
    finish_reason: str


class EventFrame(msgspec.Struct, frozen=True, array_like=True, tag="v"):
    """A step in the request's life: taken, first_token, preempted, requeued, released."""

    name: str
    detail: dict[str, Any] = {}


class EndFrame(msgspec.Struct, frozen=True, array_like=True, tag="e"):
    outcome: Outcome
    usage: Usage | None = None
    error: ErrorInfo | None = None


Frame = TokensFrame | PromptFrame | ChoiceEndFrame | EventFrame | EndFrame


class Prefix(msgspec.Struct, frozen=True):
    """What a journal already holds of one choice: where a resumed request goes on. `num_scored` of the prompt's tokens
    have their logprobs in it, whichever the choice."""

    token_ids: tuple[int, ...] = ()
    text: str = ""
    finish_reason: str | None = None
    num_scored: int = 0


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """What gateways need to know of a model; field `revision` of the hash `hr:models`. `tool_format` and
    `reasoning_format` say how it writes calls and reasoning; auto: as its chat template shows. `parent`: of an adapter,
    the name of the model that it adapts."""

    name: str
    revision: str
    architecture: str
    context_length: int
    max_request_tokens: int
    vocab_size: int
    stop_token_ids: tuple[int, ...]
    tokenizer_digest: str
    created_s: int
    version: int = WIRE_VERSION
    tool_format: str = "auto"
    reasoning_format: str = "auto"
    parent: str = ""


class TokenizerBlob(msgspec.Struct, frozen=True, kw_only=True):
    """A tokenizer as gateways load it: the `tokenizers` JSON, the chat template, the special tokens it names."""

    tokenizer_json: str
    chat_template: str | None = None
    bos_token: str | None = None
    eos_token: str | None = None
    pad_token: str | None = None
    unk_token: str | None = None
    add_bos_token: bool = False


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker says of itself when it registers. `knows`: KNOWN_FIELDS, how many fields a body it reads may have;
    0 where it did not say."""

    worker_id: str
    model: str
    backend: str
    host: str
    pid: int
    max_num_seqs: int
    kv_blocks: int
    version: int = WIRE_VERSION
    knows: int = 0


_frame_encoder = msgspec.json.Encoder()
_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(SamplingParams) if not field.required}
KNOWN_FIELDS = len(msgspec.structs.fields(SamplingParams)) + len(msgspec.structs.fields(Request))
_request_decoder = msgspec.json.Decoder(Request)
_COMPRESS_ABOVE_BYTES = 1024
_NO_LOGPROBS = b",null]"
_frame_decoder: msgspec.json.Decoder[Frame] = msgspec.json.Decoder(Frame)


def encode_request(request: Request) -> bytes:
    """A body: JSON, deflated where it is longer than 1 KB. Without fields at their defaults: who does not know them
    reads it too. (Only the default itself is left out, not what equals it.)"""
    bare = {name: default for name, default in _DEFAULTS.items() if getattr(request.params, name) == default}
    raw = msgspec.json.encode(msgspec.structs.replace(request, params=msgspec.structs.replace(request.params, **bare)))
    return zlib.compress(raw, 1) if len(raw) > _COMPRESS_ABOVE_BYTES else raw


def decode_request(body: bytes) -> Request:
    """Inverse of `encode_request`. Raises ValueError for what this version does not understand."""
    try:
        request = _request_decoder.decode(body if body.startswith(b"{") else zlib.decompress(body))
    except (msgspec.DecodeError, zlib.error) as error:
        raise ValueError(f"a body this version cannot read: {error}") from error
    if request.version > WIRE_VERSION:
        raise ValueError(f"a body of wire version {request.version}, this process speaks {WIRE_VERSION}")
    return request


def encode_frames(frames: Iterable[Frame]) -> bytes:
    """Frames as journal lines, UTF-8, each ended by a newline."""
    return b"".join([_line(frame) for frame in frames])


def _line(frame: Frame) -> bytes:
    line = _frame_encoder.encode(frame)
    if isinstance(frame, TokensFrame) and frame.logprobs is None:
        return line[: -len(_NO_LOGPROBS)] + b"]\n"
    return line + b"\n"


def decode_frames(journal: bytes) -> list[Frame]:
    """Inverse of `encode_frames`. Raises ValueError when the last line is not whole."""
    if journal and not journal.endswith(b"\n"):
        raise ValueError("journal does not end with a whole frame")
    return _frame_decoder.decode_lines(journal)


def prefixes_of(frames: Sequence[Frame], n: int) -> list[Prefix]:
    """What `frames` hold of each of `n` choices."""
    token_ids: list[list[int]] = [[] for _ in range(n)]
    texts: list[list[str]] = [[] for _ in range(n)]
    reasons: list[str | None] = [None] * n
    num_scored = 0
    for frame in frames:
        if isinstance(frame, TokensFrame):
            token_ids[frame.choice].extend(frame.token_ids)
            texts[frame.choice].append(frame.text)
        elif isinstance(frame, ChoiceEndFrame):
            reasons[frame.choice] = frame.finish_reason
        elif isinstance(frame, PromptFrame):
            num_scored += len(frame.logprobs)
    return [
        Prefix(token_ids=tuple(ids), text="".join(text), finish_reason=reason, num_scored=num_scored)
        for ids, text, reason in zip(token_ids, texts, reasons, strict=True)
    ]
