"""The real small model: right tokens against the dense forward, plain English, one model from two formats."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from shared.text.tokenizer import Tokenizer
from tests.model.conftest import Load
from tests.model.reference import Reference
from tests.model.stepper import Sequence, Stepper
from worker.model.runner import LoadedModel

NEW_TOKENS = 24
TIE = 1e-4  # below this gap of the best two logits, fp32 rounding may choose
QUESTIONS = [
    "What is the capital of France?",
    "Name three colours.",
    "Write a sentence about the sea.",
    "What is 2 + 2?",
    "Why is the sky blue? Answer in one short paragraph.",
    "Translate 'good morning' to Spanish.",
    "List the days of the week.",
    "Write a Python function that adds two numbers.",
    "Who wrote Romeo and Juliet?",
    "Explain in detail, for a reader who has never seen one, how a water mill turns a river into work. " * 3,
]


@pytest.fixture(scope="module")
def tokenizer(smollm2: LoadedModel) -> Tokenizer:
    return Tokenizer.from_blob(smollm2.tokenizer_blob)


@pytest.fixture(scope="module")
def answers(smollm2: LoadedModel, tokenizer: Tokenizer) -> list[Sequence]:
    sequences = [Sequence(chat(tokenizer, question), max_new=NEW_TOKENS) for question in QUESTIONS]
    Stepper(smollm2.runner).run(sequences, max_chunk=48, arrival=0.7)
    return sequences


def chat(tokenizer: Tokenizer, question: str) -> list[int]:
    return tokenizer.encode(tokenizer.render_chat([{"role": "user", "content": question}]))


def test_greedy_tokens_are_the_dense_forwards(answers: list[Sequence], smollm2_folder: Path) -> None:
    reference = Reference(smollm2_folder)
    num_ties = 0
    for answer in answers:
        logits = reference.logits(answer.token_ids[:-1])[answer.num_prompt - 1 :]
        best = logits.topk(2).values
        is_other = logits.argmax(-1) != torch.tensor(answer.made)
        assert not bool((is_other & (best[:, 0] - best[:, 1] >= TIE)).any())
        num_ties += int(is_other.sum())
    print(f"ties decided otherwise: {num_ties} of {NEW_TOKENS * len(answers)}")
    assert num_ties <= 2


def test_answers_are_english_and_true(answers: list[Sequence], tokenizer: Tokenizer) -> None:
    texts = [tokenizer.decode(answer.made) for answer in answers]
    assert "Paris" in texts[0]
    assert "Shakespeare" in texts[8]


def test_gguf_and_folder_are_one_model(
    smollm2: LoadedModel, smollm2_folder: Path, load: Load, answers: list[Sequence]
) -> None:
    other = load(smollm2_folder, kv_cache_bytes=64 << 20)
    assert other.tokenizer_blob.chat_template == smollm2.tokenizer_blob.chat_template
    assert other.card.stop_token_ids == smollm2.card.stop_token_ids == (2,)
    prompts = [answer.token_ids[: answer.num_prompt] for answer in answers[:4]]
    logits = []
    for runner in (smollm2.runner, other.runner):
        batch = Stepper(runner).batch([(Sequence(prompt), len(prompt)) for prompt in prompts])
        logits.append(runner.logits(batch))  # type: ignore[attr-defined]
    assert torch.equal(logits[0], logits[1])


def test_the_packaged_models_card(smollm2: LoadedModel) -> None:
    card = smollm2.card
    assert card.name == "smollm2-135m-instruct"
    assert (card.context_length, card.vocab_size, card.stop_token_ids) == (8192, 49_152, (2,))
    assert card.max_request_tokens == (smollm2.runner.num_blocks - 1) * 16


def test_chat_turns_are_single_special_tokens(tokenizer: Tokenizer) -> None:
    ids = chat(tokenizer, "Hi")
    assert [tokenizer.token_id(token) for token in ("<|im_start|>", "<|im_end|>")] == [1, 2]
    assert ids.count(1) == 3 and ids.count(2) == 2  # system, user, and the assistant's opened turn


@pytest.mark.parametrize("text", ["Hello, world! 1234", "naïve café — 東京 🚀", "def f(x):\n    return x**2\n"])
def test_text_round_trips(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert len(ids) < len(text.encode())
