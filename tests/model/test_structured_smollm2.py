"""The real model's vocabulary under constraints: answers that validate, also after a journal was cut."""

from __future__ import annotations

import json

import pytest
from pydantic import BaseModel, Field

from shared.schemas import Constraint, ConstraintKind, Frame, Request
from shared.text.tokenizer import Tokenizer
from tests.unit.worker.engine.harness import answers, drain, make_request, start
from worker.backends.interface import Engine
from worker.backends.native import compose_native
from worker.engine.scheduling.config import SchedulerConfig
from worker.model.runner import LoadedModel


class Mill(BaseModel, extra="forbid"):
    river: str = Field(max_length=10)
    wheels: int = Field(ge=1, le=9)
    is_old: bool


def engine_of(loaded: LoadedModel) -> Engine:
    return compose_native(loaded, SchedulerConfig(max_num_seqs=4, max_step_tokens=256))


@pytest.fixture(scope="module")
def request_and_journal(smollm2: LoadedModel) -> tuple[Request, list[Frame]]:
    tokenizer = Tokenizer.from_blob(smollm2.tokenizer_blob)
    prompt = tokenizer.encode(tokenizer.render_chat([{"role": "user", "content": "Describe a mill as JSON."}]))
    constraint = Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(Mill.model_json_schema()))
    request = make_request(prompt=prompt, max_tokens=60, constraint=constraint, n=2, temperature=0.7, seed=5)
    engine = engine_of(smollm2)
    start(engine, request)
    return request, drain(engine)["r"]


def test_every_choice_validates(request_and_journal: tuple[Request, list[Frame]]) -> None:
    choices, _ = answers(request_and_journal[1], 2)
    assert [choice.finish_reason for choice in choices] == ["stop", "stop"]
    for choice in choices:
        Mill.model_validate_json(choice.text)


def test_a_cut_journal_is_completed_by_another_engine(
    smollm2: LoadedModel, request_and_journal: tuple[Request, list[Frame]]
) -> None:
    request, journal = request_and_journal
    kept = journal[: len(journal) * 2 // 3]
    second = engine_of(smollm2)
    start(second, request, kept)
    choices, _ = answers(kept + drain(second)["r"], 2)
    for choice in choices:
        Mill.model_validate_json(choice.text)
