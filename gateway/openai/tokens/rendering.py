"""What a chat request would become, without asking the model: the text of its prompt, and the token ids of it.

The conversion is chat's own, with every check that it makes, so what is refused there is refused here.
"""

from __future__ import annotations

import orjson

from gateway.openai.convert import Target, chat_request
from gateway.openai.protocol import ChatCompletionRequest


def rendered(body: ChatCompletionRequest, target: Target) -> bytes:
    """`max_tokens` is what its answer could have. Raises InvalidRequest or ContextLengthExceeded."""
    converted = chat_request(body, target)
    ids = converted.request.prompt_ids
    return orjson.dumps(
        {
            "model": target.name,
            "prompt": converted.prompt,
            "token_ids": ids,
            "prompt_tokens": len(ids),
            "max_tokens": converted.request.params.max_tokens,
        }
    )
