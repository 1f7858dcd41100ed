"""The contract of worker/backends/interface.py, held by every backend. A new one adds a maker to ENGINES."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from shared.schemas import EndFrame, Outcome, Prefix, Request, prefixes_of
from shared.text.tokenizer import Tokenizer
from tests.unit.worker.engine.harness import (
    FakeModel,
    answer,
    answers,
    cached_tokens,
    collect,
    drain,
    make_request,
    start,
)
from worker.backends.interface import Engine
from worker.backends.native import compose_native
from worker.backends.simulated import BLOCK_SIZE, SimulatedConfig, build_simulated
from worker.engine.scheduling.config import SchedulerConfig
from worker.model.cpu.build import find_compiler
from worker.model.cpu.machine import available_sets
from worker.model.fake_runner import FakeRunner

BIG = 4096


def make_simulated(kv_cache_tokens: int, max_num_seqs: int, max_step_tokens: int) -> Engine:
    scheduling = SchedulerConfig(max_num_seqs=max_num_seqs, max_step_tokens=max_step_tokens)
    config = SimulatedConfig(kv_cache_tokens=kv_cache_tokens, scheduling=scheduling)
    return build_simulated(config, sleep=lambda _: None)


def make_native_fake(kv_cache_tokens: int, max_num_seqs: int, max_step_tokens: int) -> Engine:
    """The native engine on a fake runner, with the simulated model's tokenizer."""
    simulated = make_simulated(BIG, 1, 1)
    runner = FakeRunner(num_blocks=1 + kv_cache_tokens // BLOCK_SIZE, vocab_size=simulated.card.vocab_size)
    model = FakeModel(runner, simulated.card, simulated.tokenizer_blob)
    return compose_native(model, SchedulerConfig(max_num_seqs=max_num_seqs, max_step_tokens=max_step_tokens))


def cache_folder(config: pytest.Config) -> Path:
    from tests.model.cpu.kernel_cache import kernel_cache

    return kernel_cache(config)


def make_native_cpu(kv_cache_tokens: int, max_num_seqs: int, max_step_tokens: int, cache: Path) -> Engine:
    """The native engine on the CPU kernels and a tiny random model, with the simulated model's tokenizer."""
    from tests.model.cpu.kernel_cache import open_library, random_runner

    simulated = make_simulated(BIG, 1, 1)
    runner = random_runner(
        open_library(cache, available_sets()[0].name),
        vocab_size=simulated.card.vocab_size,
        num_blocks=1 + kv_cache_tokens // BLOCK_SIZE,
    )
    model = FakeModel(runner, simulated.card, simulated.tokenizer_blob)
    return compose_native(model, SchedulerConfig(max_num_seqs=max_num_seqs, max_step_tokens=max_step_tokens))


EngineMaker = Callable[[int, int, int], Engine]
ENGINES: dict[str, EngineMaker] = {"native_fake": make_native_fake, "simulated": make_simulated}
HAS_KERNELS = importlib.util.find_spec("torch") is not None and find_compiler() is not None


@pytest.fixture(params=[*ENGINES, "native_cpu"] if HAS_KERNELS else list(ENGINES))
def make(request: pytest.FixtureRequest) -> Callable[..., Engine]:
    """Makes engines of one backend: any number, equal but for what is asked."""
    maker = ENGINES.get(request.param) or functools.partial(make_native_cpu, cache=cache_folder(request.config))

    def make_engine(*, kv_cache_tokens: int = BIG, max_num_seqs: int = 8, max_step_tokens: int = 64) -> Engine:
        return maker(kv_cache_tokens, max_num_seqs, max_step_tokens)

    return make_engine


def some_requests(count: int, **params: Any) -> list[Request]:
    params = {"max_tokens": 40, "temperature": 1.0} | params
    return [make_request(str(i), prompt=[i + 3, *range(10, 20 + i)], seed=i, **params) for i in range(count)]


def alone(make: Callable[..., Engine], requests: Sequence[Request]) -> list[list[Prefix]]:
    return [together(make(), [request])[0] for request in requests]


def together(engine: Engine, requests: Sequence[Request]) -> list[list[Prefix]]:
    for request in requests:
        start(engine, request)
    journals = drain(engine)
    return [answers(journals[request.request_id], request.params.n)[0] for request in requests]


def test_each_request_ends_with_exactly_one_outcome(make: Callable[..., Engine]) -> None:
    engine = make()
    for request in some_requests(5, n=2):
        start(engine, request)
    outcomes: list[str] = []
    while engine.has_work():
        for output in engine.step():
            assert output.request_id not in outcomes
            assert (output.outcome is not None) == isinstance(output.frames[-1], EndFrame)
            outcomes += [output.request_id] if output.outcome else []
    assert sorted(outcomes) == ["0", "1", "2", "3", "4"]
    assert engine.load().kv_blocks_used == 0


def test_aborted_request_is_silent_and_its_blocks_are_free(make: Callable[..., Engine]) -> None:
    engine = make()
    for request in some_requests(3):
        start(engine, request)
    engine.step()
    engine.abort(["0", "2", "unknown"])
    journals = drain(engine)
    assert list(journals) == ["1"]
    assert engine.load().kv_blocks_used == 0


def test_blocks_of_an_aborted_request_are_free_at_once(make: Callable[..., Engine]) -> None:
    engine = make()
    start(engine, some_requests(1)[0])
    engine.step()
    assert engine.load().kv_blocks_used > 0
    engine.abort(["0"])
    assert (engine.load().kv_blocks_used, engine.has_work(), engine.step()) == (0, False, [])


def test_answers_do_not_depend_on_the_batch(make: Callable[..., Engine]) -> None:
    requests = some_requests(6, n=2)
    assert together(make(), requests) == alone(make, requests)


@pytest.mark.parametrize("max_step_tokens", [1, 7, 30])
def test_answers_do_not_depend_on_chunking(make: Callable[..., Engine], max_step_tokens: int) -> None:
    requests = some_requests(4)
    assert together(make(max_step_tokens=max_step_tokens), requests) == alone(make, requests)


def test_answers_do_not_depend_on_preemption(make: Callable[..., Engine]) -> None:
    requests = some_requests(6)
    engine = make(kv_cache_tokens=8 * BLOCK_SIZE)
    assert together(engine, requests) == alone(make, requests)
    assert engine.load().preemptions > 0


def test_answers_do_not_depend_on_where_a_journal_was_cut(make: Callable[..., Engine]) -> None:
    (request,) = some_requests(1, n=2, max_tokens=12)
    engine = make()
    if not engine.resume_exact:
        pytest.skip("this backend does not promise it")
    start(engine, request)
    whole = drain(engine)["0"]
    for cut in range(len(whole)):
        start(engine, request, whole[:cut])
        assert answers(whole[:cut] + drain(engine)["0"], 2) == answers(whole, 2)


def test_answers_do_not_depend_on_what_was_cached(make: Callable[..., Engine]) -> None:
    """Prompts seen before, and prompts that go on where an answer ended."""
    engine, requests = make(), some_requests(3)
    first = together(engine, requests)
    turns = [
        make_request(f"next {i}", prompt=[*request.prompt_ids, *said.token_ids, 9, 8, 7], max_tokens=20)
        for i, (request, (said,)) in enumerate(zip(requests, first, strict=True))
    ]
    assert together(engine, requests) == first
    assert together(engine, turns) == alone(make, turns)


def test_a_prompt_seen_before_is_told_as_cached(make: Callable[..., Engine]) -> None:
    engine, request = make(), make_request(prompt=[5] * 40)
    counts: list[int] = []
    for _ in range(2):
        start(engine, request)
        counts.append(cached_tokens(drain(engine)["r"]))
    assert counts == [0, 2 * BLOCK_SIZE]


def test_seed_and_choice_change_random_answers(make: Callable[..., Engine]) -> None:
    (first,) = alone(make, [make_request(n=2, temperature=1.0, seed=1, max_tokens=20)])
    (second,) = alone(make, [make_request(n=2, temperature=1.0, seed=2, max_tokens=20)])
    assert len({choice.token_ids for choice in first + second}) == 4


def test_greedy_answers_do_not_depend_on_the_seed(make: Callable[..., Engine]) -> None:
    first, second = alone(make, [make_request(seed=1, max_tokens=20), make_request(seed=2, max_tokens=20)])
    assert first == second


def test_text_is_what_the_ids_decode_to(make: Callable[..., Engine]) -> None:
    engine = make()
    start(engine, make_request(max_tokens=40, temperature=1.0))
    choice = answer(drain(engine)["r"])
    assert choice.text == Tokenizer.from_blob(engine.tokenizer_blob).decode(list(choice.token_ids))


def test_stop_string_ends_the_text_before_it(make: Callable[..., Engine]) -> None:
    ((free,),) = alone(make, [make_request(max_tokens=40)])
    stop = free.text[20:23]
    ((stopped,),) = alone(make, [make_request(max_tokens=40, stop=(stop,))])
    assert (stopped.text, stopped.finish_reason) == (free.text[: free.text.find(stop)], "stop")
    assert stopped.token_ids == free.token_ids[: len(stopped.token_ids)]


@pytest.mark.parametrize(
    "bad",
    [
        {"prompt": []},
        {"prompt": [1, 10**6]},
        {"prompt": [-1]},
        {"prompt": [1] * (BIG - 7)},
        {"max_tokens": -1},
    ],
)
def test_request_that_cannot_be_served_fails_and_others_do_not(
    make: Callable[..., Engine], bad: dict[str, Any]
) -> None:
    engine = make()
    start(engine, make_request("bad", **bad))
    start(engine, make_request("good"))
    journals = drain(engine)
    (end,) = journals["bad"]
    assert isinstance(end, EndFrame) and end.error is not None
    assert (end.outcome, answer(journals["good"]).finish_reason) == (Outcome.FAILED, "length")


def test_choice_with_a_finish_reason_is_not_run_again(make: Callable[..., Engine]) -> None:
    engine = make()
    request = make_request(n=2)
    engine.add(request, [Prefix((30, 31), "", "stop"), Prefix()])
    frames = drain(engine)["r"]
    first, second = prefixes_of(frames, 2)
    assert (first, len(second.token_ids)) == (Prefix(), 8)
    assert isinstance(frames[-1], EndFrame) and frames[-1].usage is not None
    assert frames[-1].usage.completion_tokens == 10


def test_what_load_offers_is_taken_without_queueing(make: Callable[..., Engine]) -> None:
    engine = make(kv_cache_tokens=20 * BLOCK_SIZE, max_num_seqs=3, max_step_tokens=BIG)
    start(engine, make_request("a", prompt=[5] * 50))
    engine.step()
    load = engine.load()
    assert (load.num_running, load.free_slots) == (1, 2)
    start(engine, make_request("b", prompt=[6] * load.free_tokens))
    engine.step()  # where steps overlap this one was launched before
    engine.step()
    assert (engine.load().num_running, engine.load().num_waiting) == (2, 0)
    assert engine.load().free_tokens == 0


def test_an_idle_engine_offers_all_it_has(make: Callable[..., Engine]) -> None:
    load = make(kv_cache_tokens=20 * BLOCK_SIZE, max_num_seqs=3).load()
    assert (load.free_slots, load.free_tokens, load.kv_blocks_used) == (3, 20 * BLOCK_SIZE, 0)


def test_load_counts_what_waits(make: Callable[..., Engine]) -> None:
    engine = make(max_num_seqs=3)
    before = engine.load().free_tokens
    start(engine, make_request(n=2))
    load = engine.load()
    assert (load.num_waiting, load.free_slots) == (2, 1)
    assert load.free_tokens < before


def test_card_describes_the_tokenizer_it_comes_with(make: Callable[..., Engine]) -> None:
    engine = make()
    tokenizer = Tokenizer.from_blob(engine.tokenizer_blob)
    assert tokenizer.token_count <= engine.card.vocab_size
    assert engine.card.revision.startswith(engine.card.name + "@")
    assert tokenizer.decode(list(engine.card.stop_token_ids)) == ""


def test_steps_without_work_do_nothing(make: Callable[..., Engine]) -> None:
    engine = make()
    journals: dict[str, list[Any]] = {}
    collect(engine.step(), journals)
    assert (journals, engine.has_work()) == ({}, False)
    engine.close()
