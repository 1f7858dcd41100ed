"""The operator's commands, run as typed, against a queue on the real server with no gateway alive."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import pytest
from typer.testing import CliRunner, Result

from deploy.cli import app
from loadtest.valkey import Valkey
from shared import keys
from shared.registry import Registry
from tests.integration.queue_actors import MODEL, Actors, tokens
from tests.integration.test_operations import CARD, admit, audited, kill

Headrace = Callable[..., Awaitable[Result]]


@pytest.fixture
async def headrace(valkey: Valkey, actors: Actors) -> Headrace:
    """Runs `headrace ...` against the test's server. The commands bring their own event loop, hence the thread."""
    await Registry(actors.scripts).publish_model(CARD, b"{}")

    async def run(*words: str) -> Result:
        return await asyncio.to_thread(CliRunner().invoke, app, [*words, "--redis", valkey.url])

    return run


@pytest.fixture(autouse=True)
async def books_balance(actors: Actors):
    yield
    assert await actors.problems() == []


async def test_queue_shows_who_waits_and_who_paused(actors: Actors, headrace: Headrace) -> None:
    await admit(actors, "r1")
    assert (await headrace("pause", "tiny", "--why", "bad\x1b[31mweights", "--by", "ann")).exit_code == 0
    told = (await headrace("queue")).stdout
    assert "waiting 1 of 1000" in told and "PAUSED by ann" in told and "bad?[31mweights" in told
    assert re.search(r"default +t/1 +1 +\S+ s +0 +2\n", told)


async def test_request_shows_its_way(actors: Actors, headrace: Headrace) -> None:
    await admit(actors, "r1")
    await actors.register("w1")
    await actors.emit("w1", await actors.take_one("w1"), tokens(7))
    told = (await headrace("request", "r1")).stdout
    assert "r1  running" in told and re.search(r"taken .*w1 +1\n", told) and "<7>" not in told
    assert (await headrace("request", "unknown")).exit_code == 1


async def test_a_paused_model_is_resumed(actors: Actors, headrace: Headrace) -> None:
    await headrace("pause", "tiny")
    assert "was paused already" in (await headrace("pause", MODEL)).stdout
    assert "is resumed" in (await headrace("resume", "tiny")).stdout
    assert "was not paused" in (await headrace("resume", "tiny")).stdout
    assert [event for event, _, _ in await audited(actors)] == ["resumed", "paused"]


async def test_a_worker_is_shown_and_sent_away(actors: Actors, headrace: Headrace) -> None:
    await actors.register("w1")
    assert re.search(r"w1 +live", (await headrace("workers")).stdout)
    assert (await headrace("drain", "w1", "--now")).exit_code == 0
    assert re.search(r"w1 +draining", (await headrace("workers")).stdout)
    assert (await actors.queue.heartbeat("w1", "nonce", b"{}")).commands == [b'["drain","now"]']
    assert (await headrace("drain", "w2")).exit_code == 1
    await admit(actors, "r1")
    assert "w1 holds nothing" in (await headrace("workers", "w1")).stdout
    await actors.take_one("w1")
    assert re.search(r"r1 +0\.\d s", (await headrace("workers", "w1")).stdout)


async def test_cancel_ends_a_request_and_says_when_it_could_not(actors: Actors, headrace: Headrace) -> None:
    await admit(actors, "r1")
    assert (await headrace("cancel", "r1")).exit_code == 0
    await admit(actors, "r2")
    await actors.register("w1")
    await actors.finish("w1", await actors.take_one("w1"))
    late = await headrace("cancel", "r2")
    assert (late.exit_code, late.stdout.splitlines()[0]) == (1, "r2 is finished")


async def test_a_dead_letter_is_listed_shown_and_retried(actors: Actors, headrace: Headrace) -> None:
    await admit(actors, "poison")
    await kill(actors, "poison")
    assert "poison" in (await headrace("dead", "list")).stdout
    assert "prompt of 3 tokens; max_tokens 8" in (await headrace("dead", "show", "poison")).stdout
    retried = (await headrace("dead", "retry", "poison")).stdout.split()[4]
    assert await actors.state(retried) == "waiting"
    assert "no dead letters" in (await headrace("dead", "list")).stdout
    assert f"runs again as {retried}" in (await headrace("request", "poison")).stdout


async def test_all_dead_letters_run_again_and_how_many_is_printed(actors: Actors, headrace: Headrace) -> None:
    for request_id in ("first", "second"):
        await admit(actors, request_id)
        await kill(actors, request_id)
    told = await headrace("dead", "retry", "--all", "tiny", "--by", "ann")
    assert (told.exit_code, "2 run again, 0 letters are left" in told.stdout) == (0, True)
    assert [(event, by) for event, _, by in await audited(actors)] == [("retried", "ann")] * 2
    assert "0 run again" in (await headrace("dead", "retry", "--all")).stdout
    assert (await headrace("dead", "retry")).exit_code == 2


async def test_a_dead_letter_is_dropped_once(actors: Actors, headrace: Headrace) -> None:
    await admit(actors, "poison")
    await kill(actors, "poison")
    assert [(await headrace("dead", "drop", "poison")).exit_code for _ in range(2)] == [0, 1]


async def test_fsck_says_when_the_books_do_not_balance(actors: Actors, headrace: Headrace) -> None:
    assert (await headrace("fsck")).exit_code == 0
    client: Any = actors.scripts.client
    await client.hincrby(keys.counts(MODEL), "waiting", 1)
    found = await headrace("fsck", "tiny")
    assert found.exit_code == 1 and "counts.waiting is 1" in found.stdout
    await client.hincrby(keys.counts(MODEL), "waiting", -1)


async def test_the_lines_behind_a_command_can_be_run_as_they_are(actors: Actors, headrace: Headrace) -> None:
    await admit(actors, "poison")
    await kill(actors, "poison")
    await actors.register("w1")
    await admit(actors, "r1")
    await actors.take_one("w1")
    client: Any = actors.scripts.client
    asked = ["queue", "scaling", "workers", "workers w1", "request r1", "dead list",
             "dead show poison", "pause tiny", "resume tiny", "drain w1",
             "fsck", "cancel r1", "dead drop poison"]  # fmt: skip
    for words in asked:
        lines = [line for line in (await headrace(*words.split())).stdout.splitlines() if line.startswith("# ")]
        assert lines, words
        for line in lines:
            program, *command = [word for word in shlex.split(line, comments=False)[1:] if word != "--raw"]
            assert program == "redis-cli"
            assert await client.execute_command(*command) is not None, line


async def test_json_is_one_object_with_the_lines_behind_it(actors: Actors, headrace: Headrace) -> None:
    await admit(actors, "r1")
    await actors.register("w1")
    for words in (
        "queue",
        "scaling",
        "workers",
        "request r1",
        "dead list",
        "fsck",
        "pause tiny",
        "resume tiny",
        "cancel r1",
    ):
        told = orjson.loads((await headrace(*words.split(), "--json")).stdout)
        assert told.keys() == {"data", "redis_cli"}, words
    (row,) = orjson.loads((await headrace("queue", "--json")).stdout)["data"]
    assert (row["model"], row["paused"], row["counts"]["total_cancelled"]) == (MODEL, None, 1.0)


async def test_a_server_that_is_away_is_one_clear_line() -> None:
    told = await asyncio.to_thread(CliRunner().invoke, app, ["queue", "--redis", "redis://:secret@127.0.0.1:1/0"])
    assert told.exit_code == 1 and "cannot be reached" in told.stderr and "secret" not in told.stderr
