"""What counts as lost, doubled and out of order, and which fault a pause is put down to."""

from __future__ import annotations

import pytest

from loadtest.chaos.load import Stumble
from loadtest.chaos.report import Injected, blame
from loadtest.chaos.verdict import Damage, compare

RIGHT = "The river turns. Some mill keeps its wheel."


@pytest.mark.parametrize(
    ("got", "damage"),
    [
        (RIGHT, Damage()),
        ("The turns. Some mill keeps its wheel.", Damage(lost=1)),
        ("The river turns. Some mill keeps its", Damage(lost=2)),
        ("The river river turns. Some mill keeps its wheel.", Damage(doubled=1)),
        ("The turns river. Some mill keeps its wheel.", Damage(out_of_order=1)),
        (RIGHT + " Some", Damage(doubled=1)),
        (RIGHT.replace(" mill", "  mill"), Damage(lost=1, doubled=1)),
    ],
)
def test_damage_is_told_apart(got: str, damage: Damage) -> None:
    assert compare(RIGHT, got, is_whole=True) == damage


def test_what_an_unfinished_stream_did_not_say_yet_is_not_lost() -> None:
    assert not compare(RIGHT, "The river tur", is_whole=False)
    assert compare(RIGHT, "The turns", is_whole=False)


def test_a_pause_is_put_down_to_the_fault_that_began_in_it() -> None:
    faults = [Injected("slow", "", 0, 9), Injected("kill", "", 10, 10), Injected("cut", "", 30, 31)]
    pauses = {"at kill": Stumble(9, 14, "a"), "later": Stumble(20, 21, "b"), "in slow": Stumble(5, 6, "c")}
    causes = {kind: [s.request_id for s in found] for kind, found in blame(list(pauses.values()), faults).items()}
    assert causes == {"kill": ["a"], "(none)": ["b"], "slow": ["c"]}
