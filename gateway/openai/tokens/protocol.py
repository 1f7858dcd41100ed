"""Bodies of /tokenize and /detokenize, as models: a text or a conversation, or token ids.

What asks for text only has no need to name the model where one is served (evaluation harnesses do not). Parsing is one
call, bytes -> model, as in gateway/openai/protocol.py.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import FailFast, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from gateway.openai.body import json_object
from gateway.openai.fields import NEVER, honoured_fields
from gateway.openai.messages import MAX_MESSAGES, ChatMessage, StrictModel
from gateway.openai.protocol import ChatCompletionRequest, TemplateRequest, TokenId, invalid_request

UNSUPPORTED_IN_TOKENIZE: dict[str, tuple[Any, ...]] = {
    "chat_template": NEVER,
    "continue_final_message": (False,),
    "return_token_strs": (False,),
}
ModelName = Annotated[str, Field(min_length=1, max_length=256)]


class TokenizeRequest(TemplateRequest):
    """`add_special_tokens`: what the model expects around a bare text. Not given, a prompt has them, as in
    /v1/completions, and messages do not, as in chat, where the template writes them."""

    model: ModelName | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = Field(default=None, min_length=1, max_length=MAX_MESSAGES)
    add_special_tokens: bool | None = None

    @property
    def is_heavy(self) -> bool:
        return bool(self.tools)

    @model_validator(mode="after")
    def _one_of_two(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise PydanticCustomError("at_prompt", "give either prompt or messages")
        if self.prompt is not None:
            for name in TemplateRequest.model_fields:
                if name in self.model_fields_set:
                    raise PydanticCustomError("at_prompt", "goes without {name}, which is for messages", {"name": name})
        return self

    def chat(self, model: str) -> ChatCompletionRequest | None:
        """The chat request that has these messages; None for a prompt. Its parts are checked already."""
        if self.messages is None:
            return None
        given = {name: getattr(self, name) for name in ("messages", *TemplateRequest.model_fields)}
        return ChatCompletionRequest.model_construct(model=model, **given)


class DetokenizeRequest(StrictModel):
    model: ModelName | None = None
    tokens: Annotated[list[TokenId], FailFast()]


Body = TypeVar("Body", TokenizeRequest, DetokenizeRequest)


def parse_tokenize(raw: bytes, *, is_strict: bool = False) -> TokenizeRequest:
    """Strict refuses what would have no effect. Raises InvalidRequest."""
    return _validated(TokenizeRequest, honoured_fields(json_object(raw), UNSUPPORTED_IN_TOKENIZE, is_strict=is_strict))


def parse_detokenize(raw: bytes) -> DetokenizeRequest:
    """Raises InvalidRequest."""
    return _validated(DetokenizeRequest, json_object(raw))


def _validated(kind: type[Body], fields: dict[str, Any]) -> Body:
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise invalid_request(error.errors(include_url=False, include_context=False, include_input=False)) from None
