"""The contract of worker/backends/interface.py, held by every backend (engines.py makes them)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from shared.schemas import EndFrame, Outcome, Prefix, Request, prefixes_of
from shared.text.tokenizer import Tokenizer
from tests.contract.engines import BIG, ENGINES_AND_KERNELS, Maker, maker_of
from tests.unit.worker.engine.harness import (
    answer,
    answers,
    cached_tokens,
    collect,
    drain,
    make_request,
    start,
)
from worker.backends.interface import Engine


@pytest.fixture(params=ENGINES_AND_KERNELS)
def make(request: pytest.FixtureRequest) -> Maker:
    return maker_of(request)


def some_requests(count: int, **params: Any) -> list[Request]:
    params = {"max_tokens": 40, "temperature": 1.0} | params
    return [make_request(str(i), prompt=[i + 3, *range(10, 20 + i)], seed=i, **params) for i in range(count)]


def alone(make: Maker, requests: Sequence[Request]) -> list[list[Prefix]]:
    return [together(make(), [request])[0] for request in requests]


def together(engine: Engine, requests: Sequence[Request]) -> list[list[Prefix]]:
    for request in requests:
        start(engine, request)
    journals = drain(engine)
    return [answers(journals[request.request_id], request.params.n)[0] for request in requests]


def test_each_request_ends_with_exactly_one_outcome(make: Maker) -> None:
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


def test_aborted_request_is_silent_and_its_blocks_are_free(make: Maker) -> None:
    engine = make()
    for request in some_requests(3):
        start(engine, request)
    engine.step()
    engine.abort(["0", "2", "unknown"])
    journals = drain(engine)
    assert list(journals) == ["1"]
    assert engine.load().kv_blocks_used == 0


def test_blocks_of_an_aborted_request_are_free_at_once(make: Maker) -> None:
    engine = make()
    start(engine, some_requests(1)[0])
    engine.step()
    assert engine.load().kv_blocks_used > 0
    engine.abort(["0"])
    assert (engine.load().kv_blocks_used, engine.has_work(), engine.step()) == (0, False, [])


def test_answers_do_not_depend_on_the_batch(make: Maker) -> None:
    requests = some_requests(6, n=2)
    assert together(make(), requests) == alone(make, requests)


@pytest.mark.parametrize("max_step_tokens", [1, 7, 30])
def test_answers_do_not_depend_on_chunking(make: Maker, max_step_tokens: int) -> None:
    requests = some_requests(4)
    assert together(make(max_step_tokens=max_step_tokens), requests) == alone(make, requests)


def test_answers_do_not_depend_on_preemption(make: Maker) -> None:
    requests = some_requests(6)
    engine = make(kv_cache_tokens=8 * make.block_size)
    assert together(engine, requests) == alone(make, requests)
    assert engine.load().preemptions > 0


def test_answers_do_not_depend_on_where_a_journal_was_cut(make: Maker) -> None:
    (request,) = some_requests(1, n=2, max_tokens=12)
    engine = make()
    if not engine.resume_exact:
        pytest.skip("this backend does not promise it")
    start(engine, request)
    whole = drain(engine)["0"]
    for cut in range(len(whole)):
        start(engine, request, whole[:cut])
        assert answers(whole[:cut] + drain(engine)["0"], 2) == answers(whole, 2)


def test_answers_do_not_depend_on_what_was_cached(make: Maker) -> None:
    """Prompts seen before, and prompts that go on where an answer ended."""
    engine, requests = make(), some_requests(3)
    first = together(engine, requests)
    turns = [
        make_request(f"next {i}", prompt=[*request.prompt_ids, *said.token_ids, 9, 8, 7], max_tokens=20)
        for i, (request, (said,)) in enumerate(zip(requests, first, strict=True))
    ]
    assert together(engine, requests) == first
    assert together(engine, turns) == alone(make, turns)


def test_a_prompt_seen_before_is_told_as_cached(make: Maker) -> None:
    engine, request = make(), make_request(prompt=[5] * (2 * make.block_size + 8))
    counts: list[int] = []
    for _ in range(2):
        start(engine, request)
        counts.append(cached_tokens(drain(engine)["r"]))
    assert counts == [0, 2 * make.block_size]


def test_seed_and_choice_change_random_answers(make: Maker) -> None:
    (first,) = alone(make, [make_request(n=2, temperature=1.0, seed=1, max_tokens=20)])
    (second,) = alone(make, [make_request(n=2, temperature=1.0, seed=2, max_tokens=20)])
    assert len({choice.token_ids for choice in first + second}) == 4


def test_greedy_answers_do_not_depend_on_the_seed(make: Maker) -> None:
    first, second = alone(make, [make_request(seed=1, max_tokens=20), make_request(seed=2, max_tokens=20)])
    assert first == second


def test_text_is_what_the_ids_decode_to(make: Maker) -> None:
    engine = make()
    start(engine, make_request(max_tokens=40, temperature=1.0))
    choice = answer(drain(engine)["r"])
    assert choice.text == Tokenizer.from_blob(engine.tokenizer_blob).decode(list(choice.token_ids))


def test_stop_string_ends_the_text_before_it(make: Maker) -> None:
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
def test_request_that_cannot_be_served_fails_and_others_do_not(make: Maker, bad: dict[str, Any]) -> None:
    engine = make()
    start(engine, make_request("bad", **bad))
    start(engine, make_request("good"))
    journals = drain(engine)
    (end,) = journals["bad"]
    assert isinstance(end, EndFrame) and end.error is not None
    assert (end.outcome, answer(journals["good"]).finish_reason) == (Outcome.FAILED, "length")


def test_choice_with_a_finish_reason_is_not_run_again(make: Maker) -> None:
    engine = make()
    request = make_request(n=2)
    engine.add(request, [Prefix((30, 31), "", "stop"), Prefix()])
    frames = drain(engine)["r"]
    first, second = prefixes_of(frames, 2)
    assert (first, len(second.token_ids)) == (Prefix(), 8)
    assert isinstance(frames[-1], EndFrame) and frames[-1].usage is not None
    assert frames[-1].usage.completion_tokens == 10


def test_what_load_offers_is_taken_without_queueing(make: Maker) -> None:
    engine = make(kv_cache_tokens=20 * make.block_size, max_num_seqs=3, max_step_tokens=BIG)
    start(engine, make_request("a", prompt=[5] * 50))
    engine.step()
    load = engine.load()
    assert (load.num_running, load.free_slots) == (1, 2)
    start(engine, make_request("b", prompt=[6] * load.free_tokens))
    engine.step()  # where steps overlap this one was launched before
    engine.step()
    assert (engine.load().num_running, engine.load().num_waiting) == (2, 0)
    assert engine.load().free_tokens == 0


def test_an_idle_engine_offers_all_it_has(make: Maker) -> None:
    load = make(kv_cache_tokens=20 * make.block_size, max_num_seqs=3).load()
    assert (load.free_slots, load.free_tokens, load.kv_blocks_used) == (3, 20 * make.block_size, 0)


def test_load_counts_what_waits(make: Maker) -> None:
    engine = make(max_num_seqs=3)
    before = engine.load().free_tokens
    start(engine, make_request(n=2))
    load = engine.load()
    assert (load.num_waiting, load.free_slots) == (2, 1)
    assert load.free_tokens < before


def test_card_describes_the_tokenizer_it_comes_with(make: Maker) -> None:
    engine = make()
    tokenizer = Tokenizer.from_blob(engine.tokenizer_blob)
    assert tokenizer.token_count <= engine.card.vocab_size
    assert engine.card.revision.startswith(engine.card.name + "@")
    assert tokenizer.decode(list(engine.card.stop_token_ids)) == ""


def test_steps_without_work_do_nothing(make: Maker) -> None:
    engine = make()
    journals: dict[str, list[Any]] = {}
    collect(engine.step(), journals)
    assert (journals, engine.has_work()) == ({}, False)
    engine.close()
