"""The paged runner equals a dense forward, whatever the schedule. In float64, so that rounding decides nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.model.conftest import Load
from tests.model.reference import Reference
from tests.model.stepper import Sequence, Stepper
from tests.model.tiny_model import LLAMA3_SCALING, VOCAB, write_model
from worker.model.attention import _alike  # its rule is worth a test of its own
from worker.model.torch_runner import TorchRunner

VARIANTS = {
    "grouped queries, tied": {},
    "all heads, untied, llama3 rope": {
        "num_key_value_heads": 4,
        "tie_word_embeddings": False,
        "rope_scaling": LLAMA3_SCALING,
    },
    "one key head, wide heads, linear rope": {
        "num_key_value_heads": 1,
        "head_dim": 16,
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    },
}


def prompts(seed: int, lengths: list[int]) -> list[list[int]]:
    generator = np.random.default_rng(seed)
    return [generator.integers(0, VOCAB, length).tolist() for length in lengths]


PROMPTS = prompts(0, [1, 2, 15, 16, 17, 33, 50, 150])


@pytest.fixture(scope="module", params=VARIANTS.values(), ids=list(VARIANTS))
def model(request: pytest.FixtureRequest, load: Load, tmp_path_factory: pytest.TempPathFactory):
    folder = write_model(tmp_path_factory.mktemp("tiny"), **request.param)
    return load(folder, dtype="float64"), Reference(folder, torch.float64)


@pytest.fixture(scope="module")
def greedy(model) -> list[list[int]]:
    return [model[1].greedy(prompt, 8) for prompt in PROMPTS]


@pytest.mark.parametrize(("seed", "max_chunk", "arrival"), [(1, 1, 1.0), (2, 7, 0.5), (3, 40, 0.7), (4, 400, 1.0)])
def test_greedy_tokens_do_not_depend_on_the_schedule(
    model, greedy: list[list[int]], seed: int, max_chunk: int, arrival: float
) -> None:
    sequences = [Sequence(list(ids), max_new=8) for ids in PROMPTS]
    Stepper(model[0].runner, seed).run(sequences, max_chunk=max_chunk, arrival=arrival)
    assert [sequence.made for sequence in sequences] == greedy
    assert len({tuple(made) for made in greedy}) == len(greedy)  # the model does tell prompts apart


def test_logits_of_chunks_and_decodes_in_one_step_are_the_dense_ones(model) -> None:
    loaded, reference = model
    assert isinstance(loaded.runner, TorchRunner)
    stepper = Stepper(loaded.runner)
    sequences = [Sequence(ids) for ids in prompts(5, [40, 90, 300, 20])]
    stepper.step([(sequences[0], 39), (sequences[1], 60), (sequences[2], 299)])
    work = [(sequences[0], 1), (sequences[1], 30), (sequences[2], 1), (sequences[3], 20)]
    logits = loaded.runner.logits(stepper.batch(work))
    expected = torch.stack([reference.logits(sequence.token_ids)[-1] for sequence in sequences])
    torch.testing.assert_close(logits, expected, rtol=1e-9, atol=1e-9)


def test_a_shared_prefix_block_is_read_and_not_written(model) -> None:
    loaded, reference = model
    stepper = Stepper(loaded.runner)
    first, second = (Sequence(ids, max_new=1) for ids in prompts(6, [40, 40]))
    second.token_ids[:32] = first.token_ids[:32]
    stepper.step([(first, 40)])
    second.blocks, second.num_computed = first.blocks[:2], 32
    stepper.step([(second, 8), (first, 1)])
    assert second.made == reference.greedy(second.token_ids[:40], 1)
    assert first.made == reference.greedy(first.token_ids[:40], 2)


def test_choices_may_share_a_sequence(model) -> None:
    loaded, _ = model
    batch = Stepper(loaded.runner).batch([(Sequence(ids), len(ids)) for ids in prompts(7, [5, 9])])
    once = loaded.runner.execute(batch).token_ids
    batch.sample_rows = batch.sample_rows[[0, 0, 0, 1]]
    assert loaded.runner.execute(batch).token_ids.tolist() == [once[0], once[0], once[0], once[1]]


def test_a_step_that_completes_no_prompt_makes_no_token(model) -> None:
    loaded, _ = model
    batch = Stepper(loaded.runner).batch([(Sequence(ids), 4) for ids in prompts(8, [9, 12])])
    assert loaded.runner.execute(batch).token_ids.tolist() == []


def test_float32_agrees_where_the_best_two_are_apart(load: Load, tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    runner, reference = load(folder).runner, Reference(folder, torch.float64)
    sequences = [Sequence(ids, max_new=20) for ids in prompts(9, [3, 30, 60])]
    Stepper(runner).run(sequences, max_chunk=16)
    for sequence in sequences:
        logits = reference.logits(sequence.token_ids[:-1])[sequence.num_prompt - 1 :]
        best = logits.topk(2).values
        is_close = best[:, 0] - best[:, 1] < 1e-4
        assert bool(((logits.argmax(-1) == torch.tensor(sequence.made)) | is_close).all())


@pytest.mark.parametrize("seed", range(5))
def test_groups_hold_every_sequence_once_and_at_most_double_its_blocks(seed: int) -> None:
    generator = np.random.default_rng(seed)
    seq_lens = generator.integers(1, 4000, 40)
    seqs = np.sort(generator.permutation(40)[:30])
    groups = _alike(seqs, seq_lens)
    assert sorted(np.concatenate(groups).tolist()) == seqs.tolist()
    for group in groups:
        num_blocks = -(-seq_lens[group] // 16)
        assert num_blocks.max() <= max(2 * num_blocks.min(), 8)
