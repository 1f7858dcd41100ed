"""Sampling parameters, logprobs and constraints through every backend: what batch, preemption, chunking and a journal
cut anywhere must not change, and what each promises by itself."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest

from shared.schemas import Constraint, ConstraintKind, Frame, Request, ServiceClass, TokenLogprobs, TokensFrame
from shared.text.tokenizer import Tokenizer
from tests.contract.engines import ENGINES, Maker, maker_of
from tests.contract.test_engines import alone, together
from tests.unit.worker.engine.harness import answer, answers, collect, drain, events, make_request, start
from worker.backends.interface import Engine

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "maximum": 999}, "b": {"enum": ["x", "y"]}, "c": {"type": "boolean"}},
    "required": ["a", "b", "c"],
    "additionalProperties": False,
}


def constraint(kind: str, value: Any) -> Constraint:
    return Constraint(ConstraintKind(kind), value if isinstance(value, str) else json.dumps(value))


KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "min_p": {"min_p": 0.2},
    "presence": {"presence_penalty": 1.5},
    "frequency": {"frequency_penalty": 0.5, "temperature": 0.0},
    "repetition": {"repetition_penalty": 1.3},
    "bias": {"logit_bias": ((40, 30.0), (41, -100.0))},
    "min_tokens": {"min_tokens": 9, "stop": ("e",)},
    "logprobs": {"logprobs": 3, "temperature": 0.0},
    "all": {"min_p": 0.1, "top_p": 0.9, "top_k": 30, "presence_penalty": 1.0, "repetition_penalty": 0.8, "logprobs": 0},
    "schema": {"constraint": constraint("json_schema", SCHEMA)},
    "regex": {"constraint": constraint("regex", "([a-z ]+, ){2,9}end"), "temperature": 0.0, "min_tokens": 5},
    "choice": {"constraint": constraint("choice", ["yes", "no", "perhaps, and then not"]), "logprobs": 2},
    "grammar": {"constraint": constraint("grammar", 'start: "(" start ")" | /[a-f]{1,30}/')},
}


@pytest.fixture(params=ENGINES)
def make(request: pytest.FixtureRequest) -> Maker:
    return maker_of(request, max_num_seqs=32)


def one_of_each(**params: Any) -> list[Request]:
    shared = {"max_tokens": 24, "temperature": 1.0, "n": 2} | params
    return [
        make_request(name, prompt=[i + 3, *range(10, 20 + i)], seed=i, **(shared | kind))
        for i, (name, kind) in enumerate(KINDS.items())
    ]


def logprobs_of(frames: list[Frame], choice: int = 0) -> list[TokenLogprobs]:
    of_choice = [frame for frame in frames if isinstance(frame, TokensFrame) and frame.choice == choice]
    return [logprobs for frame in of_choice for logprobs in frame.logprobs or ()]


@pytest.mark.parametrize("limits", [{}, {"max_step_tokens": 7}, {"kv_cache_tokens": 320}])
def test_no_parameter_depends_on_neighbours_or_chunks(make: Maker, limits: dict[str, int]) -> None:
    requests, engine = one_of_each(), make(**limits)
    crowded = together(engine, requests)
    if limits.get("kv_cache_tokens") and not make.displaces_at_slots:
        assert engine.load().preemptions > 0
    assert crowded == alone(make, requests)


def interrupted(engine: Engine, request: Request) -> list[Frame]:
    """The request's journal; twice something urgent takes the only slot."""
    journals: dict[str, list[Frame]] = {}
    start(engine, request)
    for number in range(2):
        for _ in range(1 + 5 * number):
            collect(engine.step(), journals)
        start(engine, make_request(f"urgent{number}", max_tokens=2, service_class=ServiceClass.PRIORITY))
    return journals[request.request_id] + drain(engine).get(request.request_id, [])


@pytest.mark.parametrize("kind", list(KINDS))
def test_no_parameter_depends_on_preemption(make: Maker, kind: str) -> None:
    if not make.displaces_at_slots:
        pytest.skip("this backend takes no slot from who runs; shortage of blocks: see the test before")
    request = next(request for request in one_of_each(n=1) if request.request_id == kind)
    undisturbed, engine = make(max_num_seqs=1), make(max_num_seqs=1)
    start(undisturbed, request)
    whole = drain(undisturbed)[kind]
    journal = interrupted(engine, msgspec.structs.replace(request, service_class=ServiceClass.FLEX))
    assert answers(journal) == answers(whole)
    assert make.tells_alike(logprobs_of(journal), logprobs_of(whole))
    assert "preempted" in events(journal)


