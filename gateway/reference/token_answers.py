"""What the tokenizers' endpoints answer, as models: a part of answers.py.

`null` of a special token or of the template: the model has none.
"""

from __future__ import annotations

from pydantic import BaseModel


class Rendered(BaseModel):
    model: str
    prompt: str
    token_ids: list[int]
    prompt_tokens: int
    max_tokens: int


class Tokenized(BaseModel):
    tokens: list[int]
    count: int
    max_model_len: int


class Detokenized(BaseModel):
    prompt: str


class TokenizerInfo(BaseModel):
    eos_token: str | None
    bos_token: str | None
    pad_token: str | None
    chat_template: str | None
