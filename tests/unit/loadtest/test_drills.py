"""The drills as files: each can be read, names faults that exist, and every row of the failure table has one."""

from __future__ import annotations

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
    assert read.strikes or read.failpoints or read.held or read.leavers, "nothing happens"
    assert all(faults.parse(spec) for spec in read.failpoints.values())


@pytest.mark.parametrize("spec", [GATEWAY_FAULTS, WORKER_ERRORS, WORKER_KILLS])
def test_the_storms_failpoints_can_be_armed(spec: str) -> None:
    assert faults.parse(spec.replace("{start}", "1"))
