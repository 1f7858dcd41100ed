"""What a refused client is told, and the room kept for it."""

from __future__ import annotations

import pytest

from gateway.admission import MAX_RETRY_S, Promises

PER_S = 10.0
MAX_WAITING = 100


def refused(promises: Promises, number: int, now_s: float = 0.0) -> list[float]:
    return [promises.promise_s(asked, PER_S, now_s) for asked in range(number)]


def test_each_is_told_when_all_before_it_are_in() -> None:
    told = refused(Promises(), 30)
    assert told[10:] == pytest.approx([i / PER_S for i in range(11, 31)], rel=0.06)


def test_who_came_when_told_and_found_no_room_is_the_next() -> None:
    promises = Promises()
    refused(promises, 30)
    assert promises.promise_s(12, PER_S, 2.0) == 1.0
    assert promises.room(asked=12, max_waiting=MAX_WAITING, now_s=3.0) == MAX_WAITING


def test_nobody_is_told_less_than_a_second() -> None:
    assert min(refused(Promises(), 5)) == 1.0


def test_who_is_due_finds_room_that_others_do_not() -> None:
    promises = Promises()
    refused(promises, 30)
    assert promises.room(asked=12, max_waiting=MAX_WAITING, now_s=2.0) == MAX_WAITING
    assert promises.room(asked=99, max_waiting=MAX_WAITING, now_s=2.0) < MAX_WAITING


def test_who_comes_too_early_is_told_the_rest() -> None:
    promises = Promises()
    refused(promises, 30)
    assert promises.promise_s(29, PER_S, 1.0) == pytest.approx(2.0, rel=0.1)


def test_never_more_than_half_of_the_queue_is_kept() -> None:
    promises = Promises()
    refused(promises, 300)
    assert promises.room(asked=999, max_waiting=8, now_s=3.0) == 4


def test_room_is_not_kept_for_who_does_not_come() -> None:
    promises = Promises()
    refused(promises, 30)
    assert promises.room(asked=99, max_waiting=MAX_WAITING, now_s=60.0) == MAX_WAITING


def test_a_kept_promise_is_over() -> None:
    promises = Promises()
    refused(promises, 1)
    promises.keep(0)
    assert promises.room(asked=99, max_waiting=MAX_WAITING, now_s=1.0) == MAX_WAITING


def test_nothing_is_promised_while_no_rate_is_known() -> None:
    promises = Promises()
    assert promises.promise_s(1, 0.0, 0.0) == MAX_RETRY_S
    assert promises.room(asked=2, max_waiting=MAX_WAITING, now_s=MAX_RETRY_S) == MAX_WAITING
