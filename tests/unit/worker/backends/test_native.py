from __future__ import annotations

from tests.unit.worker.engine.harness import FakeModel, make_card
from worker.backends.native import compose_native
from worker.backends.simulated_text import SimulatedText
from worker.engine.scheduling.config import SchedulerConfig
from worker.model.fake_runner import FakeRunner


def test_card_and_tokenizer_are_the_models() -> None:
    model = FakeModel(FakeRunner(num_blocks=9), make_card(), SimulatedText().blob())
    engine = compose_native(model, SchedulerConfig(max_num_seqs=2, max_step_tokens=8))
    assert (engine.card, engine.tokenizer_blob) == (model.card, model.tokenizer_blob)
    assert engine.load().kv_blocks_total == 8


def test_close_closes_the_runner() -> None:
    closed: list[bool] = []
    runner = FakeRunner(num_blocks=9)
    runner.close = lambda: closed.append(True)  # type: ignore[method-assign]
    compose_native(FakeModel(runner, make_card(), SimulatedText().blob()), SchedulerConfig()).close()
    assert closed == [True]
