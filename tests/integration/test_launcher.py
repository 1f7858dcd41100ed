"""`headrace up` for real, with the embedded server and stand-in services: start, death, restart, stop."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from tests.integration.launcher_run import LauncherRun, wait_until_gone

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
Start = Callable[..., LauncherRun]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    runs: list[LauncherRun] = []

    def start_one(*worker_arguments: str, **settings: object) -> LauncherRun:
        runs.append(LauncherRun(tmp_path / "data", *worker_arguments, **settings))
        return runs[-1]

    yield start_one
    for run in runs:
        run.close()


def server_url(run: LauncherRun) -> str:
    return run.wait_for("valkey is ready at").split()[-1]


def test_up_shows_progress_and_an_answer_and_stops_in_order(start: Start, tmp_path: Path) -> None:
    run = start(workers=2, model="toy.gguf")
    run.wait_for("running")
    run.send(signal.SIGTERM)

    assert run.end() == 0
    assert "model loaded (model=toy.gguf" in run.text and "It carries water." in run.text
    assert run.text.rstrip().endswith("stopped")
    for number in (1, 2):
        assert "drained" in (tmp_path / f"data/logs/worker-{number}.log").read_text()


def test_interrupting_while_it_starts_leaves_nothing(start: Start) -> None:
    run = start()
    run.wait_for("valkey is ready")
    pidfds = [os.pidfd_open(pid) for pid in run.children().values()]
    run.send(signal.SIGINT)

    assert run.end() == 0
    assert wait_until_gone(pidfds, timeout_s=1)


def test_killing_the_launcher_leaves_no_orphan(start: Start) -> None:
    run = start()
    run.wait_for("running")
    children = run.children()
    pidfds = [os.pidfd_open(pid) for pid in children.values()]
    run.send(signal.SIGKILL)

    assert set(children) == {"valkey", "gateway", "worker"}
    assert wait_until_gone(pidfds, timeout_s=10)
    assert start().wait_for("running")  # and the next run starts over the same directory


def test_a_taken_port_is_refused_before_anything_starts(start: Start, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        run = start(port=port)

        assert run.end() == 2
    assert f"port {port}" in run.text and "HEADRACE_PORT" in run.text and "--port" in run.text
    assert not (tmp_path / "data").exists()


def test_a_data_directory_in_use_is_refused(start: Start) -> None:
    first = start()
    first.wait_for("running")
    second = start()

    assert second.end() == 2
    assert f"pid {first.pid}" in second.text and "--data-dir" in second.text


def test_a_worker_that_dies_while_starting_fails_the_launch_with_its_log(start: Start) -> None:
    run = start("fail")

    assert run.end() == 1
    assert "worker-1 ended while starting (exit code 3)" in run.text
    assert "the weights are not what the header says" in run.text


def test_a_worker_that_dies_later_is_started_again(start: Start) -> None:
    run = start()
    run.wait_for("running")
    os.kill(run.children()["worker"], signal.SIGKILL)

    assert "killed by SIGKILL" in run.wait_for("worker-1 ended")
    run.wait_for("worker-1 started again")
    assert "worker" in run.children()


def test_the_server_keeps_its_data_over_a_restart_and_its_settings_are_those_promised(start: Start) -> None:
    first = start()
    with redis.Redis.from_url(server_url(first)) as client:
        client.set("hr:kept", "yes")
        kept = client.config_get("append*") | client.config_get("maxmemory-policy") | client.config_get("save")
    first.send(signal.SIGTERM)
    assert first.end() == 0

    with redis.Redis.from_url(server_url(start())) as client:
        assert client.get("hr:kept") == b"yes"
    assert kept["appendonly"] == "yes" and kept["maxmemory-policy"] == "noeviction" and kept["save"] == ""


def test_a_given_server_is_used_and_not_started(start: Start) -> None:
    run = start(redis_url="redis://:secret@127.0.0.1:1/0")
    run.wait_for("running")

    assert set(run.children()) == {"gateway", "worker"}
    assert "using the server at redis://127.0.0.1:1/0" in run.text and "secret" not in run.text.split("redis_url=")[0]
