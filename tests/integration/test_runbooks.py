"""docs/runbooks: one for each alert, of one shape; its queries parse, its commands are run against a live queue."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from loadtest.valkey import Valkey
from tests.architecture.source_tree import ROOT, read
from tests.integration.queue_actors import Actors
from tests.integration.test_incident_guide import headrace, lines_of, redis_cli
from tests.integration.test_incident_guide import live as live
from tests.unit.deploy.observability.promql import syntax_faults, unknown_names

BOOKS = {path.stem: path.read_text("utf-8") for path in sorted((ROOT / "docs/runbooks").glob("Headrace*.md"))}
SHAPE = ["Symptom", "Is it real?", "Causes, the likeliest first", "Mitigation", "Verification"]
EVERY = pytest.mark.parametrize("book", BOOKS.values(), ids=BOOKS)


def test_each_alert_has_a_runbook_and_no_other() -> None:
    rules = yaml.safe_load(read("deploy/observability/prometheus/rules/alerts.yml"))["groups"][0]["rules"]
    assert sorted(BOOKS) == sorted(rule["alert"] for rule in rules)


@EVERY
def test_all_have_one_shape(book: str) -> None:
    assert re.findall(r"^## (.+)$", book, re.M) == SHAPE
    real, over = (book.partition(f"## {part}")[2].partition("\n## ")[0] for part in ("Is it real?", "Verification"))
    assert all(lines_of(part, kind) for part in (real, over) for kind in ("promql", "redis-cli"))


def test_their_queries_parse_and_name_only_metrics_that_exist(tmp_path: Path) -> None:
    assert unknown_names(" ".join(BOOKS.values())) == set()
    queries = [line for book in BOOKS.values() for line in lines_of(book, "promql")]
    assert syntax_faults(queries, tmp_path) == ""


@EVERY
async def test_their_commands_are_understood(book: str, live: Actors, valkey: Valkey) -> None:
    for line in lines_of(book, "sh headrace"):
        assert await headrace(valkey, line), line
    for line in lines_of(book, "redis-cli"):
        await redis_cli(valkey, line)  # raises what the server refuses


async def test_what_they_look_at_is_there(live: Actors, valkey: Valkey) -> None:
    """A key that is misspelled answers nothing, without an error."""
    await live.queue.heartbeat("w1", "nonce", b'{"running": 1}')
    empty = set()
    for book in BOOKS.values():
        for line in lines_of(book, "redis-cli"):
            if await redis_cli(valkey, line) in ([], None, "", 0):
                empty.add(line)
    # What was slow is for the machine to say.
    assert {line for line in empty if "SLOWLOG" not in line} == {
        "redis-cli ZRANGE hr:gateways 0 -1 WITHSCORES",
        'redis-cli HGETALL "hr:${R}:paused"',
        'redis-cli EXISTS "hr:${R}:paused"',
        'redis-cli HGETALL "hr:${R}:quarantine"',
        'redis-cli HLEN "hr:${R}:quarantine"',
    }
