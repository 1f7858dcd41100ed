"""Which clients are run, in which versions, and what each is made to do; by how many use them, roughly.

`session` is a module of this package, run by the client's own interpreter, or a script for node. The words of `does`
are those of docs/clients.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MINUTES = 60.0


@dataclass(frozen=True, slots=True)
class Client:
    """`packages` have their exact versions: the first is the client, the others are what it is run with. `one_model`:
    it asks for a tokenizer and names no model, so only the packaged one is served to it."""

    name: str
    installer: Literal["uv", "npm"]
    packages: tuple[str, ...]
    session: str
    does: str
    timeout_s: float = 6 * MINUTES
    one_model: bool = False


_SDK = (
    "sync and async: chat, streams, tools, `parse`, completions, embeddings, models, headers, errors, responses, "
    "files and batches"
)
_LIBRARIES = "loadtest.clients.libraries"
_PROGRAMS = "loadtest.clients.programs"

ROSTER = (
    *(
        Client(f"openai {version}", "uv", (f"openai=={version}",), f"{_LIBRARIES}.official", _SDK)
        for version in ("3.57.0", "2.54.0", "1.109.1")
    ),
    *(
        Client(
            f"openai {version} (npm)", "npm", (f"openai@{version}",), "official.mjs",
            "chat, streams and their helper, tools, completions, models, errors, responses, files",
        )
        for version in ("7.59.0", "6.49.0")
    ),
    Client(
        "langchain-openai", "uv", ("langchain-openai==1.7.4", "langchain-tests==1.1.9"),
        f"{_LIBRARIES}.langchain_suite",
        "LangChain's own `ChatModelIntegrationTests`; the 7 for images, sounds, PDF and the like skip themselves",
        10 * MINUTES,
    ),
    Client(
        "langchain-openai, by responses", "uv", ("langchain-openai==1.7.4", "langchain-tests==1.1.9"),
        f"{_LIBRARIES}.langchain_responses", "the same suite with `use_responses_api=True`", 10 * MINUTES,
    ),
    Client(
        "ai + @ai-sdk/openai-compatible (npm)", "npm",
        ("ai@6.0.326", "@ai-sdk/openai-compatible@2.0.92", "zod@4.1.12"), "vercel.mjs",
        "`generateText`, `streamText`, a tool loop, `generateObject`, usage, errors",
    ),
    Client(
        "litellm", "uv", ("litellm==1.110.2",), f"{_LIBRARIES}.lite",
        "as a client: completion, stream, async, tools, JSON schema, text completion, its exceptions, responses",
    ),
    Client(
        "llama-index-llms-openai-like", "uv", ("llama-index-llms-openai-like==0.8.1",), f"{_LIBRARIES}.llamaindex",
        "complete, chat, streams, async, a tool call, structured prediction",
    ),
    Client(
        "pydantic-ai-slim", "uv", ("pydantic-ai-slim[openai]==2.68.0",), f"{_LIBRARIES}.pydantic_agent",
        "text, stream, native and tool output, an agent's tool loop, its error classes, responses",
    ),
    Client(
        "openai-agents", "uv", ("openai-agents==0.24.0",), f"{_LIBRARIES}.agents_loop",
        "agents on chat and on responses: a tool loop, streamed too, typed output",
    ),
    Client(
        "instructor", "uv", ("instructor==1.17.0",), f"{_LIBRARIES}.instructed",
        "models by tool call, by JSON schema and by partial stream, sync and async",
    ),
    Client(
        "openresponses-types", "uv", ("openresponses-types==2.4.0", "httpx==0.28.1"), f"{_LIBRARIES}.open_responses",
        "every reply and event of `/v1/responses` against the Open Responses schema",
    ),
    Client(
        "codex (npm)", "npm", ("@openai/codex@0.171.0",), f"{_PROGRAMS}.codex",
        '`codex exec` with `wire_api="responses"`: a turn, another, an answer of a schema', 15 * MINUTES,
    ),
    Client(
        "aider-chat", "uv", ("aider-chat==0.86.2",), f"{_PROGRAMS}.aider", "`--message` in `ask` and in `whole` mode",
    ),
    Client(
        "lm-eval", "uv", ("lm-eval[api]==0.4.13",), f"{_PROGRAMS}.harness",
        "`local-completions` with our tokenizer (log-likelihoods and generation), `local-chat-completions`",
        one_model=True,
    ),
    Client(
        "inspect-ai", "uv", ("inspect-ai==0.3.285", "openai==3.57.0"), f"{_PROGRAMS}.inspecting",
        "`inspect eval` of a task by `openai-api/...`",
    ),
    Client(
        "llm", "uv", ("llm==0.36",), f"{_PROGRAMS}.llm_command", "prompt, `--no-stream`, `--schema`, a conversation",
    ),
)  # fmt: skip
