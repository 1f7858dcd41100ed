"""Who is asked: draws, keys, and the order of candidates."""

from __future__ import annotations

from collections import Counter

import pytest

from gateway.models.choice import (
    NO_WORKERS,
    NOT_REGISTERED,
    QUEUE_FULL,
    Candidate,
    Draws,
    chosen,
    draw_of,
    in_order,
)
from shared.routing.table import End

CANARY = (End("stable", 0.9), End("canary", 0.1))


def test_a_target_gets_its_share_of_few_requests_as_of_many() -> None:
    draws = Draws()
    models = [chosen(CANARY, draws.next("chat")).model for _ in range(2000)]
    assert Counter(models)["canary"] == pytest.approx(200, abs=5)
    assert all(8 <= models[start : start + 100].count("canary") <= 12 for start in range(0, 2000, 100))


def test_names_have_sequences_of_their_own_and_forget_those_that_went() -> None:
    draws = Draws()
    first = [draws.next("a") for _ in range(50)]
    draws.next("b")
    draws.keep(["b"])
    assert len({round(draw, 9) for draw in first}) == 50 and draws._last.keys() == {"b"}


def test_a_key_has_one_draw_and_many_keys_have_all() -> None:
    assert draw_of("acme\nk1") == draw_of("acme\nk1") != draw_of("other\nk1")
    models = Counter(chosen(CANARY, draw_of(f"key {i}")).model for i in range(2000))
    assert models["canary"] == pytest.approx(200, abs=40)


@pytest.mark.parametrize(("draw", "model"), [(0.0, "stable"), (0.8999, "stable"), (0.9001, "canary"), (1.0, "canary")])
def test_a_draw_falls_on_one_target(draw: float, model: str) -> None:
    assert chosen(CANARY, draw).model == model


def tried(model: str, reason: str = "") -> Candidate:
    return Candidate(model, reason, is_tentative=True)


@pytest.mark.parametrize(
    ("troubles", "order"),
    [
        ({}, [tried("t"), tried("f", QUEUE_FULL), tried("g", QUEUE_FULL), Candidate("t")]),
        ({"t": NO_WORKERS}, [tried("f", NO_WORKERS), tried("g", NO_WORKERS), Candidate("t")]),
        ({"f": NOT_REGISTERED}, [tried("t"), tried("g", QUEUE_FULL), Candidate("t")]),
        ({"t": NO_WORKERS, "f": NO_WORKERS, "g": NO_WORKERS}, [Candidate("t")]),
    ],
)
def test_who_serves_is_asked_before_who_does_not_and_the_target_has_the_last_word(
    troubles: dict[str, str], order: list[Candidate]
) -> None:
    assert in_order("t", ["f", "g", "f", "t"], lambda model: troubles.get(model, "")) == order
