"""Simon Willison's `llm`, set up as its manual says: a file `extra-openai-models.yaml`, and a key."""

from __future__ import annotations

import json
from pathlib import Path

from loadtest.clients.programs.command import run_command
from loadtest.clients.steps import expect, server, step

SERVER = server()
QUESTION = "What is the capital of France? Answer in one sentence."
SHORT = ["-o", "temperature", "0", "-o", "max_tokens", "40"]


def main() -> None:
    home = Path.cwd() / "llm"
    home.mkdir()
    told = f"- model_id: here\n  model_name: {SERVER.real}\n  api_base: {SERVER.v1}\n  supports_schema: true\n"
    (home / "extra-openai-models.yaml").write_text(told)
    env = {"LLM_USER_PATH": str(home)}
    with step("llm: a prompt, streamed, and the same with --no-stream"):
        streamed = run_command(["llm", "-m", "here", *SHORT, QUESTION], env=env)
        plain = run_command(["llm", "-m", "here", "--no-stream", *SHORT, QUESTION], env=env)
        expect("Paris" in streamed and plain == streamed, f"{streamed!r} {plain!r}")
    with step("llm: --schema"):
        said = run_command(["llm", "-m", "here", *SHORT, "--schema", "coastal bool", QUESTION], env=env)
        expect(isinstance(json.loads(said)["coastal"], bool), said)
    with step("llm: a conversation goes on"):
        expect(run_command(["llm", "-c", *SHORT, "And of Italy?"], env=env).strip(), "no answer")
    with step("llm: a model that is not served is told in our words"):
        (home / "extra-openai-models.yaml").write_text(told.replace(SERVER.real, "gpt-none"))
        said = run_command(["llm", "-m", "here", QUESTION], env=env, is_to_fail=True)
        expect("gpt-none" in said, said)


if __name__ == "__main__":
    main()
