"""Fixtures of the integration tests: one real server for all, emptied for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from loadtest.valkey import Valkey
from shared.config import RedisSettings
from shared.redis_client import Scripts, connect
from tests.integration.queue_actors import Actors, actors_on


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    server = Valkey(tmp_path_factory.mktemp("valkey"))
    yield server
    server.kill()


@pytest.fixture
async def scripts(valkey: Valkey) -> AsyncIterator[Scripts]:
    client = connect(RedisSettings(redis_url=valkey.url))
    await client.execute_command("FLUSHALL")  # type: ignore[attr-defined]
    yield Scripts(client)
    await client.aclose()


@pytest.fixture
def actors(scripts: Scripts) -> Actors:
    return actors_on(scripts)
