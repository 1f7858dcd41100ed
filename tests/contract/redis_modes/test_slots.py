"""A Cluster that changes its shape: a model's slot moves to another node, with its queue and its subscribers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from redis.exceptions import MovedError

from loadtest.deployments import Deployment
from shared import keys
from shared.redis_client import masters
from tests.contract.redis_modes.conftest import Mode, home, ids_at_end, mode_of
from tests.integration.queue_actors import MODEL, tokens


@pytest.fixture
async def mode(deployments: Callable[[str], Deployment]) -> AsyncIterator[Mode]:
    async with mode_of(deployments("cluster")) as mode:
        yield mode


async def owns(node: Any, key: str) -> bool:
    try:
        await node.exists(key)
    except MovedError:
        return False
    return True


async def move_slot(mode: Mode, key: str) -> None:
    """The key's slot, and all keys in it, to the next master; returns when subscribers have followed."""
    async with masters(mode.admin) as servers:
        nodes: dict[int, Any] = {int(s.connection_pool.connection_kwargs["port"]): s for s in servers}  # type: ignore[attr-defined]
        owned = {port: await owns(node, key) for port, node in nodes.items()}
        source_port = next(port for port in nodes if owned[port])
        target_port = next(port for port in nodes if not owned[port])
        source, target = nodes[source_port], nodes[target_port]
        slot = await source.execute_command("CLUSTER", "KEYSLOT", key)
        names = {port: (await node.execute_command("CLUSTER", "MYID")).decode() for port, node in nodes.items()}
        await target.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", names[source_port])
        await source.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", names[target_port])
        moved = await source.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 1000)
        await source.execute_command("MIGRATE", "127.0.0.1", target_port, "", 0, 5000, "KEYS", *moved)
        for node in (target, source, *nodes.values()):
            await node.execute_command("CLUSTER", "SETSLOT", slot, "NODE", names[target_port])
        channel = keys.channel(MODEL, "g1")
        while (await target.execute_command("PUBSUB", "SHARDNUMSUB", channel))[1] != 1:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.02)


async def test_a_slot_that_moves_takes_queue_and_subscribers_along(mode: Mode) -> None:
    async with mode.followed("r1", check_ms=60_000) as subscription:
        await mode.gateway.admit("r1")
        await mode.worker.register("w1")
        delivery = await mode.worker.take_one("w1")
        await mode.worker.emit("w1", delivery, tokens(7))
        for token in (8, 9):
            await move_slot(mode, home())
            await mode.worker.emit("w1", delivery, tokens(token))
        await mode.worker.finish("w1", delivery)
        assert await ids_at_end(subscription) == [7, 8, 9]
    assert await mode.problems() == []
