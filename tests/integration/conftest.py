"""Fixtures of the integration tests: one real server for all, emptied for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from loadtest.valkey import Valkey
from shared.config import RedisSettings
from shared.redis_client import Scripts, connect
from shared.servers.store_address import StoreAddress, parse_store
from tests.integration.postgresql import PostgreSQL, binary
from tests.integration.queue_actors import Actors, actors_on


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    server = Valkey(tmp_path_factory.mktemp("valkey"))
    yield server
    server.kill()


@pytest.fixture(scope="session")
def postgresql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgreSQL]:
    if binary("initdb") is None:
        pytest.skip("PostgreSQL is not installed")
    server = PostgreSQL(tmp_path_factory.mktemp("postgresql"))
    yield server
    server.stop()


@pytest.fixture(params=["sqlite", "postgresql"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> StoreAddress:
    """An empty store, of each kind."""
    if request.param == "sqlite":
        return parse_store("", str(tmp_path))
    server: PostgreSQL = request.getfixturevalue("postgresql")
    return parse_store(await server.new_database(), "")


@pytest.fixture
async def scripts(valkey: Valkey) -> AsyncIterator[Scripts]:
    client = connect(RedisSettings(redis_url=valkey.url))
    await client.execute_command("FLUSHALL")  # type: ignore[attr-defined]
    yield Scripts(client)
    await client.aclose()


@pytest.fixture
def actors(scripts: Scripts) -> Actors:
    return actors_on(scripts)
