"""Cores dealt to the workers of one machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.doctor import cores
from deploy.plan import Commands, make_plan
from deploy.preflight import DataDirectory
from shared.config import LauncherSettings, WorkerSettings, load, parse_cpu_set
from shared.errors import ConfigurationError

EIGHT = frozenset(range(8))


@pytest.fixture(autouse=True)
def _eight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "usable_cpus", lambda: EIGHT)


def machine(root: Path, quota: str = "max 100000") -> Path:
    """Four cores of two threads: 0 and 4 are one."""
    for cpu in range(8):
        folder = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{cpu % 4},{cpu % 4 + 4}\n")
    (root / "sys/fs/cgroup").mkdir(parents=True)
    (root / "sys/fs/cgroup/cpu.max").write_text(quota)
    return root


def test_each_worker_gets_its_own_and_both_threads_of_a_core(tmp_path: Path) -> None:
    assert cores.deal(2, machine(tmp_path)) == ["0,1,4,5", "2,3,6,7"]


def test_no_more_is_dealt_than_the_quota_pays_for(tmp_path: Path) -> None:
    assert cores.deal(2, machine(tmp_path, "400000 100000")) == ["0,4", "1,5"]


def test_more_workers_than_cores_share(tmp_path: Path) -> None:
    assert cores.deal(3, machine(tmp_path, "200000 100000")) == ["0", "4", "0"]


def test_ranges_are_read_and_what_does_not_exist_is_named() -> None:
    assert parse_cpu_set("0-2, 5", EIGHT) == {0, 1, 2, 5}
    with pytest.raises(ValueError, match="may not run on 8, 9; it may on 0, 1"):
        parse_cpu_set("7-9", EIGHT)
    for words in ("3-1", "a", "1,,2", "-1"):
        with pytest.raises(ValueError, match="no core and no range"):
            parse_cpu_set(words, EIGHT)


def test_a_core_that_does_not_exist_refuses_the_start_by_the_settings_name() -> None:
    with pytest.raises(ConfigurationError, match=r"HEADRACE_CPU_SET.*may not run on 9999"):
        load(WorkerSettings, cpu_set="9999")


def test_the_plan_gives_each_worker_its_cores_and_its_name(tmp_path: Path) -> None:
    commands = Commands(cpu_sets=["0", "1"], worker_name="host-worker")
    plan = make_plan(LauncherSettings(workers=2), DataDirectory(tmp_path), commands)
    names = ("HEADRACE_CPU_SET", "HEADRACE_WORKER_NAME")
    told = [tuple(spec.environment[name] for name in names) for spec in plan.services[1:]]
    assert told == [("0", "host-worker-1"), ("1", "host-worker-2")]
