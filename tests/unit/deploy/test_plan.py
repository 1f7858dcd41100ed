"""The launcher's plan: which processes, with which settings, in which order."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from deploy.plan import Commands, Plan, make_plan, share_of_cores
from deploy.preflight import DataDirectory
from shared.config import LauncherSettings

COMMANDS = Commands(gateway=("/bin/gateway",), worker=("/bin/worker",))


def plan_for(tmp_path: Path, commands: Commands = COMMANDS, **settings: object) -> Plan:
    return make_plan(LauncherSettings(**settings), DataDirectory(tmp_path), commands)  # type: ignore[arg-type]


def test_the_embedded_server_comes_first_and_all_get_its_url(tmp_path: Path) -> None:
    plan = plan_for(tmp_path, workers=2)

    assert [spec.name for spec in plan.processes] == ["valkey", "gateway", "worker-1", "worker-2"]
    assert {spec.environment["HEADRACE_REDIS_URL"] for spec in plan.services} == {plan.redis_url}
    assert plan.redis_url == f"redis://127.0.0.1:{plan.server_port}/0"


def test_a_given_server_replaces_the_embedded_one(tmp_path: Path) -> None:
    plan = plan_for(tmp_path, redis_url="redis://elsewhere:6379/1")

    assert plan.server is None
    assert plan.services[0].environment["HEADRACE_REDIS_URL"] == "redis://elsewhere:6379/1"


def test_the_server_may_finish_writing_when_the_launcher_dies_and_services_may_not(tmp_path: Path) -> None:
    plan = plan_for(tmp_path)

    assert plan.server is not None and plan.server.death_signal == signal.SIGTERM
    assert {spec.death_signal for spec in plan.services} == {signal.SIGKILL}


def test_each_process_has_a_log_of_its_own(tmp_path: Path) -> None:
    plan = plan_for(tmp_path, workers=3)

    assert len({spec.log_path for spec in plan.processes}) == len(plan.processes)


def test_without_workers_being_alive_is_being_ready(tmp_path: Path) -> None:
    assert plan_for(tmp_path, workers=0).ready_url.endswith("/health/live")
    assert plan_for(tmp_path, workers=2).ready_url.endswith("/health/ready?min_workers=2")


@pytest.mark.parametrize(
    ("host", "reached_at"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("0.0.0.0", "http://127.0.0.1:8000"),
        ("::", "http://[::1]:8000"),
        ("::1", "http://[::1]:8000"),
        ("localhost", "http://localhost:8000"),
    ],
)
def test_the_url_shown_is_one_a_client_can_use(tmp_path: Path, host: str, reached_at: str) -> None:
    assert plan_for(tmp_path, host=host).base_url == reached_at


def test_threads_are_set_only_when_several_workers_share_the_cores(tmp_path: Path) -> None:
    shared = plan_for(tmp_path, commands=Commands(worker_threads=2), workers=2)

    assert shared.services[1].environment["HEADRACE_THREADS"] == "2"
    assert "HEADRACE_THREADS" not in plan_for(tmp_path).services[1].environment
    assert share_of_cores(1) == 0 and share_of_cores(10_000) == 1
