"""Children's lives: backoff, deadlines, and the order of the end. Children here are shells."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deploy.process import Process, ProcessSpec, describe_exit
from deploy.supervisor import Backoff, Supervisor


def shell(tmp_path: Path, name: str, script: str) -> ProcessSpec:
    return ProcessSpec(name=name, argv=("/bin/sh", "-c", script), log_path=tmp_path / f"{name}.log")


async def is_up(tmp_path: Path, name: str) -> None:
    """Waits until a shell has printed `up`: its traps are set."""
    while "up" not in (tmp_path / f"{name}.log").read_text():  # noqa: ASYNC110  a shell sets no event
        await asyncio.sleep(0)


class Said:
    """Collects what is said; `until` waits for a line."""

    def __init__(self) -> None:
        self.lines: asyncio.Queue[str] = asyncio.Queue()

    async def until(self, text: str) -> None:
        while text not in await self.lines.get():
            pass


@pytest.fixture
def said() -> Said:
    return Said()


@pytest.fixture
async def supervisor(said: Said) -> AsyncIterator[Supervisor]:
    hurry = asyncio.Event()
    hurry.set()
    supervisor = Supervisor(said.lines.put_nowait, Backoff(first_s=0.01, most_s=0.05))
    yield supervisor
    await supervisor.stop(0, hurry)


def test_the_delay_doubles_up_to_a_bound_and_starts_over_after_a_healthy_life() -> None:
    backoff = Backoff(first_s=1, most_s=3, healthy_s=30)
    assert backoff.next_delay_s(0.0, 1) == 1
    assert backoff.next_delay_s(1, 1) == 2
    assert backoff.next_delay_s(2, 1) == 3
    assert backoff.next_delay_s(3, 30) == 1


@pytest.mark.parametrize(
    ("code", "text"), [(3, "exit code 3"), (-9, "killed by SIGKILL"), (-99, "killed by signal 99")]
)
def test_an_exit_is_told_in_words(code: int, text: str) -> None:
    assert describe_exit(code) == text


async def test_output_goes_to_the_log_and_settings_come_by_environment(tmp_path: Path) -> None:
    spec = ProcessSpec(
        "a", ("/bin/sh", "-c", "echo $HEADRACE_X; echo err >&2"), tmp_path / "a.log", {"HEADRACE_X": "1"}
    )
    process = await Process.start(spec)
    assert await process.wait() == 0
    assert (tmp_path / "a.log").read_text() == "1\nerr\n"


async def test_first_death_names_the_child_that_ended(tmp_path: Path, supervisor: Supervisor) -> None:
    await supervisor.start(shell(tmp_path, "stays", "exec sleep 60"))
    await supervisor.start(shell(tmp_path, "goes", "exit 7"))
    dead = await supervisor.first_death()
    assert dead.spec.name == "goes" and dead.returncode == 7


async def test_a_child_that_ends_is_started_again_and_again(tmp_path: Path, supervisor: Supervisor, said: Said) -> None:
    await supervisor.start(shell(tmp_path, "a", "exit 1"))
    supervisor.supervise()
    await said.until("a started again")
    await said.until("a started again")


async def test_a_child_that_ignores_sigterm_is_killed_when_in_a_hurry(
    tmp_path: Path, supervisor: Supervisor, said: Said
) -> None:
    child = await supervisor.start(shell(tmp_path, "a", "trap '' TERM; echo up; while :; do sleep 60; done"))
    await is_up(tmp_path, "a")
    hurry = asyncio.Event()
    hurry.set()
    await supervisor.stop(drain_timeout_s=60, hurry=hurry)
    assert child.returncode == -signal.SIGKILL
    await said.until("a did not finish in time")


async def test_a_child_past_its_deadline_is_killed(tmp_path: Path) -> None:
    process = await Process.start(shell(tmp_path, "a", "trap '' TERM; echo up; while :; do sleep 60; done"))
    await is_up(tmp_path, "a")
    assert not await process.stop(grace_s=0.01)
    assert process.returncode == -signal.SIGKILL


async def test_the_server_ends_after_the_services(tmp_path: Path, supervisor: Supervisor) -> None:
    order = tmp_path / "order"
    ready = "trap 'echo {0} >> {1}; exit 0' TERM; echo up; while :; do sleep 0.01; done"
    await supervisor.start(shell(tmp_path, "server", ready.format("server", order)), is_server=True)
    service = await supervisor.start(shell(tmp_path, "service", ready.format("service", order)))
    await is_up(tmp_path, "server")
    await is_up(tmp_path, "service")
    await supervisor.stop(drain_timeout_s=30, hurry=asyncio.Event())
    assert service.returncode == 0
    assert order.read_text().split() == ["service", "server"]
