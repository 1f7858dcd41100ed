"""What a request without a witness waits for: the server that keeps its model's slot, its disk, its replica."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from loadtest.deployments import FAST_SYNC, HOST, Server, start_server, wait_until
from shared import keys
from shared.config import RedisSettings
from shared.durability import make_durable
from shared.errors import Unavailable
from shared.redis_client import Client, connect
from tests.contract.redis_modes.conftest import Mode
from tests.integration.queue_actors import MODEL

# Each in the slots of another master of the Cluster.
MODELS = ("a", "b", "c")


async def standing(mode: Mode) -> list[tuple[int, bool]]:
    """Of each master: how often it was asked to wait for its disk, and whether it has a replica now."""
    stats = await mode.everywhere("INFO", "commandstats")
    links = await mode.everywhere("INFO", "replication")
    waits = [info.get("cmdstat_waitaof", {}).get("calls", 0) for info in stats]
    return [(num, bool(link["connected_slaves"])) for num, link in zip(waits, links, strict=True)]


async def test_only_the_server_that_keeps_the_slot_is_asked(mode: Mode) -> None:
    before = await standing(mode)
    reached = [await make_durable(mode.gateway.scripts.client, model, 5000) for model in MODELS]
    asked = [after[0] - earlier[0] for after, earlier in zip(await standing(mode), before, strict=True)]
    assert asked == [len(MODELS) // len(before)] * len(before)
    expected = ["replica" if has_replica else "aof" for _, has_replica in before] * asked[0]
    assert sorted(reached) == sorted(expected)


class Pair:
    """A master without a log, so that only its replica can keep anything, and the replica."""

    def __init__(self, directory: Path) -> None:
        fast = ("--appendonly", "no", *FAST_SYNC)
        self.master: Server = start_server(directory, *fast)
        self.replica: Server = start_server(directory, *fast)
        assert self.replica.ask("REPLICAOF", HOST, self.master.port) == "OK"
        wait_until(lambda: "master_link_status:up" in self.replica.ask("INFO", "replication"))


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path)
    yield pair
    pair.replica.kill()
    pair.master.kill()


@pytest.fixture
async def client(pair: Pair) -> AsyncIterator[Client]:
    client = connect(RedisSettings(redis_url=f"redis://{HOST}:{pair.master.port}/0"))
    yield client
    await client.aclose()


async def test_a_replica_keeps_what_no_disk_does(pair: Pair, client: Client) -> None:
    await client.set(keys.body(MODEL, "r1"), b"written before")
    assert await make_durable(client, MODEL, 5000) == "replica"
    assert pair.replica.ask("GET", keys.body(MODEL, "r1")) == "written before"


async def test_with_the_replica_gone_nothing_can_be_had_and_that_is_said(pair: Pair, client: Client) -> None:
    pair.replica.kill()
    wait_until(lambda: "connected_slaves:0" in pair.master.ask("INFO", "replication"))
    assert await make_durable(client, MODEL, 5000) == "none"


async def test_a_replica_that_hangs_is_not_waited_for_longer_than_told(pair: Pair, client: Client) -> None:
    pair.replica.process.send_signal(signal.SIGSTOP)
    with pytest.raises(Unavailable, match="in time"):
        await make_durable(client, MODEL, 200)


async def test_a_replica_that_dies_while_it_is_waited_for_is_no_confirmation(pair: Pair, client: Client) -> None:
    pair.replica.process.send_signal(signal.SIGSTOP)
    waiting = asyncio.create_task(make_durable(client, MODEL, 500))
    while "cmd=wait" not in pair.master.ask("CLIENT", "LIST") and not waiting.done():  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    pair.replica.kill()
    with pytest.raises(Unavailable, match="in time"):
        await waiting


async def test_what_is_on_disk_does_not_wait_for_a_replica_that_hangs(pair: Pair, client: Client) -> None:
    assert pair.master.ask("CONFIG", "SET", "appendonly", "yes") == "OK"
    pair.replica.process.send_signal(signal.SIGSTOP)
    assert await make_durable(client, MODEL, 400) == "aof"
