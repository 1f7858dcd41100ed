"""Logprobs of the prompt: each told once, before the answer, whatever the schedule, and only where they are asked."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pytest
from msgspec.structs import replace

from shared.schemas import EndFrame, Frame, Outcome, PromptFrame, TokenLogprobs, TokensFrame
from tests.unit.worker.engine.driving import make_sequence
from tests.unit.worker.engine.harness import (
    Machine,
    answers,
    cached_tokens,
    check_blocks,
    drain,
    make_request,
    run_alone,
    start,
)
from tests.unit.worker.engine.schedules import RandomRun, World, run_all
from worker.engine.executor import MAX_SCORED_TOKENS, Schedule

PROMPT = list(range(1, 31))


def scores(frames: Iterable[Frame]) -> list[TokenLogprobs]:
    return [told for frame in frames if isinstance(frame, PromptFrame) for told in frame.logprobs]


def draw_params(rng: random.Random) -> dict[str, Any]:
    asked = rng.choice([None, 0, 2, 4])
    return {
        "seed": rng.randint(-5, 5),
        "temperature": rng.choice([0.0, 0.7]),
        "n": rng.choice([1, 1, 2]),
        "logprobs": asked if rng.random() < 0.7 else None,
        "prompt_logprobs": asked,
    }


WORLD = World(Machine(eos_probability=0.01, echo_probability=0.8), draw_params)
OVERLAPPED = World(Machine(eos_probability=0.01), draw_params, drafts=(0,), overlaps=True)


@pytest.mark.parametrize("world", [WORLD, OVERLAPPED])
def test_whatever_the_schedule_answers_and_scores_are_those_of_running_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = RandomRun.check

    def check_scores(run: RandomRun) -> None:
        check(run)
        for request in run.requests:
            if request.request_id not in run.aborted:
                assert scores(run.journals[request.request_id]) == scores(run.alone[request.request_id])

    monkeypatch.setattr(RandomRun, "check", check_scores)
    counts = run_all(world, range(60))
    assert counts["preempted"] >= 6 and counts["resumed"] >= 15 and counts["requeued"] >= 3


def test_every_token_but_the_first_is_told_before_the_answer() -> None:
    frames = run_alone(make_request(prompt=PROMPT, prompt_logprobs=2))
    assert len(scores(frames)) == len(PROMPT) - 1
    assert {len(told.top) for told in scores(frames)} == {2}
    kinds = [type(frame) for frame in frames if isinstance(frame, PromptFrame | TokensFrame)]
    assert PromptFrame not in kinds[kinds.index(TokensFrame) :]


def test_they_change_no_token_and_who_does_not_ask_gets_none() -> None:
    plain = run_alone(make_request(prompt=PROMPT, temperature=0.7))
    asked = run_alone(make_request(prompt=PROMPT, temperature=0.7, prompt_logprobs=0))
    assert [frame for frame in asked if not isinstance(frame, PromptFrame)] == plain


def test_of_a_step_all_requests_get_no_more_than_there_are_rows_for() -> None:
    machine = Machine(max_step_tokens=500, num_blocks=400)
    for name in "abc":
        start(machine.engine, make_request(name, prompt=[*range(1, 121)], prompt_logprobs=0))
    outputs = machine.engine.step()
    assert sum(len(scores(output.frames)) for output in outputs) == MAX_SCORED_TOKENS
    check_blocks(machine.scheduler)
    assert [len(scores(frames)) for frames in drain(machine.engine).values()].count(119) == 2


def test_what_a_victim_was_to_be_told_is_room_for_others() -> None:
    schedule, sequences = Schedule(budget=200), [make_sequence(100, arrival=number) for number in range(2)]
    for sequence in sequences:
        sequence.params = replace(sequence.params, prompt_logprobs=0)
        schedule.give(sequence)
    assert (list(schedule.scored.values()), list(schedule.chunks.values())) == (
        [MAX_SCORED_TOKENS],
        [MAX_SCORED_TOKENS],
    )
    schedule.take_back(sequences[0])
    schedule.give(sequences[1])
    assert (schedule.scored, schedule.budget) == ({sequences[1]: MAX_SCORED_TOKENS}, 200 - MAX_SCORED_TOKENS)


def test_a_known_prefix_is_computed_again_where_its_logprobs_are_asked() -> None:
    machine = Machine()
    start(machine.engine, make_request("a", prompt=PROMPT))
    drain(machine.engine)
    start(machine.engine, make_request("b", prompt=PROMPT, prompt_logprobs=0))
    frames = drain(machine.engine)["b"]
    assert cached_tokens(frames) == 0 and len(scores(frames)) == len(PROMPT) - 1


def test_what_the_journal_has_is_found_in_the_cache_and_not_told_again() -> None:
    request = make_request(prompt=PROMPT, prompt_logprobs=1)
    machine = Machine(max_step_tokens=5)
    start(machine.engine, request)
    whole = drain(machine.engine)["r"]
    for cut in range(len(whole) - 2):
        start(machine.engine, request, whole[:cut])
        rest = drain(machine.engine)["r"]
        assert scores([*whole[:cut], *rest]) == scores(whole)
        assert cached_tokens(rest) >= (len(scores(whole[:cut])) - 3) // 4 * 4


def test_several_choices_score_the_prompt_once_and_share_it() -> None:
    frames = run_alone(make_request(prompt=PROMPT, prompt_logprobs=0, n=3, temperature=0.8))
    plain = run_alone(make_request(prompt=PROMPT, n=3, temperature=0.8))
    assert len(scores(frames)) == len(PROMPT) - 1
    assert [choice.token_ids for choice in answers(frames, 3)[0]] == [c.token_ids for c in answers(plain, 3)[0]]


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("prompt", [PROMPT, [7]])
def test_of_no_tokens_the_prompt_alone_is_scored(prompt: list[int], n: int) -> None:
    request = make_request(prompt=prompt, prompt_logprobs=0, max_tokens=0, n=n)
    whole = run_alone(request)
    for cut in range(len(whole)):
        frames = [*whole[:cut], *run_alone(request, whole[:cut])]
        choices, end = answers(frames, n)
        assert len(scores(frames)) == len(prompt) - 1
        assert [(choice.token_ids, choice.finish_reason) for choice in choices] == [((), "length")] * n
        assert (end.outcome, end.usage and end.usage.completion_tokens) == (Outcome.FINISHED, 0)


def test_no_tokens_without_scores_end_at_the_door() -> None:
    machine = Machine()
    start(machine.engine, make_request(max_tokens=0))
    (output,) = machine.engine.step()
    assert output.outcome is Outcome.FINISHED and machine.engine.load().kv_blocks_used == 0


def test_an_abort_between_frames_ends_it_and_frees_its_blocks() -> None:
    machine = Machine(max_step_tokens=5)
    start(machine.engine, make_request(prompt=PROMPT, prompt_logprobs=0, n=2))
    machine.engine.step()
    machine.engine.abort(["r"])
    assert (machine.engine.step(), machine.engine.load().kv_blocks_used) == ([], 0)


def test_a_journal_with_tokens_before_all_scores_is_contradictory() -> None:
    frames = run_alone(make_request(prompt=PROMPT, prompt_logprobs=0), [TokensFrame(0, [3], "d")])
    (end,) = frames
    assert isinstance(end, EndFrame) and end.error is not None and end.error.code == "stream_contradiction"
