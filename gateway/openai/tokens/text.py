"""Text to token ids and back, and what a tokenizer says of itself: the answers that evaluation tools ask for.

The ids are those that the generating endpoints would put into the queue, made by the same code. Pure and CPU-bound; the
answers are bytes, so that a long one is written on the thread that made it.
"""

from __future__ import annotations

from typing import Any

import orjson

from gateway.openai.convert import Target, check_ids
from gateway.openai.tokens.protocol import DetokenizeRequest, TokenizeRequest
from gateway.openai.tools.plan import plan_of
from shared.text.tokenizer import Tokenizer

_TOLD = ("eos_token", "bos_token", "pad_token")


def tokenized(body: TokenizeRequest, target: Target) -> bytes:
    """Raises InvalidRequest for messages that the model's template or tools cannot take. A text too long for the model
    is none: it is counted."""
    chat = body.chat(target.card.name)
    prompt = body.prompt or "" if chat is None else plan_of(chat, target.card, target.tokenizer).prompt
    is_bare = chat is None if body.add_special_tokens is None else body.add_special_tokens
    ids = target.tokenizer.encode(prompt, add_special_tokens=is_bare)
    return orjson.dumps({"tokens": ids, "count": len(ids), "max_model_len": target.max_total_tokens})


def detokenized(body: DetokenizeRequest, target: Target) -> bytes:
    """Special tokens have their text. Raises InvalidRequest for an id outside the vocabulary."""
    check_ids(body.tokens, target.card.vocab_size, "tokens")
    return orjson.dumps({"prompt": target.tokenizer.decode(body.tokens, skip_special_tokens=False)})


def info_of(tokenizer: Tokenizer) -> dict[str, Any]:
    """None for what it has not."""
    told: dict[str, Any] = {name: tokenizer.special_tokens[name] for name in _TOLD}
    return told | {"chat_template": tokenizer.chat_template or None}
