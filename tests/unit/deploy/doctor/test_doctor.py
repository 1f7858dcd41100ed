"""The doctor's verdicts: about a server from facts, about a model from files."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.doctor import access, machine, server
from deploy.doctor.server import Facts, judge
from shared.access.entries import KeyEntry, sha256_of
from shared.config import GatewaySettings

GOOD = {
    "appendonly": "yes",
    "appendfsync": "everysec",
    "aof-load-truncated": "yes",
    "maxmemory": "1073741824",
    "maxmemory-policy": "noeviction",
    "client-output-buffer-limit": "normal 0 0 0 slave 268435456 67108864 60 pubsub 67108864 33554432 30",
    "timeout": "0",
}


def facts(version: tuple[int, ...] = (7, 2, 4), replicas: int = 0, **changed: str) -> Facts:
    config = GOOD | {name.replace("_", "-"): value for name, value in changed.items()}
    return Facts(name="redis", version=version, replicas=replicas, config=config)


def verdicts(of: Facts) -> dict[str, str]:
    return {finding.check: finding.level for finding in judge(of) if finding.level != "ok"}


def test_a_server_set_as_the_protocol_asks_passes() -> None:
    assert verdicts(facts()) == {}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (facts(version=(6, 2, 0)), {"redis version": "FAIL", "acknowledged writes": "warn"}),
        (facts(version=(7, 0, 5)), {"acknowledged writes": "warn"}),
        (facts(version=(7, 0, 5), replicas=1), {}),
        (facts(maxmemory_policy="allkeys-lru"), {"maxmemory-policy": "FAIL"}),
        (facts(appendonly="no"), {"appendonly": "FAIL", "acknowledged writes": "warn"}),
        (facts(appendonly="no", replicas=1), {"appendonly": "warn"}),
        (facts(appendfsync="no"), {"appendfsync": "warn"}),
        (facts(aof_load_truncated="no"), {"aof-load-truncated": "warn"}),
        (facts(maxmemory="0"), {"maxmemory": "warn"}),
        (facts(client_output_buffer_limit="pubsub 8388608 4194304 60"), {"pubsub buffer": "warn"}),
        (facts(client_output_buffer_limit="pubsub 0 0 0"), {}),
        (facts(timeout="30"), {"timeout": "warn"}),
        (Facts(name="redis", version=(7, 2, 4), replicas=1), {"redis settings": "warn"}),
    ],
)
def test_each_departure_has_its_verdict(found: Facts, expected: dict[str, str]) -> None:
    assert verdicts(found) == expected


def test_whatever_is_not_ok_says_what_to_do() -> None:
    bad = judge(Facts(name="redis", version=(6, 0), config={"appendonly": "no", "timeout": "9"}))
    assert all(finding.remedy for finding in bad if finding.level != "ok")


def test_a_server_that_does_not_answer_is_a_failure() -> None:
    (finding,) = server.examine("redis://127.0.0.1:1/0")
    assert finding.level == "FAIL" and "HEADRACE_REDIS_URL" in finding.line()


def test_a_url_that_is_none_is_a_failure() -> None:
    (finding,) = server.examine("localhost:6379")
    assert finding.level == "FAIL" and "a Redis URL begins with" in finding.detail


def test_models_are_checked_by_their_files(tmp_path: Path) -> None:
    (tmp_path / "good.gguf").write_bytes(b"GGUF....")
    (tmp_path / "bad.gguf").write_bytes(b"<html>")
    assert machine.check_model(str(tmp_path / "good.gguf")).level == "ok"
    assert machine.check_model(str(tmp_path / "bad.gguf")).level == "FAIL"
    assert machine.check_model(str(tmp_path / "none.gguf")).level == "FAIL"
    assert "config.json" in machine.check_model(str(tmp_path)).detail


@pytest.mark.parametrize(
    ("required", "num_keys", "level", "words"),
    [
        (False, 0, "warn", "whoever reaches 127.0.0.1:8000 is served"),
        (True, 0, "warn", "nobody can use the service"),
        (False, 2, "ok", "2 of 1 tenants"),
    ],
)
def test_keys_are_counted_and_their_absence_is_said(required: bool, num_keys: int, level: str, words: str) -> None:
    entries = tuple(KeyEntry(sha256=sha256_of(str(number)), name="acme") for number in range(num_keys))
    (finding,) = access.judge(GatewaySettings(require_keys=required), entries, {})
    assert (finding.level, finding.check) == (level, "API keys") and words in finding.detail
