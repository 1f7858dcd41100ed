"""`inspect eval` by its `openai-api/SERVICE/MODEL` provider, whose address is `SERVICE_BASE_URL`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from loadtest.clients.programs.command import run_command
from loadtest.clients.steps import expect, server, step

SERVER = server()
TASKS = '''
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import tool


@task
def capitals():
    asked = {"France": "Paris", "Italy": "Rome", "Japan": "Tokyo"}
    asking = "What is the capital of {}? Answer in one sentence."
    samples = [Sample(asking.format(land), target=city) for land, city in asked.items()]
    return Task(dataset=samples, solver=generate(), scorer=includes())


@tool
def weather():
    async def execute(indoors: bool) -> str:
        """The weather now.

        Args:
            indoors: Whether in a house.
        """
        return "20 degrees"

    return execute


@task
def called():
    solver = [use_tools(weather(), tool_choice="any"), generate(tool_calls="single")]
    return Task(dataset=[Sample("How warm is it?", target="20")], solver=solver, scorer=includes())
'''


def evaluate(task: str, *options: str) -> dict[str, Any]:
    """The newest log."""
    env = {"HEADRACE_BASE_URL": SERVER.v1, "HEADRACE_API_KEY": "unused", "INSPECT_DISPLAY": "plain"}
    command = ["inspect", "eval", f"tasks.py@{task}", "--model", f"openai-api/headrace/{SERVER.real}"]
    run_command([*command, "--temperature", "0", "--log-dir", task, "--log-format", "json", *options], env=env)
    return json.loads(max(Path(task).glob("*.json")).read_text())


def main() -> None:
    Path("tasks.py").write_text(TASKS)
    with step("inspect eval: three questions are asked and scored"):
        told = evaluate("capitals", "--max-tokens", "40")
        accuracy = told["results"]["scores"][0]["metrics"]["accuracy"]["value"]
        expect(told["status"] == "success" and accuracy > 0, f"{told['status']} {accuracy}")
    with step("inspect eval: with logprobs and several choices"):
        told = evaluate("capitals", "--max-tokens", "10", "--logprobs", "true", "--top-logprobs", "2", "--seed", "1")
        expect(told["status"] == "success", str(told.get("error")))
    with step("inspect eval: a tool is called"):
        told = evaluate("called", "--max-tokens", "60", "--parallel-tool-calls", "false")
        expect(told["status"] == "success", str(told.get("error")))


if __name__ == "__main__":
    main()
