"""The GPU runner on a CPU, with plain kernels and a stand-in for graphs: the tokens of a dense forward."""

from __future__ import annotations

import pytest
import torch
from msgspec.structs import replace

from shared.schemas import PromptFrame
from tests.model.cuda.parts import expected_logits, greedy, kernels_of, prompts, runner_of
from tests.model.stepper import Sequence, Stepper
from tests.unit.worker.engine.harness import FakeModel, drain, make_request, start
from worker.backends.native import compose_native
from worker.backends.simulated import SimulatedConfig, build_simulated
from worker.engine.scheduling.config import SchedulerConfig
from worker.model.cuda.graphs import RerunRecorder

PROMPTS = prompts([1, 2, 15, 16, 17, 33, 50, 90])


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    return [greedy(prompt, 6) for prompt in PROMPTS]


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize(("seed", "max_chunk", "arrival"), [(1, 1, 1.0), (2, 7, 0.5), (3, 100, 0.7)])
def test_greedy_tokens_are_those_of_a_dense_forward(
    expected: list[list[int]], seed: int, max_chunk: int, arrival: float, deterministic: bool
) -> None:
    recorder = RerunRecorder()
    runner = runner_of(recorder=recorder, deterministic=deterministic)
    sequences = [Sequence(list(ids), max_new=6) for ids in PROMPTS]
    Stepper(runner, seed).run(sequences, max_chunk=max_chunk, arrival=arrival)
    assert [sequence.made for sequence in sequences] == expected
    assert recorder.num_replays > 0
    assert (kernels_of(runner).num_tiles > 0) == (max_chunk > 1 and not deterministic)


@pytest.mark.parametrize("family", ["mistral", "qwen2", "qwen3", "gemma3"])
def test_every_family_gives_the_logits_of_a_dense_forward(family: str) -> None:
    runner = runner_of(family, recorder=RerunRecorder())
    stepper = Stepper(runner)
    sequences = [Sequence(ids) for ids in prompts([70, 33, 5])]
    stepper.step([(sequence, len(sequence.token_ids) - 2) for sequence in sequences])
    stepper.step([(sequence, 1) for sequence in sequences])
    logits = runner.logits(stepper.batch([(sequence, 1) for sequence in sequences]))
    dense = torch.stack([expected_logits(family, sequence.token_ids)[-1] for sequence in sequences])
    torch.testing.assert_close(logits, dense, rtol=1e-9, atol=1e-9)


def test_logprobs_of_a_prompt_are_those_of_a_dense_forward_beside_decodes() -> None:
    simulated = build_simulated(SimulatedConfig(max_context=400))
    card = replace(simulated.card, vocab_size=512, stop_token_ids=())
    model = FakeModel(runner_of(recorder=RerunRecorder()), card, simulated.tokenizer_blob)
    engine = compose_native(model, SchedulerConfig(max_num_seqs=4, max_step_tokens=40))
    other, prompt = prompts([5, 90], seed=3)
    start(engine, make_request("other", prompt=other, max_tokens=12))
    engine.step()
    start(engine, make_request("scored", prompt=prompt, prompt_logprobs=2, max_tokens=3, temperature=1.0))
    journals = drain(engine)
    told = [of for frame in journals["scored"] if isinstance(frame, PromptFrame) for of in frame.logprobs]
    expected = torch.log_softmax(expected_logits("llama", prompt), -1)[:-1]
    assert [of.logprob for of in told] == pytest.approx(expected[range(89), prompt[1:]].tolist(), abs=2e-6)
    assert [[rival for rival, _ in of.top] for of in told] == expected.topk(2).indices.tolist()


@pytest.mark.parametrize("num_seqs", [1, 3, 8, 12])
def test_a_replayed_step_is_the_eager_one(num_seqs: int) -> None:
    logits = []
    for recorder in (RerunRecorder(), None):
        runner = runner_of(recorder=recorder)
        stepper = Stepper(runner)
        sequences = [Sequence(ids) for ids in prompts([5 + 3 * i for i in range(num_seqs)])]
        stepper.step([(sequence, len(sequence.token_ids) - 1) for sequence in sequences])
        logits.append(runner.logits(stepper.batch([(sequence, 1) for sequence in sequences])))
        assert recorder is None or recorder.num_replays == 1
    torch.testing.assert_close(logits[0], logits[1], rtol=1e-12, atol=1e-12)


def test_padding_touches_the_scratch_block_alone() -> None:
    runner = runner_of(recorder=RerunRecorder())
    pool = kernels_of(runner).pool
    stepper = Stepper(runner)
    sequences = [Sequence(ids) for ids in prompts([4, 4, 4, 4, 4])]  # padded to 8
    stepper.step([(sequence, 3) for sequence in sequences])
    before = pool.clone()
    batch = stepper.batch([(sequence, 1) for sequence in sequences])
    runner.execute(batch)
    changed = (pool != before).flatten(3).any(-1).any(1).any(0)  # [block]
    assert set(changed.nonzero().flatten().tolist()) - {0} == set((batch.slot_mapping // 16).tolist())


def test_what_the_pool_held_before_is_not_read(expected: list[list[int]]) -> None:
    runner = runner_of(recorder=RerunRecorder())
    kernels_of(runner).pool[:, :, 1:] = torch.nan
    sequences = [Sequence(list(ids), max_new=6) for ids in PROMPTS]
    Stepper(runner, 5).run(sequences, max_chunk=20)
    assert [sequence.made for sequence in sequences] == expected


def test_a_step_may_be_launched_before_the_last_one_is_waited_for() -> None:
    runner = runner_of(recorder=RerunRecorder())
    stepper = Stepper(runner)
    batches = [stepper.batch([(Sequence(ids), len(ids))]) for ids in prompts([20, 30, 5])]
    pending = [runner.launch(batch) for batch in batches]
    together = [each.wait().token_ids.tolist() for each in pending if each is not None]
    assert together == [runner.execute(batch).token_ids.tolist() for batch in batches]


def test_choices_may_share_a_sequence() -> None:
    runner = runner_of()
    batch = Stepper(runner).batch([(Sequence(ids), len(ids)) for ids in prompts([5, 9])])
    once = runner.execute(batch).token_ids
    batch.sample_rows = batch.sample_rows[[0, 0, 1]]
    assert runner.execute(batch).token_ids.tolist() == [once[0], once[0], once[1]]


def test_a_step_that_completes_no_prompt_makes_no_token() -> None:
    runner = runner_of()
    batch = Stepper(runner).batch([(Sequence(ids), 4) for ids in prompts([9, 12])])
    assert runner.execute(batch).token_ids.tolist() == []
