"""lm-eval on a task of its own lines: log-likelihoods and generation, with our tokenizer, and chat."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from loadtest.clients.programs.command import run_command
from loadtest.clients.steps import expect, server, step

SERVER = server()
COUNTING = [
    {"q": "One, two, three,", "choices": [" four", " stone"], "answer": 0, "text": " four"},
    {"q": "Monday, Tuesday,", "choices": [" green", " Wednesday"], "answer": 1, "text": " Wednesday"},
    {"q": "The capital of France is", "choices": [" Paris", " of"], "answer": 0, "text": " Paris"},
]
DATA = "dataset_path: json\ndataset_kwargs: {data_files: {test: lines.jsonl}}\ntest_split: test\ndoc_to_text: '{{q}}'\n"
TASKS = {
    "likely": "output_type: multiple_choice\ndoc_to_choice: '{{choices}}'\ndoc_to_target: answer\n"
    "metric_list: [{metric: acc}]\n",
    "rolled": "output_type: loglikelihood_rolling\ndoc_to_target: '{{q}}'\nmetric_list: [{metric: bits_per_byte}]\n",
    "written": "output_type: generate_until\ndoc_to_target: '{{text}}'\n"
    "generation_kwargs: {until: [\"\\n\"], max_gen_toks: 8, temperature: 0}\nmetric_list: [{metric: exact_match}]\n",
}  # fmt: skip


def evaluate(kind: str, endpoint: str, task: str, *options: str) -> dict[str, Any]:
    """The figures of the task."""
    told = f"model={SERVER.real},base_url={SERVER.v1}/{endpoint},num_concurrent=4,max_retries=1"
    told += ",tokenizer_backend=remote,max_length=8192" if kind == "local-completions" else ",tokenizer_backend=None"
    command = ["lm_eval", "run", "--model", kind, "--model_args", told, "--tasks", task, "--include_path", "tasks"]
    run_command([*command, "--output_path", f"out-{kind}-{task}", *options])
    path = next(Path(f"out-{kind}-{task}").rglob("results*.json"))
    return json.loads(path.read_text())["results"][task]


def main() -> None:
    Path("lines.jsonl").write_text("".join(json.dumps(line) + "\n" for line in COUNTING))
    Path("tasks").mkdir()
    for name, text in TASKS.items():
        Path(f"tasks/{name}.yaml").write_text(f"task: {name}\n{DATA}{text}")
    with step("local-completions: multiple choice by log-likelihood, four prompts a request, our tokenizer"):
        figures = evaluate("local-completions", "completions", "likely", "--batch_size", "4")
        expect(figures["acc,none"] > 0.6, str(figures))
    with step("local-completions: rolling log-likelihood"):
        figures = evaluate("local-completions", "completions", "rolled")
        expect(0 < figures["bits_per_byte,none"] < 8, str(figures))
    with step("local-completions: generation"):
        expect("exact_match,none" in evaluate("local-completions", "completions", "written"), "no figure")
    with step("local-chat-completions: generation"):
        figures = evaluate("local-chat-completions", "chat/completions", "written", "--apply_chat_template")
        expect("exact_match,none" in figures, "no figure")


if __name__ == "__main__":
    main()
