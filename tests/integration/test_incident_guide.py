"""docs/incident-guide.md, run in the order of the page against a live layout: both commands of each question."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import AsyncIterator, Callable
from string import Template
from typing import Any

import pytest
from typer.testing import CliRunner

from deploy.cli import app
from gateway.routes import operator
from loadtest.valkey import Valkey
from shared.config import RedisSettings
from shared.redis_client import connect
from shared.registry import Registry
from tests.architecture.source_tree import read
from tests.integration.queue_actors import MODEL, Actors, tokens
from tests.integration.test_operations import CARD, admit, kill
from tests.integration.test_protocol_doc import entries, pairs, text

PAGE = read("docs/incident-guide.md")
QUESTIONS = re.findall(r"^## (\d+)\. [^\n]+\?\n(.*?)(?=^## )", PAGE, re.M | re.S)
NAMES = {"M": "tiny", "R": f"{{{MODEL}}}", "ID": "running", "DEAD": "poison", "W": "w1"}

# Number of the question -> whether redis-cli's reply says what the page says, and what the headrace commands print.
EXPECTED: dict[int, tuple[Callable[[Any], bool], list[str]]] = {
    1: (lambda r: pairs(r)["waiting"] == "1", ["waiting 1 of"]),
    2: (lambda r: r == [], ["dead letters 1"]),
    3: (lambda r: r[0] == "w1" and int(r[1]) > 1_600_000_000_000, ["w1      live"]),
    4: (lambda r: r[0] == "running" and int(r[1]) > 1_600_000_000_000, ["running  0"]),
    5: (
        lambda r: r[:3] == ["running", "1", "0"] and int(r[3]) <= int(r[4]) <= int(r[5]) and r[6] is None,
        ["running  running"],
    ),
    # Run after the commands: the retry has taken the letter with it.
    6: (
        lambda r: entries(r) == [],
        ["poison", "prompt of 3 tokens", "runs again as", "0 run again, 0 letters are left"],
    ),
    7: (lambda r: r == 3, ["is paused", "is resumed"]),
    8: (lambda r: r == 3, ["was told", "was told"]),
    9: (lambda r: r[:2] == ["cancelled", "request_cancelled"] and "@" in r[2], ["running is cancelled"]),
    10: (
        lambda r: {"retried", "paused", "resumed", "drain", "cancel"} == {e["event"] for e in entries(r) if "by" in e},
        ["the books balance"],
    ),
}


def lines_of(question: str, kind: str) -> list[str]:
    return [
        line for block in re.findall(rf"^```{kind}\n(.*?)^```", question, re.M | re.S) for line in block.splitlines()
    ]


def words_of(line: str) -> list[str]:
    """As the shell gives them to the program."""
    return shlex.split(Template(line).substitute(NAMES))[1:]


@pytest.fixture
async def live(actors: Actors) -> AsyncIterator[Actors]:
    """One dead letter, one request running with a token, one waiting."""
    actors.queue.lease_ms = 60_000  # the page is read at leisure
    await Registry(actors.scripts).publish_model(CARD, b"{}")
    await admit(actors, "poison")
    await kill(actors, "poison")
    await actors.register("w1")
    await admit(actors, "running")
    await actors.emit("w1", await actors.take_one("w1"), tokens(7))
    await admit(actors, "waiting")
    yield actors
    assert await actors.problems() == []


async def headrace(valkey: Valkey, line: str) -> str:
    told = await asyncio.to_thread(CliRunner().invoke, app, [*words_of(line), "--redis", valkey.url])
    assert told.exit_code == 0, (line, told.output)
    return told.stdout


async def redis_cli(valkey: Valkey, line: str) -> Any:
    client: Any = connect(RedisSettings(redis_url=valkey.url))
    client.response_callbacks.clear()  # replies as redis-cli sees them
    try:
        return text(await client.execute_command(*words_of(line)))
    finally:
        await client.aclose()


async def test_every_command_of_the_page_answers_what_it_says(live: Actors, valkey: Valkey) -> None:
    for number, question in QUESTIONS:
        is_answer, printed = EXPECTED[int(number)]
        for line, words in zip(lines_of(question, "sh headrace"), printed, strict=True):
            assert words in await headrace(valkey, line), line
        (line,) = lines_of(question, "redis-cli")
        reply = await redis_cli(valkey, line)
        assert is_answer(reply), (line, reply)


async def test_a_model_paused_by_hand_is_not_taken_and_is_resumed_by_the_command(live: Actors, valkey: Valkey) -> None:
    (by_hand,) = lines_of(dict(QUESTIONS)["7"], "redis-cli")
    await redis_cli(valkey, by_hand)
    assert await live.take("w1") == []
    assert "PAUSED by me" in await headrace(valkey, "headrace queue")
    await headrace(valkey, "headrace resume $M")
    assert [delivery.request_id for delivery in await live.take("w1")] == ["waiting"]


def test_there_are_ten_questions() -> None:
    assert [int(number) for number, _ in QUESTIONS] == sorted(EXPECTED) == list(range(1, 11))


def test_every_call_over_http_is_on_the_page_and_no_other() -> None:
    told = set(re.findall(r"`(GET|POST|PUT|DELETE) (/operator/v1/[^`?]+)[^`]*`", PAGE))
    known = {
        (method, route.path.replace(":path", ""))  # type: ignore[attr-defined]
        for route in operator.router.routes
        for method in route.methods  # type: ignore[attr-defined]
    }
    assert told == known
