"""The scaling run's own arithmetic: the autoscaler it plays, the cores it names, the figures it reads."""

from __future__ import annotations

from loadtest.scaling.core import request_us
from loadtest.scaling.fleet import Meter, between
from loadtest.scaling.growth import Follower
from loadtest.scaling.run import Point


def test_the_follower_grows_at_once_and_shrinks_when_it_has_been_less_for_a_while() -> None:
    follower = Follower(hold_s=3)
    assert [follower.size(wanted, at) for at, wanted in enumerate((1, 5, 2, 2, 2, 0, 0, 0, 7))] == [
        1, 5, 5, 5, 5, 2, 2, 2, 7,
    ]  # fmt: skip


def test_use_is_what_grew_a_second_and_its_dearest_part_is_named() -> None:
    use = between(Meter(10, 100, 1, 2, 3, 4), Meter(14, 500, 1.4, 4, 3.2, 4.1))
    assert (use.tokens_per_s, round(use.cores, 3)) == (100, 0.675)
    assert Point(4, 1.0, use).dearest == "workers"


def test_what_a_request_costs_is_in_the_newest_protocol_results() -> None:
    assert request_us().keys() == {"admit", "take"} and min(request_us().values()) > 0
