"""The ways to run Redis, each started once and only when a test asks for it, and a gateway and a worker in each."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
from prometheus_client import CollectorRegistry

from gateway.fanout import Fanout
from gateway.subscription import Subscription
from loadtest.deployments import AclDeployment, ClusterDeployment, Deployment, SentinelDeployment, SingleDeployment
from shared import keys
from shared.config import GatewaySettings, RedisSettings
from shared.fsck import fsck
from shared.observability import GatewayMetrics
from shared.redis_client import AWAY, Client, Scripts, connect, masters
from shared.request_queue import RequestQueue, Ticket
from shared.schemas import TokensFrame, decode_frames
from shared.token_stream import TokenStream
from tests.contract.redis_modes.tls_deployments import ClusterTls, SentinelTls, SingleTls
from tests.integration.queue_actors import MODEL, Actors

T = TypeVar("T")


KINDS: dict[str, Callable[[Path], Deployment]] = {
    "single": SingleDeployment,
    "acl": AclDeployment,
    "tls": SingleTls,
    "sentinel": SentinelDeployment,
    "cluster": ClusterDeployment,
    "sentinel_tls": SentinelTls,
    "cluster_tls": ClusterTls,
}
MODES = ("single", "acl", "tls", "sentinel", "cluster")
# For what opens connections of its own kind (calls, subscription, bell, each master, failover): over TLS as well.
also_over_tls = pytest.mark.parametrize("deployment", tuple(KINDS), indirect=True)


@dataclass
class Mode:
    """`gateway` and `worker` speak with connections of their own, and as users of their own where there are users."""

    deployment: Deployment
    gateway: Actors
    worker: Actors
    admin: Client

    async def problems(self) -> list[str]:
        return (await fsck(Scripts(self.admin), MODEL)).problems

    async def everywhere(self, *words: str | int) -> list[Any]:
        """The command at every master."""
        async with masters(self.admin) as servers:
            return [await server.execute_command(*words) for server in servers]  # type: ignore[attr-defined]

    async def until_safe(self) -> None:
        """What was written is in the append-only file and, where the mode has one, at the replica."""
        for words in (("WAITAOF", 1, 0, 5000), ("WAIT", self.deployment.num_replicas, 5000)):
            async with masters(self.admin) as servers:
                for server in servers:
                    # These wait for the writes of their own connection; what came before them is older.
                    pipe = server.pipeline(transaction=False)  # type: ignore[attr-defined]
                    pipe.hincrby(home(), "durable_asked", 1)
                    pipe.execute_command(*words)
                    await pipe.execute(raise_on_error=False)

    async def until_answered(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeated blindly while the server is away, as its users do."""
        while True:
            try:
                return await call()
            except AWAY:
                await asyncio.sleep(0.05)

    @contextlib.asynccontextmanager
    async def followed(self, request_id: str, *, check_ms: int) -> AsyncGenerator[Subscription]:
        """A request as a gateway follows it. A long `check_ms`: what it hears, it hears by its subscription."""
        settings = GatewaySettings(redis_url=self.deployment.url, check_ms=check_ms)
        scripts = Scripts(connect(settings))
        fanout = Fanout(settings, scripts, "g1", GatewayMetrics(CollectorRegistry()))
        subscription = Subscription(MODEL, Ticket(request_id, "default", "t", 4, 8, 1), b"body", is_admitted=True)
        fanout.add(subscription)
        fanout.start()
        try:
            await fanout.subscribe(MODEL)
            yield subscription
        finally:
            await fanout.stop()
            await scripts.client.aclose()


async def ids_at_end(s: Subscription) -> list[int]:
    """Token ids that were delivered, once the end was."""
    while not s.is_done:
        await s.changes.next()
    assert s.error is None
    return [i for f in decode_frames(bytes(s.journal)) if isinstance(f, TokensFrame) for i in f.token_ids]


@pytest.fixture(scope="session")
def deployments(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Deployment]]:
    started: dict[str, Deployment] = {}

    def get(name: str) -> Deployment:
        if name.endswith("tls") and shutil.which("openssl") is None:
            pytest.skip("openssl is not installed: no certificate to test with")
        if name not in started:
            started[name] = KINDS[name](tmp_path_factory.mktemp(name))
        return started[name]

    yield get
    for deployment in started.values():
        deployment.kill()


@pytest.fixture(params=MODES)
def deployment(request: pytest.FixtureRequest, deployments: Callable[[str], Deployment]) -> Deployment:
    return deployments(request.param)


@pytest.fixture
async def mode(deployment: Deployment) -> AsyncIterator[Mode]:
    async with mode_of(deployment) as mode:
        yield mode


@contextlib.asynccontextmanager
async def mode_of(deployment: Deployment) -> AsyncGenerator[Mode]:
    urls = (deployment.url, deployment.worker_url, deployment.admin_url)
    clients = [connect(RedisSettings(redis_url=url)) for url in urls]
    mode = Mode(deployment, actors_of(clients[0]), actors_of(clients[1]), clients[2])
    await mode.everywhere("FLUSHALL")
    yield mode
    for client in clients:
        await client.aclose()


def actors_of(client: Client) -> Actors:
    scripts = Scripts(client)
    return Actors(
        queue=RequestQueue(scripts, MODEL, retention_s=60, lease_ms=30_000),
        stream=TokenStream(scripts, MODEL, retention_s=60, lease_ms=30_000),
        scripts=scripts,
    )


def home() -> str:
    """The key that names the model's slot."""
    return keys.counts(MODEL)
