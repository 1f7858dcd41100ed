"""The 3 am section of docs/protocol.md, run: each command, as the shell gives it, against a live layout."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from loadtest.valkey import Valkey
from shared import keys
from shared.registry import Registry
from shared.schemas import ModelCard
from tests.architecture.source_tree import read
from tests.integration.queue_actors import MODEL, Actors, tokens

PAGE = read("docs/protocol.md")
COMMANDS = [line for block in re.findall(r"^```redis-cli\n(.*?)^```", PAGE, re.M | re.S) for line in block.splitlines()]
CARD = ModelCard(
    name="tiny", revision=MODEL, architecture="none", context_length=64, max_request_tokens=64, vocab_size=16,
    stop_token_ids=(), tokenizer_digest="d", created_s=1,
)  # fmt: skip
NAMES = {"R": f"{{{MODEL}}}", "S": "q:default:t", "ID": "running", "W": "w1", "G": "g1", "LAST": "0"}


def pairs(reply: list[Any]) -> dict[str, Any]:
    return dict(zip(reply[::2], reply[1::2], strict=True))


def fields(text: str) -> dict[str, str]:
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def entries(reply: list[Any]) -> list[dict[str, str]]:
    return [pairs(entry[1]) for entry in reply]


# The words of a command on the page -> whether its reply says what the page says.
EXPECTED: dict[str, Callable[[Any], bool]] = {
    "HKEYS hr:models": lambda r: r == [MODEL],
    "HGETALL hr:{m}:counts": lambda r: (
        pairs(r) | {"waiting": "1", "running": "1", "total_admitted": "4", "total_finished": "1", "total_dead": "1"}
        == pairs(r)
    ),
    "XINFO GROUPS hr:{m}:q:default:t": lambda r: pairs(r[0])["pending"] == 1 and pairs(r[0])["last-delivered-id"] > "0",
    "XRANGE hr:{m}:q:default:t (LAST + COUNT 1": lambda r: entries(r) == [{"id": "waiting"}],
    "TIME": lambda r: int(r[0]) > 1_600_000_000,
    "ZRANGE hr:{m}:deadlines 0 4 WITHSCORES": lambda r: r[0] == "waiting" and int(r[1]) > 1_600_000_000_000,
    "ZRANGE hr:{m}:lease 0 -1 WITHSCORES": lambda r: r[0] == "w1" and int(r[1]) > 1_600_000_000_000,
    "ZRANGE hr:{m}:idle 0 -1": lambda r: r == ["w2"],
    "ZRANGE hr:{m}:woken 0 -1 WITHSCORES": lambda r: r[0] == "w3" and int(r[1]) > 1_600_000_000_000,
    "HGETALL hr:{m}:w:w1": lambda r: {"nonce", "info", "load", "registered_at", "beat_at"} <= pairs(r).keys(),
    "ZRANGE hr:{m}:own:w1 0 -1 WITHSCORES": lambda r: r[0] == "running" and int(r[1]) > 1_600_000_000_000,
    "XPENDING hr:{m}:q:default:t w - + 20": lambda r: len(r) == 1 and r[0][1] == "w1" and r[0][2] >= 0,
    "HGETALL hr:{m}:r:running": lambda r: (
        pairs(r) | {"state": "running", "attempt": "1", "crashes": "0", "tokens": "2", "tenant": "t"} == pairs(r)
    ),
    "GET hr:{m}:j:running": lambda r: [line[:6] for line in r.splitlines()] == ['["v","', '["t",0', '["t",0'],
    "HMGET hr:{m}:r:running state tokens taken_at first_token_at": lambda r: (
        r[:2] == ["running", "2"] and int(r[2]) <= int(r[3])
    ),
    "SMEMBERS hr:{m}:g:running": lambda r: r == ["g1"],
    "ZRANGE hr:gateways 0 -1 WITHSCORES": lambda r: r[0] == "g1" and int(r[1]) > 1_600_000_000_000,
    "SMEMBERS hr:{m}:att:g1": lambda r: sorted(r) == ["running", "waiting"],
    "PUBSUB NUMSUB hr:out:{m}:g1": lambda r: r[1] == 1,
    "CLIENT LIST TYPE pubsub": lambda r: " omem=" in r,
    "XREVRANGE hr:{m}:dead + - COUNT 10": lambda r: (
        entries(r) == [{"id": "dead", "worker": "w0", "crashes": "1", "tenant": "t", "class": "default"}]
    ),
    "INFO memory": lambda r: {"used_memory", "maxmemory"} <= fields(r).keys(),
    "INFO persistence": lambda r: fields(r) | {"aof_enabled": "1", "aof_last_write_status": "ok"} == fields(r),
    "CONFIG GET maxmemory-policy": lambda r: r == ["maxmemory-policy", "noeviction"],
    "XREVRANGE hr:{m}:events + - COUNT 20": lambda r: (
        {"registered", "admitted", "taken", "finished", "dead", "reaped"} == {entry["event"] for entry in entries(r)}
    ),
    "XREVRANGE hr:{m}:history + - COUNT 20": lambda r: [e["state"] for e in entries(r)] == ["finished", "dead"],
    'RPUSH hr:{m}:ctl:w1 ["drain"]': lambda r: r == 1,
}


def shell(script: str, **environment: str) -> str:
    run = subprocess.run(
        ["bash", "-euc", script], capture_output=True, text=True, env=os.environ | environment, timeout=40
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def as_the_shell_gives_them() -> dict[str, list[str]]:
    """Each command by the words it is known by above, and its arguments after the shell has had its way."""
    show = "redis-cli() { printf '%s\\037' \"$@\"; printf '\\036'; }\n"
    script = "".join(f"{name}='{value}'\n" for name, value in NAMES.items()) + show + "\n".join(COMMANDS)
    shown = shell(script).split("\036")[:-1]
    commands = [[word for word in line.split("\037")[:-1] if word != "--raw"] for line in shown]
    return {" ".join(c).replace(MODEL, "m").replace("(0", "(LAST"): c for c in commands}


@pytest.fixture
async def live(actors: Actors) -> AsyncIterator[Actors]:
    """One request dead-lettered with its worker, one finished, one running with two tokens, one waiting.

    Of two idle workers one was rung for it.
    """
    registry = Registry(actors.scripts)
    await registry.publish_model(CARD, b"{}")
    await registry.beat_gateway("g1", 60_000, 60_000)
    await actors.register("w0")
    await actors.admit("dead")
    await actors.take("w0")
    await actors.lose("w0")
    await actors.reap(max_crashes=0)
    await actors.register("w1")
    await actors.admit("finished")
    await actors.finish("w1", await actors.take_one("w1"))
    await actors.admit("running")
    delivery = await actors.take_one("w1")
    await actors.emit("w1", delivery, tokens(7))
    await actors.emit("w1", delivery, tokens(8))
    await actors.queue.heartbeat("w1", "nonce", b"{}")
    for idle in ("w2", "w3"):
        await actors.register(idle)
        await actors.take(idle)
    await actors.admit("waiting", deadline_ms=60_000)
    listening = actors.scripts.client.pubsub()
    await listening.subscribe(keys.channel(MODEL, "g1"))
    yield actors
    await listening.aclose()


async def last_delivered(client: Any) -> str:
    """What a reader of the page finds in one reply and puts into the next command."""
    groups = await client.execute_command("XINFO", "GROUPS", keys.queue(MODEL, "default", "t"))
    return text(pairs(text(groups[0]))["last-delivered-id"])


def text(reply: Any) -> Any:
    if isinstance(reply, list):
        return [text(part) for part in reply]
    return reply.decode() if isinstance(reply, bytes) else reply


async def test_every_command_of_the_page_answers_what_it_says(live: Actors) -> None:
    client: Any = live.scripts.client
    client.response_callbacks.clear()  # replies as redis-cli sees them
    last = await last_delivered(client)
    wrong: dict[str, Any] = {}
    for words, command in as_the_shell_gives_them().items():
        reply = text(await client.execute_command(*[f"({last}" if word == "(0" else word for word in command]))
        if not EXPECTED[words](reply):
            wrong[words] = reply
    assert wrong == {}


def test_every_command_of_the_page_is_expected_and_no_other() -> None:
    assert set(as_the_shell_gives_them()) == set(EXPECTED)


async def test_a_worker_obeys_what_the_page_sends_it(live: Actors) -> None:
    (drain,) = [c for words, c in as_the_shell_gives_them().items() if words.startswith("RPUSH")]
    await live.scripts.client.execute_command(*drain)  # type: ignore[attr-defined]
    assert (await live.queue.heartbeat("w1", "nonce", b"{}")).commands == [b'["drain"]']


async def test_the_stand_in_for_redis_cli_works(live: Actors, valkey: Valkey) -> None:
    (function,) = re.findall(r"^```sh fallback\n(.*?)^```", PAGE, re.M | re.S)
    script = function.replace(".venv/bin/python", sys.executable)
    script += 'redis-cli --raw GET "hr:${R}:j:${ID}"\nredis-cli XPENDING "hr:${R}:${S}" w - + 20\n'
    told = shell(script, **NAMES, HEADRACE_REDIS_URL=valkey.url)
    assert '["t",0,[7],"<7>"]\n["t",0,[8],"<8>"]\n' in told and "'w1'" in told
