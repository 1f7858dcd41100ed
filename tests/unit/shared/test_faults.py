"""Failpoints: what a spec means, what is refused, that nothing happens where nothing is armed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from gateway.app import main as gateway_main
from shared import faults
from shared.config import WorkerSettings, load
from shared.errors import ConfigurationError
from worker.service import main as worker_main


@pytest.fixture
def struck() -> Iterator[list[str]]:
    """Kinds that struck, in order; disarmed afterwards."""
    kinds: list[str] = []
    yield kinds
    faults.arm("", sleep=no_sleep, on_fault=kinds.append)


async def no_sleep(_seconds: float) -> None:
    pass


async def test_nothing_armed_nothing_happens() -> None:
    assert not await faults.hit("before_emit") and not faults.hit_in_thread("kv_alloc")


async def test_a_count_bounds_how_often_it_strikes(struck: list[str]) -> None:
    faults.arm("publish_drop:drop,count=2", sleep=no_sleep, on_fault=struck.append)
    assert [await faults.hit("publish_drop") for _ in range(4)] == [True, True, False, False]
    assert struck == ["publish_drop:drop"] * 2


async def test_a_seed_draws_the_same_strikes_again(struck: list[str]) -> None:
    async def strikes(seed: int) -> list[bool]:
        spec = f"publish_drop:drop,probability=0.5,seed={seed}"
        faults.arm(spec, sleep=no_sleep, on_fault=struck.append)
        return [await faults.hit("publish_drop") for _ in range(40)]

    assert await strikes(7) == await strikes(7) != await strikes(8)


async def test_raise_is_an_error_of_the_connection(struck: list[str]) -> None:
    faults.arm("take:raise;heartbeat:delay=200", sleep=no_sleep, on_fault=struck.append)
    with pytest.raises(ConnectionError):
        await faults.hit("take")
    assert not await faults.hit("heartbeat") and struck == ["take:raise", "heartbeat:delay"]


@pytest.mark.parametrize(
    "spec",
    ["nowhere:kill", "take:explode", "take:drop", "take:delay", "take:kill=3", "take:kill,count=x", "take:kill,c=1"],
)
def test_a_wrong_spec_is_refused(spec: str) -> None:
    with pytest.raises(ConfigurationError):
        faults.parse(spec)


def test_armed_faults_refuse_to_start_unless_they_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_FAULTS", "take:kill")
    with pytest.raises(ConfigurationError, match="allow_faults"):
        load(WorkerSettings)
    monkeypatch.setenv("HEADRACE_ALLOW_FAULTS", "true")
    assert load(WorkerSettings).faults == "take:kill"


@pytest.mark.parametrize("main", [gateway_main, worker_main])
def test_a_process_given_a_wrong_spec_says_so_in_one_line_and_exits_with_2(
    main: Callable[[], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADRACE_FAULTS", "nowhere:kill")
    monkeypatch.setenv("HEADRACE_ALLOW_FAULTS", "true")
    with pytest.raises(SystemExit) as ended:
        main()
    (line,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2 and "HEADRACE_FAULTS: " in line and "no failpoint is called 'nowhere'" in line


async def test_a_match_strikes_only_what_shows_it(struck: list[str]) -> None:
    faults.arm("after_take:raise,match=poison", sleep=no_sleep, on_fault=struck.append)
    assert not await faults.hit("after_take", ["water"])
    with pytest.raises(ConnectionError):
        await faults.hit("after_take", ["a poisonous body"])
