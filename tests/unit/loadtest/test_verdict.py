"""What counts as lost, doubled and out of order, and which fault a pause is put down to."""

from __future__ import annotations

import pytest

from loadtest.chaos.books import Rest
from loadtest.chaos.load import Stumble, Tally
from loadtest.chaos.report import Injected, Report, attribute, blame
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


def test_a_pause_is_that_of_the_fault_whose_time_it_fell_in() -> None:
    """It begins with the last event before the fault, in the calm after another one."""
    alone = [Injected("flush", "", 1, 10), Injected("kill", "", 10, 16), Injected("cut", "", 18, 20)]
    pauses = [Stumble(9.9, 14, "a"), Stumble(15, 16, "b"), Stumble(17, 17.6, "c"), Stumble(17.9, 19.5, "d")]
    seen = {kind: [s.request_id for s in found] for kind, found in attribute(pauses, alone).items()}
    assert seen == {"kill": ["a", "b"], "(none)": ["c"], "cut": ["d"]}


def test_the_table_has_what_is_exact_beside_what_is_guessed() -> None:
    tally = Tally(stumbles=[Stumble(11, 14, "a"), Stumble(101, 105.5, "b"), Stumble(101, 106, "c", is_broken=True)])
    report = Report(
        1, 60, [Injected("kill", "worker1", 10, 16)], [Injected("kill", "worker2", 101, 101)], 100.0, tally, Rest(),
        [], {"take:raise": 2}, can_resume=True,
    )  # fmt: skip
    rows = {line.split()[0]: line.split()[1:] for line in report.lines()[3:5]}
    assert rows == {"kill": ["3.0", "s", "1", "1", "4.5", "s", "1", "1", "worker1"], "at": ["take:raise", "2"]}
