"""LiteLLM as a client, by its `openai/` and `text-completion-openai/` routes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import litellm

from loadtest.clients.steps import expect, server, step

SERVER = server()
HERE: dict[str, Any] = {"api_base": SERVER.v1, "api_key": "unused"}
REAL: dict[str, Any] = {**HERE, "model": f"openai/{SERVER.real}", "temperature": 0, "max_tokens": 24}
ASKED: Any = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
SCHEMA = {
    "type": "object", "properties": {"coastal": {"type": "boolean"}}, "required": ["coastal"],
    "additionalProperties": False,
}  # fmt: skip
TOOL = {"type": "function", "function": {"name": "note", "parameters": SCHEMA}}


async def asynchronous() -> str:
    stream = await litellm.acompletion(messages=ASKED, stream=True, **REAL)
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


def raises(kind: type[Exception], **asked: Any) -> None:
    try:
        litellm.completion(**{**REAL, "messages": ASKED, **asked})
    except kind:
        return
    raise AssertionError(f"no {kind.__name__}")


def main() -> None:
    with step("completion: plain"):
        text = litellm.completion(messages=ASKED, **REAL).choices[0].message.content
        expect("Paris" in text, text)
    with step("completion: a stream says the same, and its chunks are put together with usage"):
        chunks = list(litellm.completion(messages=ASKED, stream=True, stream_options={"include_usage": True}, **REAL))
        whole = litellm.stream_chunk_builder(chunks, messages=ASKED)
        expect(whole.choices[0].message.content == text and whole.usage.completion_tokens > 3, str(whole))
    with step("acompletion: streamed"):
        expect(asyncio.run(asynchronous()) == text, "another text")
    with step("completion: a required tool call"):
        reply = litellm.completion(messages=ASKED, tools=[TOOL], tool_choice="required", **REAL | {"max_tokens": 60})
        expect("coastal" in json.loads(reply.choices[0].message.tool_calls[0].function.arguments), str(reply))
    with step("completion: a JSON schema"):
        shape = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA, "strict": True}}
        reply = litellm.completion(messages=ASKED, response_format=shape, **REAL)
        expect("coastal" in json.loads(reply.choices[0].message.content), str(reply))
    with step("text_completion"):
        reply = litellm.text_completion(
            model=f"text-completion-openai/{SERVER.real}", prompt="One, two,", max_tokens=5, **HERE
        )
        expect(reply.choices[0].text, str(reply))
    with step("exceptions: context window, not found, bad request"):
        raises(litellm.ContextWindowExceededError, messages=[{"role": "user", "content": "word " * 9000}])
        raises(litellm.NotFoundError, model="openai/gpt-none")
        raises(litellm.BadRequestError, temperature=9)
    with step("responses: plain and streamed"):
        asked: dict[str, Any] = {**HERE, "model": f"openai/{SERVER.real}", "input": "Hello", "max_output_tokens": 8}
        reply = litellm.responses(**asked)
        kinds = [str(getattr(event, "type", "")) for event in litellm.responses(stream=True, **asked)]
        expect(reply.output and kinds, f"{reply} {kinds}")


if __name__ == "__main__":
    main()
