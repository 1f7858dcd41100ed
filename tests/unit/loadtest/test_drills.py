"""The drills as files: each can be read, names faults that exist, and every row of the failure table has one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from loadtest.chaos import drill
from loadtest.chaos.injections import WEIGHTS
from loadtest.chaos.storm import GATEWAY_FAULTS, WORKER_ERRORS, WORKER_KILLS
from shared import faults


@pytest.mark.parametrize("name", drill.names())
def test_a_drill_names_faults_and_processes_that_exist(name: str) -> None:
    read = drill.read(name)
    processes = {f"worker{i}" for i in range(read.workers)} | {f"gateway{i}" for i in range(read.gateways)}
    assert {strike.fault for strike in read.strikes} <= set(WEIGHTS)
    assert {strike.on for strike in read.strikes} | set(read.held) | set(read.failpoints) <= processes | {""}
    assert read.strikes or read.failpoints or read.held or read.paused or read.leavers, "nothing happens"
    assert not read.waiting or {strike.fault for strike in read.strikes} == {"model_pause"}
    assert all(faults.parse(spec) for spec in read.failpoints.values())


def failures() -> dict[str, list[str]]:
    """Of the protocol's table: each failure's drills."""
    page = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text("utf-8")
    table = page.partition("| failure | what must be seen | drills |")[2].partition("\n\n")[0]
    rows = [row.strip("| ").split(" | ") for row in table.splitlines() if row.startswith("| ")]
    return {failure: re.findall(r"`(\w+)`", drills) for failure, _, drills in rows}


def test_each_failure_of_the_protocol_has_a_drill() -> None:
    assert len(failures()) > 14 and [failure for failure, drills in failures().items() if not drills] == []


def test_each_drill_is_for_a_failure_of_the_protocol() -> None:
    assert sorted(name for drills in failures().values() for name in drills) == drill.names()


def test_each_fault_of_a_storm_is_told_in_the_documentation() -> None:
    page = (Path(__file__).parents[3] / "docs" / "chaos.md").read_text("utf-8")
    assert [fault for fault in WEIGHTS if f"`{fault}`" not in page] == []


@pytest.mark.parametrize("spec", [GATEWAY_FAULTS, WORKER_ERRORS, WORKER_KILLS])
def test_the_storms_failpoints_can_be_armed(spec: str) -> None:
    assert faults.parse(spec.replace("{start}", "1"))
