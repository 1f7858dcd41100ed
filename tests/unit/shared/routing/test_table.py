"""Routes: what an entry may say, and where names end."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from shared.errors import InvalidRequest
from shared.request_queue import Bounds
from shared.routing.entries import MAX_TARGETS, Route, route_of
from shared.routing.table import End, RouteTable, changed, table_of
from shared.schemas import ServiceClass


def route(**fields: Any) -> Route:
    return route_of("chat", orjson.dumps(fields))


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"target": "a"}, "target", "unknown field"),
        ({"targets": {"a": 0}}, "targets", "> 0"),
        ({"targets": {"a": -1}}, "targets", "> 0"),
        ({"targets": {"a": 1e9}}, "targets", "<= 1000000"),
        ({"targets": {"": 1}}, "targets", "length >= 1"),
        ({"targets": {"a" * 257: 1}}, "targets", "length <= 256"),
        ({"targets": {f"m{i}": 1 for i in range(MAX_TARGETS + 1)}}, "targets", "length <= 16"),
        ({"targets": ["a"]}, "targets", "`object`"),
        ({"fallbacks": ["x"] * 9}, "fallbacks", "length <= 8"),
        ({"fallbacks": ["x", "x"]}, "fallbacks", "twice"),
        ({"fallbacks": ["chat"]}, "fallbacks", "itself"),
        ({"max_waiting": 0}, "max_waiting", ">= 1"),
        ({"max_waiting_bytes": 10}, "max_waiting_bytes", ">= 1000"),
        ({"class_weights": {"urgent": 1}}, "class_weights", "urgent"),
        ({"class_weights": {"flex": 0}}, "class_weights", "> 0"),
        ({"targets": {"a": 1}, "max_waiting": 5}, "max_waiting", "set it at 'a'"),
        ({}, "targets", "nothing is said"),
    ],
)
def test_a_fault_of_an_entry_is_named_with_its_limit(fields: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        route(**fields)
    assert refused.value.param == param and words in refused.value.message


@pytest.mark.parametrize("name", ["", "a" * 257, "a\nb"])
def test_a_name_that_no_client_could_ask_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="256 characters"):
        route_of(name, b'{"targets": {"a": 1}}')


@pytest.mark.parametrize("fields", [b"", b"[]", b"{", b"null", b'"\xff"', b'{"targets": {"a": NaN}}'])
def test_what_is_no_entry_is_refused(fields: bytes) -> None:
    with pytest.raises(InvalidRequest):
        route_of("chat", fields)


def test_shares_go_through_routes_and_fallbacks_gather_on_the_way() -> None:
    table = RouteTable(
        {
            "chat": Route(targets={"small": 90, "canary": 10}, fallbacks=("tiny",)),
            "canary": Route(targets={"big@1": 1, "big@2": 3}),
            "small": Route(fallbacks=("big",), max_waiting=5),
        }
    )
    small, first, second = table.ends("chat")
    assert (small, first) == (End("small", 0.9, ("tiny", "big")), End("big@1", 0.025, ("tiny",)))
    assert (second.model, second.share) == ("big@2", pytest.approx(0.075))
    assert table.ends("other") == (End("other"),)


def test_a_name_that_is_its_own_target_is_the_model() -> None:
    table = RouteTable({"m": Route(targets={"m": 9, "m@2": 1})})
    assert [(end.model, end.share) for end in table.ends("m")] == [("m", 0.9), ("m@2", 0.1)]


def test_a_cycle_is_refused_with_its_way() -> None:
    table = RouteTable({"a": Route(targets={"b": 1}), "b": Route(targets={"c": 1})})
    with pytest.raises(InvalidRequest, match="a cycle: a -> b -> c -> a"):
        changed(table, "c", Route(targets={"a": 1}))


def test_routes_in_a_long_row_or_too_wide_are_refused() -> None:
    row = {f"r{i}": Route(targets={f"r{i + 1}": 1}) for i in range(8)}
    with pytest.raises(InvalidRequest, match="more than 8 routes"):
        RouteTable(row | {"r8": Route(targets={"m": 1})})
    wide = {f"w{i}": Route(targets={f"m{i}.{j}": 1 for j in range(16)}) for i in range(5)}
    with pytest.raises(InvalidRequest, match="more than 64 models"):
        RouteTable(wide | {"all": Route(targets={name: 1 for name in wide})})


def test_stored_entries_with_faults_are_left_out_and_named() -> None:
    table, faults = table_of({
        b"good": b'{"targets": {"m": 1}}', b"bad": b"{", b"x": b'{"targets": {"y": 1}}', b"y": b'{"targets": {"x": 1}}',
    })  # fmt: skip
    assert set(table.routes) == {"good", "x"} and table.ends("x") == (End("y"),)
    assert ["bad" in faults[0], "'y'" in faults[1] and "cycle" in faults[1], len(faults)] == [True, True, 2]


def test_bounds_and_weights_are_a_revisions_before_its_names_before_the_gateways() -> None:
    table = RouteTable(
        {
            "m": Route(max_waiting=10, max_waiting_tokens=20, class_weights={ServiceClass.FLEX: 3}),
            "m@2": Route(max_waiting=5),
        }
    )
    assert table.bounds("m@1", Bounds(1, 2, 3)) == Bounds(10, 20, 3)
    assert table.bounds("m@2", Bounds(1, 2, 3)) == Bounds(5, 20, 3)
    assert table.bounds("other@1", Bounds(1, 2, 3)) == Bounds(1, 2, 3)
    assert table.class_weight("m@2", ServiceClass.FLEX, 1.0) == 3
    assert table.class_weight("m@2", ServiceClass.BATCH, 1.0) == 1.0
