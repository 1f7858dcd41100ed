"""Real processes on Sentinel, on Cluster and with ACL users: a stream runs to its end, also through a failover."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from loadtest.deployments import AclDeployment, ClusterDeployment, Deployment, SentinelDeployment
from loadtest.stack import Stack
from shared import keys
from shared.config import RedisSettings
from shared.fsck import Books, fsck
from shared.redis_client import AWAY, Scripts, connect
from shared.registry import Registry
from tests.e2e.conftest import SIMULATED, async_client_of
from tests.e2e.test_failures import answer

pytestmark = pytest.mark.e2e


class DeployedStack(Stack):
    """A gateway and a worker, each with the URL that is its own."""

    def __init__(self, directory: Path, deployment: Deployment) -> None:
        self.deployment = deployment
        super().__init__(directory, env=SIMULATED)

    def settings_of(self, name: str) -> dict[str, object]:
        return {"redis_url": self.deployment.worker_url if name.startswith("worker") else self.deployment.url}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[Callable[[Path], Deployment]], DeployedStack]]:
    """Starts a stack on a deployment of this kind; both end with the test."""
    ending: list[Any] = []

    def start(kind: Callable[[Path], Deployment]) -> DeployedStack:
        for name in ("servers", "stack"):
            (tmp_path / name).mkdir()
        deployment = kind(tmp_path / "servers")
        ending.append(deployment)
        stack = DeployedStack(tmp_path / "stack", deployment)
        ending.append(stack)
        stack.wait_ready(1)
        return stack

    yield start
    for ended in reversed(ending):
        if isinstance(ended, Stack):
            ended.stop()
        else:
            ended.kill()


async def settled(deployment: Deployment) -> Books:
    """The books of the one model, once nothing waits or runs."""
    scripts = Scripts(connect(RedisSettings(redis_url=deployment.admin_url)))
    try:
        while True:
            try:
                (card,) = await Registry(scripts).models()
                books = await fsck(scripts, card.revision)
                if not books.undone:
                    return books
            except AWAY:
                pass
            await asyncio.sleep(0.05)
    finally:
        await scripts.client.aclose()


async def home_of(deployment: Deployment) -> str:
    scripts = Scripts(connect(RedisSettings(redis_url=deployment.admin_url)))
    (card,) = await Registry(scripts).models()
    await scripts.client.aclose()
    return keys.counts(card.revision)


@pytest.mark.parametrize("kind", [SentinelDeployment, ClusterDeployment])
async def test_streams_outlive_the_master(start: Callable[..., DeployedStack], kind: Any) -> None:
    """Killed without warning: what its replica had not got is sent again by the worker or brought by the gateway."""
    stack = start(kind)
    async with async_client_of(stack) as client:
        expected = await answer(client, max_tokens=200)
        started = [asyncio.Event() for _ in range(4)]
        tasks = [asyncio.create_task(answer(client, max_tokens=200, started=event)) for event in started]
        await asyncio.gather(*(event.wait() for event in started))
        await asyncio.to_thread(stack.deployment.kill_master, await home_of(stack.deployment))
        assert await asyncio.gather(*tasks) == [expected] * 4
        assert await answer(client, max_tokens=200) == expected
    assert (await settled(stack.deployment)).problems == []


async def refused_to(deployment: Deployment) -> set[tuple[str, str]]:
    """User and command, of the server's log of refusals."""
    client: Any = connect(RedisSettings(redis_url=deployment.admin_url))
    entries = [dict(zip(flat[::2], flat[1::2], strict=True)) for flat in await client.execute_command("ACL", "LOG")]
    await client.aclose()
    return {(entry[b"username"].decode(), entry[b"object"].decode()) for entry in entries}


async def test_a_gateway_and_a_worker_need_no_more_than_their_users_may(
    start: Callable[..., DeployedStack],
) -> None:
    """A stream that ends, one whose client leaves, a worker that leaves: nothing was refused but CONFIG GET."""
    stack = start(AclDeployment)
    async with async_client_of(stack) as client:
        assert await answer(client)
        stream = await client.chat.completions.create(
            model="simulated", messages=[{"role": "user", "content": "x"}], max_tokens=4000, stream=True
        )
        await anext(aiter(stream))
        await stream.close()
    books = await settled(stack.deployment)
    assert (books.problems, books.sums["cancelled"], books.sums["finished"]) == ([], 1, 1)
    assert stack.stop() == []
    assert await refused_to(stack.deployment) <= {("gateway", "config|get"), ("worker", "config|get")}
