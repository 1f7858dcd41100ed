"""The real small model, at length: tokens and logits against the dense forward and the transformers package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from shared.text.tokenizer import Tokenizer
from tests.model.reference import Reference
from tests.model.stepper import Sequence, Stepper
from tests.model.test_smollm2 import QUESTIONS, TIE, chat
from worker.model.runner import LoadedModel

NUM_PROMPTS, NEW_TOKENS = 50, 64
SUBJECTS = ["a lighthouse", "the moon", "bread", "an old clock", "winter", "a violin", "the desert", "a library"]
ORDERS = [
    "Write two sentences about {}.",
    "Explain {} to a child.",
    "List three facts about {}.",
    "Write a short poem about {}.",
    "Continue the story: once there was {} that",
]
PROMPTS = [*QUESTIONS, *(order.format(subject) for order in ORDERS for subject in SUBJECTS)]


def logits_of(runner: Any, prompts: list[list[int]]) -> torch.Tensor:
    return runner.logits(Stepper(runner).batch([(Sequence(list(ids)), len(ids)) for ids in prompts]))


def test_logits_are_the_dense_forwards(smollm2: LoadedModel, smollm2_folder: Path) -> None:
    tokenizer, reference = Tokenizer.from_blob(smollm2.tokenizer_blob), Reference(smollm2_folder)
    prompts = [chat(tokenizer, question) for question in QUESTIONS[:4]]
    expected = torch.stack([reference.logits(ids)[-1] for ids in prompts])
    torch.testing.assert_close(logits_of(smollm2.runner, prompts), expected, rtol=0, atol=1e-4)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_greedy_tokens_of_fifty_prompts_are_the_dense_forwards(smollm2: LoadedModel, smollm2_folder: Path) -> None:
    """A tie, where fp32 rounding decides between two logits, may go either way; there are few."""
    tokenizer, reference = Tokenizer.from_blob(smollm2.tokenizer_blob), Reference(smollm2_folder)
    sequences = [Sequence(chat(tokenizer, prompt), max_new=NEW_TOKENS) for prompt in PROMPTS]
    assert len(sequences) == NUM_PROMPTS
    Stepper(smollm2.runner, seed=1).run(sequences, max_chunk=48, arrival=0.7)
    num_ties = 0
    for sequence in sequences:
        logits = reference.logits(sequence.token_ids[:-1])[sequence.num_prompt - 1 :]
        best = logits.topk(2).values
        is_other = logits.argmax(-1) != torch.tensor(sequence.made)
        assert not bool((is_other & (best[:, 0] - best[:, 1] >= TIE)).any())
        num_ties += int(is_other.sum())
    print(f"ties decided otherwise: {num_ties} of {NEW_TOKENS * NUM_PROMPTS}")
    assert num_ties <= 3


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_logits_are_those_of_transformers(smollm2: LoadedModel, smollm2_folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(smollm2_folder).eval()
    tokenizer = Tokenizer.from_blob(smollm2.tokenizer_blob)
    prompts = [chat(tokenizer, prompt) for prompt in PROMPTS[:8]]
    with torch.inference_mode():
        expected = torch.stack([theirs(torch.tensor([ids])).logits[0, -1] for ids in prompts])
    torch.testing.assert_close(logits_of(smollm2.runner, prompts), expected, rtol=0, atol=1e-4)
