"""LlamaIndex by its `OpenAILike`."""

from __future__ import annotations

import asyncio

from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

from loadtest.clients.steps import expect, server, step

SERVER = server()
QUESTION = "What is the capital of France? Answer in one sentence."


class City(BaseModel):
    """A city."""

    coastal: bool


def weather(warm: bool) -> str:
    """The weather now."""
    return "20 degrees"


def main() -> None:
    llm = OpenAILike(
        model=SERVER.real, api_base=SERVER.v1, api_key="unused", is_chat_model=True, is_function_calling_model=True,
        context_window=8192, max_tokens=60, temperature=0,
    )  # fmt: skip
    asked = [ChatMessage(role="user", content=QUESTION)]
    with step("complete, by chat"):
        text = llm.complete(QUESTION).text
        expect("Paris" in text, text)
    with step("complete, by text completion"):
        texts = OpenAILike(model=SERVER.real, api_base=SERVER.v1, api_key="unused", is_chat_model=False, max_tokens=6)
        expect(texts.complete("One, two, three,").text, "no text")
    with step("stream_chat says the same"):
        expect(list(llm.stream_chat(asked))[-1].message.content == text, "another text")
    with step("achat and astream_chat"):

        async def both() -> tuple[str, str]:
            plain = (await llm.achat(asked)).message.content
            stream = await llm.astream_chat(asked)
            return plain, [part async for part in stream][-1].message.content

        expect(asyncio.run(both()) == (text, text), "another text")
    with step("a required tool call"):
        tool = FunctionTool.from_defaults(weather)
        reply = llm.chat_with_tools([tool], user_msg=QUESTION, tool_required=True)
        calls = llm.get_tool_calls_from_response(reply)
        expect(calls[0].tool_name == "weather" and "warm" in calls[0].tool_kwargs, str(calls))
    with step("structured_predict"):
        city = llm.structured_predict(City, PromptTemplate(QUESTION), llm_kwargs={"tool_choice": "required"})
        expect(isinstance(city, City), str(city))


if __name__ == "__main__":
    main()
