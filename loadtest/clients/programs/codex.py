"""OpenAI's Codex, one turn at a time by `codex exec`, with a provider of `wire_api = "responses"`.

Its tools that run at OpenAI's, or send items of their own kind, are switched off by its own settings: they are refused
here by name.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from loadtest.clients.programs.command import CommandFailed, run_command
from loadtest.clients.steps import ModelUnable, expect, server, step

SERVER = server()
SCHEMA: dict[str, Any] = {
    "type": "object", "properties": {"safe": {"type": "boolean"}}, "required": ["safe"], "additionalProperties": False,
}  # fmt: skip
CONFIG = f"""
model = "{SERVER.real}"
model_provider = "headrace"
model_context_window = 8192
web_search = "disabled"

[model_providers.headrace]
name = "Headrace"
base_url = "{SERVER.v1}"
env_key = "OPENAI_API_KEY"
wire_api = "responses"

[features]
multi_agent = false
goals = false

[analytics]
enabled = false
"""


def codex(*arguments: str, is_to_fail: bool = False) -> list[dict[str, Any]]:
    """Its events. Codex takes an answer that reached the end of the context for a failure, and says so."""
    programs = Path(sys.argv[4]) / "node_modules" / ".bin"
    try:
        said = run_command(["codex", "exec", *arguments], folder=programs, is_to_fail=is_to_fail)
    except CommandFailed as error:
        told = error.stdout.rpartition('"turn.failed"')[2]
        if "max_output_tokens" in told or "context window" in told:
            raise ModelUnable("it writes, or calls, to the end of its context, which Codex reports") from error
        raise AssertionError(told) from error
    return [json.loads(line) for line in said.splitlines() if line.startswith("{")]


def answer(*arguments: str) -> str:
    """Of a whole turn; of a second try where the model came to no end in the first. Raises AssertionError unless the
    turn was completed with usage."""
    try:
        events = codex(*arguments)
    except ModelUnable:
        events = codex(*arguments)
    ended = events[-1]
    expect(ended["type"] == "turn.completed" and ended["usage"]["output_tokens"] > 0, str(ended))
    return [event["item"]["text"] for event in events if event.get("item", {}).get("type") == "agent_message"][-1]


def main() -> None:
    subprocess.run(["git", "init", "--quiet"], check=True)
    Path("greet.py").write_text('def greet():\n    return "hello"\n')
    Path("schema.json").write_text(json.dumps(SCHEMA))
    home = Path.home() / ".codex"
    home.mkdir()
    (home / "config.toml").write_text(CONFIG)
    with step("codex exec: a whole turn"):
        expect(answer("--json", "--sandbox", "read-only", "Say hello."), "no message")
    with step("codex exec resume: another turn of the same conversation"):
        expect(answer("resume", "--last", "--json", "Say goodbye."), "no message")
    with step("codex exec --output-schema"):
        told = answer("--json", "--sandbox", "read-only", "--output-schema", "schema.json", "Is greet.py safe?")
        expect(isinstance(json.loads(told)["safe"], bool), told)
    with step("codex exec: a prompt that is too long is told as such"):
        events = codex("--json", "--sandbox", "read-only", "word " * 9000, is_to_fail=True)
        expect("context window" in events[-1]["error"]["message"], str(events[-1]))


if __name__ == "__main__":
    main()
