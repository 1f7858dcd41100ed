"""aider, one message at a time, in a repository of its own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from loadtest.clients.programs.command import run_command
from loadtest.clients.steps import ModelUnable, expect, server, step

SERVER = server()
OPTIONS = (
    "--model", f"openai/{SERVER.real}", "--yes-always", "--no-check-update", "--no-show-model-warnings",
    "--no-analytics", "--no-pretty", "--map-tokens", "0", "--no-show-release-notes",
)  # fmt: skip


# Its own files for what it cannot know of a model. Without a limit a small one goes on to the end of its context.
SETTINGS = f"- name: openai/{SERVER.real}\n  extra_params: {{max_tokens: 200, temperature: 0}}\n"
METADATA = {f"openai/{SERVER.real}": {"max_input_tokens": 8192, "max_output_tokens": 8192, "mode": "chat"}}


def aider(*options: str) -> str:
    env = {"OPENAI_API_BASE": SERVER.v1, "OPENAI_API_KEY": "unused"}
    return run_command(["aider", *OPTIONS, *options], env=env)


def main() -> None:
    subprocess.run(["git", "init", "--quiet"], check=True)
    for name, value in (("user.name", "a"), ("user.email", "a@localhost")):
        subprocess.run(["git", "config", name, value], check=True)
    Path("greet.py").write_text('def greet():\n    return "hello"\n')
    Path(".aider.model.settings.yml").write_text(SETTINGS)
    Path(".aider.model.metadata.json").write_text(json.dumps(METADATA))
    for way in ("--stream", "--no-stream"):
        with step(f"aider: a question about a file, {way}"):
            said = aider("--chat-mode", "ask", way, "--message", "What does greet return? One sentence.", "greet.py")
            expect("Tokens:" in said and "hello" in said, said[-400:])
    with step("aider: an edit, whole files"):
        asked = 'Make greet return "goodbye". Give the whole file.'
        said = aider("--edit-format", "whole", "--message", asked, "greet.py")
        expect("Tokens:" in said or "token limit" in said, said[-400:])
        if "goodbye" not in Path("greet.py").read_text():
            raise ModelUnable("the answer came and was no edit that aider could apply")


if __name__ == "__main__":
    main()
