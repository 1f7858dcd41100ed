"""What steps were is what metrics say, through the engine's own figures."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from shared.observability import WorkerMetrics
from tests.unit.worker.engine.harness import Machine, make_request, start
from worker.telemetry import Telemetry

PROMPT = tuple(range(10, 27))  # four blocks and a token


class Told:
    """A machine whose steps are told to a Telemetry."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.registry = CollectorRegistry()
        self.telemetry = Telemetry(WorkerMetrics(self.registry))

    def run(self) -> None:
        while self.machine.engine.has_work():
            self.machine.engine.step()
            self.telemetry.on_step(0.001, self.machine.engine.load())

    def value(self, name: str, **labels: str) -> float:
        value = self.registry.get_sample_value(f"headrace_{name}", labels)
        assert value is not None
        return value


@pytest.fixture
def told() -> Told:
    return Told(Machine(max_step_tokens=16))


def test_prompts_are_counted_by_where_their_kv_came_from(told: Told) -> None:
    for _ in range(2):
        start(told.machine.engine, make_request(prompt=PROMPT, max_tokens=1))
        told.run()
    by_source = [told.value("prompt_tokens_total", source=source) for source in ("computed", "cached")]
    assert by_source == [18, 16]
    assert (told.value("prefix_cache_queries_total"), told.value("prefix_cache_hits_total")) == (34, 16)


def test_tokens_of_steps_are_counted_by_kind(told: Told) -> None:
    start(told.machine.engine, make_request(prompt=PROMPT, max_tokens=3))
    told.run()
    assert told.value("step_tokens_sum", kind="prefill") == 16
    assert told.value("step_tokens_sum", kind="decode") == 1 + 2, "the prompt's last token came alone"
    assert told.value("batch_size_count") == 4


def test_preemptions_are_counted_by_reason(told: Told) -> None:
    told = Told(Machine(num_blocks=8))
    for name in ("a", "b", "c"):
        start(told.machine.engine, make_request(name, prompt=[ord(name), 2, 3], max_tokens=20))
    told.run()
    preempted = told.machine.engine.load().preemptions
    assert told.value("preemptions_total", reason="blocks") == preempted > 0
    assert told.value("recomputed_tokens_total") > 0
    assert told.value("preemptions_total", reason="displaced") == 0


def test_a_step_is_counted_once_however_often_it_is_told(told: Told) -> None:
    start(told.machine.engine, make_request(max_tokens=1))
    told.run()
    told.telemetry.on_step(0.001, told.machine.engine.load())
    assert told.value("batch_size_count") == 1


def test_parts_of_a_step_add_up_to_it(told: Told) -> None:
    start(told.machine.engine, make_request(max_tokens=1))
    told.run()
    phases = ("schedule", "execute", "output", "handoff")
    assert sum(told.value("step_duration_seconds_sum", phase=phase) for phase in phases) == pytest.approx(0.001)
