"""The real small model on the CPU kernels: true words, the same under any schedule, and what rounding costs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shared.text.tokenizer import Tokenizer
from tests.model.conftest import Load
from tests.model.stepper import Sequence, Stepper
from worker.model.cpu.choice import KernelConfig
from worker.model.runner import LoadedModel

pytestmark = pytest.mark.timeout(300)  # the first of them compiles
TEXT = Path(__file__).parents[3] / "LICENSE"
QUESTIONS = [
    "What is the capital of France?",
    "Who wrote Romeo and Juliet?",
    "What is 2 + 2?",
    "Explain in detail, for a reader who has never seen one, how a water mill turns a river into work. " * 3,
]


@pytest.fixture(scope="module")
def load_fast(load: Load, kernels: Callable[..., KernelConfig], smollm2: LoadedModel) -> Callable[..., Any]:
    """The runner. `smollm2` skips where there is none."""
    return lambda **settings: load("smollm2", kernels=kernels(**settings), kv_cache_bytes=64 << 20, threads=2).runner


@pytest.fixture(scope="module")
def tokenizer(smollm2: LoadedModel) -> Tokenizer:
    return Tokenizer.from_blob(smollm2.tokenizer_blob)


def answers(runner: Any, prompts: list[list[int]], seed: int, max_chunk: int) -> list[list[int]]:
    sequences = [Sequence(list(prompt), max_new=24) for prompt in prompts]
    Stepper(runner, seed).run(sequences, max_chunk=max_chunk, arrival=0.5)
    return [sequence.made for sequence in sequences]


def test_answers_are_true_and_do_not_depend_on_the_schedule(
    load_fast: Callable[..., Any], tokenizer: Tokenizer
) -> None:
    runner = load_fast()
    prompts = [tokenizer.encode(tokenizer.render_chat([{"role": "user", "content": text}])) for text in QUESTIONS]
    made = answers(runner, prompts, seed=0, max_chunk=200)
    assert "Paris" in tokenizer.decode(made[0]) and "Shakespeare" in tokenizer.decode(made[1])
    assert answers(runner, prompts, seed=1, max_chunk=5) == made
    assert [answers(runner, [prompt], seed=2, max_chunk=48)[0] for prompt in prompts] == made


@pytest.mark.parametrize(
    ("settings", "divergence", "agreement"),
    [({}, 1e-5, 0.99), ({"activations": "mixed"}, 0.003, 0.96), ({"activations": "int8"}, 0.006, 0.94)],
    ids=["int16", "mixed", "int8"],
)
def test_what_rounding_costs(
    smollm2: LoadedModel,
    load_fast: Callable[..., Any],
    tokenizer: Tokenizer,
    settings: dict[str, Any],
    divergence: float,
    agreement: float,
) -> None:
    """Against fp32 on the same weights, on a fixed text; docs/engine.md has the figures of longer ones."""
    ids = tokenizer.encode(TEXT.read_text(encoding="utf-8"))[:300]
    exact, made = every_logits(smollm2.runner, ids), every_logits(load_fast(**settings), ids)
    assert (exact.exp() * (exact - made)).sum(-1).mean() < divergence
    assert (exact.argmax(-1) == made.argmax(-1)).double().mean() > agreement


def every_logits(runner: Any, ids: list[int]) -> torch.Tensor:
    """Logarithms of probabilities after each token, [tokens, vocab]."""
    batch = Stepper(runner).batch([(Sequence(list(ids)), len(ids))])
    if hasattr(runner, "_hidden"):
        with torch.inference_mode():
            return torch.log_softmax(runner._model.logits(runner._hidden(batch)).double(), -1)
    rows = np.arange(len(ids))
    runner._run(batch, rows, rows)
    return torch.log_softmax(torch.from_numpy(runner._logits).double(), -1)
