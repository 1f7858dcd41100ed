from __future__ import annotations

from shared.schemas import ChoiceEndFrame, EndFrame, EventFrame, Outcome, Prefix, TokensFrame
from tests.unit.worker.engine.harness import (
    EOS_ID,
    Machine,
    answer,
    answers,
    collect,
    drain,
    events,
    make_request,
    run_alone,
    start,
)


def test_frames_of_a_request_in_order() -> None:
    frames = run_alone(make_request(max_tokens=2))
    assert frames[0] == EventFrame("first_token", {"at": 7})
    assert [type(frame) for frame in frames[1:]] == [TokensFrame, TokensFrame, ChoiceEndFrame, EndFrame]
    assert frames[3] == ChoiceEndFrame(0, "length")


def test_usage_counts_every_token_of_every_choice() -> None:
    _, end = answers(run_alone(make_request(n=3, max_tokens=4)), n=3)
    assert end.usage is not None
    assert (end.usage.prompt_tokens, end.usage.completion_tokens) == (5, 12)


def test_eos_is_counted_but_gives_no_text() -> None:
    choice = answer(run_alone(make_request(max_tokens=150), eos_probability=0.1))
    assert choice.finish_reason == "stop"
    assert choice.token_ids[-1] == EOS_ID
    assert len(choice.text) == len(choice.token_ids) - 1


def test_ignore_eos_goes_on_to_max_tokens() -> None:
    choice = answer(run_alone(make_request(max_tokens=100, ignore_eos=True), eos_probability=0.1))
    assert (choice.finish_reason, len(choice.token_ids)) == ("length", 100)
    assert EOS_ID in choice.token_ids


def test_stop_token_ends_the_choice_without_text() -> None:
    free = answer(run_alone(make_request(max_tokens=20)))
    stopped = answer(run_alone(make_request(max_tokens=20, stop_token_ids=(free.token_ids[4],), ignore_eos=True)))
    assert (stopped.finish_reason, stopped.token_ids, stopped.text) == ("stop", free.token_ids[:5], free.text[:4])


def test_token_of_held_text_goes_out_at_once_without_it() -> None:
    free = answer(run_alone(make_request(max_tokens=6)))
    frames = run_alone(make_request(max_tokens=6, stop=(free.text[1:3] + "?",)))
    texts = [frame.text for frame in frames if isinstance(frame, TokensFrame)]
    assert texts[1] == "" and len(texts) == 6
    assert answer(frames) == free


def test_stop_string_ends_the_text_before_it() -> None:
    free = answer(run_alone(make_request(max_tokens=30)))
    stop = free.text[10:13]
    stopped = answer(run_alone(make_request(max_tokens=30, stop=(stop,))))
    assert stopped.finish_reason == "stop"
    assert stopped.text == free.text[: free.text.find(stop)]


def test_request_that_alone_does_not_fit_is_refused() -> None:
    machine = Machine(num_blocks=5)
    start(machine.engine, make_request(prompt=[1] * 10, max_tokens=7))
    assert machine.engine.has_work()
    (output,) = machine.engine.step()
    (end,) = output.frames
    assert isinstance(end, EndFrame) and end.error is not None
    assert (output.outcome, end.error.code) == (Outcome.FAILED, "context_length_exceeded")
    assert not machine.engine.has_work()


def test_request_that_alone_just_fits_is_served() -> None:
    machine = Machine(num_blocks=5)
    start(machine.engine, make_request(prompt=[1] * 10, max_tokens=6))
    assert len(answer(drain(machine.engine)["r"]).token_ids) == 6


def test_choices_that_end_in_one_step_all_end_before_the_request() -> None:
    frames = run_alone(make_request(prompt=[1, 2, 3], n=2, max_tokens=3))
    last_step = [TokensFrame, ChoiceEndFrame, TokensFrame, ChoiceEndFrame, EndFrame]
    assert [type(frame) for frame in frames[-5:]] == last_step


def test_preemption_is_an_event_and_changes_nothing_else() -> None:
    machine = Machine(num_blocks=8)
    requests = [make_request(str(i), prompt=[i, 2, 3], max_tokens=20) for i in range(3)]
    for request in requests:
        start(machine.engine, request)
    journals = drain(machine.engine)
    assert machine.engine.load().preemptions > 0
    assert any("preempted" in events(journal) for journal in journals.values())
    assert all(answer(journals[r.request_id]) == answer(run_alone(r)) for r in requests)


def test_resumed_request_has_had_its_first_token() -> None:
    frames = run_alone(make_request())
    assert events(run_alone(make_request(), frames[:3])) == []


def test_choice_with_a_finish_reason_is_not_run_again() -> None:
    machine = Machine()
    machine.engine.add(make_request(n=2), [Prefix(token_ids=(5, 6), text="fg", finish_reason="stop"), Prefix()])
    frames = drain(machine.engine)["r"]
    assert {frame.choice for frame in frames if isinstance(frame, TokensFrame)} == {1}
    assert isinstance(frames[-1], EndFrame) and frames[-1].usage is not None
    assert frames[-1].usage.completion_tokens == 2 + 8


def test_request_whose_choices_have_all_ended_ends_at_the_next_step() -> None:
    machine = Machine()
    machine.engine.add(make_request(), [Prefix(token_ids=(5,), text="f", finish_reason="length")])
    (output,) = machine.engine.step()
    assert output.outcome is Outcome.FINISHED
    assert [type(frame) for frame in output.frames] == [EndFrame]


def test_journal_cut_between_the_last_token_and_the_end_of_the_choice() -> None:
    frames = run_alone(make_request(max_tokens=3))
    rest = run_alone(make_request(max_tokens=3), frames[:-2])
    assert rest == frames[-2:]


def test_journal_that_contradicts_its_tokens_fails_the_request() -> None:
    machine = Machine()
    machine.engine.add(make_request(), [Prefix(token_ids=(5,), text="?")])
    (output,) = machine.engine.step()
    (end,) = output.frames
    assert isinstance(end, EndFrame) and end.error is not None
    assert end.error.code == "stream_contradiction"


def test_request_added_again_replaces_the_earlier_one() -> None:
    machine = Machine()
    start(machine.engine, make_request(max_tokens=9))
    machine.engine.step()
    start(machine.engine, make_request(max_tokens=4))
    assert len(answer(drain(machine.engine)["r"]).token_ids) == 4
    assert machine.scheduler.kv.num_used == 0


def test_abort_takes_back_an_output_not_yet_returned() -> None:
    machine = Machine()
    start(machine.engine, make_request(prompt=[]))
    machine.engine.abort(["r"])
    assert not machine.engine.has_work()
    assert machine.engine.step() == []


def test_prefill_chunk_makes_no_output() -> None:
    machine = Machine(max_step_tokens=2)
    start(machine.engine, make_request())
    assert [machine.engine.step(), machine.engine.step()] == [[], []]
    journals: dict[str, list[object]] = {}
    collect(machine.engine.step(), journals)  # type: ignore[arg-type]
    assert list(journals) == ["r"]
