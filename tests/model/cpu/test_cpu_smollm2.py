"""The real small model on the CPU kernels: true words, the price of eight-bit activations, the same words under load."""

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
def fast(smollm2: LoadedModel, load: Load, kernels: Callable[..., KernelConfig]) -> LoadedModel:
    return load("smollm2", kernels=kernels(), kv_cache_bytes=64 << 20, threads=2)


@pytest.fixture(scope="module")
def tokenizer(smollm2: LoadedModel) -> Tokenizer:
    return Tokenizer.from_blob(smollm2.tokenizer_blob)


def answers(runner: Any, prompts: list[list[int]], seed: int, max_chunk: int) -> list[list[int]]:
    sequences = [Sequence(list(prompt), max_new=24) for prompt in prompts]
    Stepper(runner, seed).run(sequences, max_chunk=max_chunk, arrival=0.5)
    return [sequence.made for sequence in sequences]


def test_answers_are_true_and_do_not_depend_on_the_schedule(fast: LoadedModel, tokenizer: Tokenizer) -> None:
    prompts = [tokenizer.encode(tokenizer.render_chat([{"role": "user", "content": text}])) for text in QUESTIONS]
    made = answers(fast.runner, prompts, seed=0, max_chunk=200)
    assert "Paris" in tokenizer.decode(made[0]) and "Shakespeare" in tokenizer.decode(made[1])
    assert answers(fast.runner, prompts, seed=1, max_chunk=5) == made
    assert [answers(fast.runner, [prompt], seed=2, max_chunk=48)[0] for prompt in prompts] == made


def test_eight_bit_activations_cost_little(smollm2: LoadedModel, fast: LoadedModel, tokenizer: Tokenizer) -> None:
    """Against fp32 on the same weights, on a fixed text; docs/engine.md has the figures of a longer one."""
    ids = tokenizer.encode(TEXT.read_text(encoding="utf-8"))[:400]
    exact, made = every_logits(smollm2.runner, ids), every_logits(fast.runner, ids)
    divergence = (exact.exp() * (exact - made)).sum(-1)
    likelihood = [logits[:-1].gather(1, torch.tensor(ids[1:])[:, None]).mean() for logits in (exact, made)]
    assert divergence.mean() < 0.006
    assert (exact.argmax(-1) == made.argmax(-1)).double().mean() > 0.94
    assert abs(likelihood[0] - likelihood[1]) < 0.03  # the logarithm of the perplexities' ratio


def every_logits(runner: Any, ids: list[int]) -> torch.Tensor:
    """Logarithms of probabilities after each token, [tokens, vocab]."""
    batch = Stepper(runner).batch([(Sequence(list(ids)), len(ids))])
    if hasattr(runner, "_hidden"):
        with torch.inference_mode():
            return torch.log_softmax(runner._model.logits(runner._hidden(batch)).double(), -1)
    rows = np.arange(len(ids))
    runner._run(batch, rows, rows)
    return torch.log_softmax(torch.from_numpy(runner._logits).double(), -1)