@pytest.mark.parametrize("kind", list(KINDS))
def test_no_parameter_depends_on_where_a_journal_was_cut(make: Maker, kind: str) -> None:
    """On another engine each time; logprobs too are those of the undisturbed run."""
    request = next(request for request in one_of_each(max_tokens=10) if request.request_id == kind)
    first, second = make(), make()
    start(first, request)
    whole = drain(first)[kind]
    for cut in range(0, len(whole), 3):
        start(second, request, whole[:cut])
        resumed = whole[:cut] + drain(second)[kind]
        assert answers(resumed, 2) == answers(whole, 2)
        for choice in (0, 1):
            assert make.tells_alike(logprobs_of(resumed, choice), logprobs_of(whole, choice))


def test_a_schema_gives_json_that_fits(make: Maker) -> None:
    requests = [
        make_request(str(seed), seed=seed, temperature=1.0, max_tokens=150, **KINDS["schema"]) for seed in range(4)
    ]
    for (choice,) in together(make(), requests):
        if choice.finish_reason == "stop":
            value = json.loads(choice.text)
            assert list(value) == ["a", "b", "c"] and value["b"] in ("x", "y") and isinstance(value["c"], bool)
        else:
            assert choice.text.startswith("{")


def test_choice_and_regex_are_held(make: Maker) -> None:
    requests = [request for request in one_of_each(max_tokens=150) if request.request_id in ("choice", "regex")]
    (regex, _), (choice, _) = together(make(), requests)
    assert choice.text in ("yes", "no", "perhaps, and then not") and choice.finish_reason == "stop"
    is_whole = re.fullmatch("([a-z ]+, ){2,9}end", regex.text) is not None
    assert is_whole == (regex.finish_reason == "stop")


def test_asking_for_logprobs_changes_no_token(make: Maker) -> None:
    plain, told = (make_request(max_tokens=12, temperature=1.0, logprobs=asked) for asked in (None, 3))
    assert alone(make, [plain]) == alone(make, [told])


def test_every_token_has_its_logprob_and_as_many_rivals_as_asked(make: Maker) -> None:
    engine = make()
    start(engine, make_request(max_tokens=12, temperature=1.0, logprobs=3))
    frames = drain(engine)["r"]
    logprobs = logprobs_of(frames)
    assert len(logprobs) == len(answer(frames).token_ids) == 12
    assert all(len(of.top) == 3 and of.logprob <= 0 for of in logprobs)


def test_stop_strings_wait_for_min_tokens(make: Maker) -> None:
    ((free,),) = alone(make, [make_request(max_tokens=40)])
    stop = free.text[2:4]
    ((held,),) = alone(make, [make_request(max_tokens=40, stop=(stop,), min_tokens=10)])
    engine = make()
    tokenizer = Tokenizer.from_blob(engine.tokenizer_blob)
    assert len(held.token_ids) >= 10
    assert held.text.startswith(tokenizer.decode(list(held.token_ids[:9])))


@pytest.mark.parametrize("is_journaled", [True, False])
def test_a_visible_special_token_has_its_text_also_after_a_resume(make: Maker, is_journaled: bool) -> None:
    """The text was in the journal, or held back when that was cut, as a stop string might have begun there."""
    engine = make()
    tokenizer = Tokenizer.from_blob(engine.tokenizer_blob)
    mark = tokenizer.special_ids[0]
    name = tokenizer.decode([mark], skip_special_tokens=False)
    journal = [TokensFrame(0, [mark], name if is_journaled else "")]
    start(engine, make_request(ignore_eos=True, visible_token_ids=(mark,), stop=(f"{name}\0",)), journal)
    whole = answer([*journal, *drain(engine)["r"]])
    decoder = tokenizer.incremental([mark])
    assert whole.text == "".join(map(decoder.push, whole.token_ids)) + decoder.flush()
    assert whole.text.startswith(name) and whole.token_ids[0] == mark
