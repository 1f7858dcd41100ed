"""A transport that was closed under a command is an error of the connection, whatever the event loop calls it."""

from __future__ import annotations

import pytest
from redis.asyncio.connection import Connection
from redis.exceptions import OutOfMemoryError

from shared.config import RedisSettings
from shared.redis_client import AWAY, connect
from shared.servers.closed import closed_is_away


class Closed(Connection):
    async def send_packed_command(self, command, check_health=True):
        raise RuntimeError("unable to perform operation on <TCPTransport closed=True>; the handler is closed")


async def test_a_closed_transport_is_away() -> None:
    with pytest.raises(AWAY):
        await closed_is_away(Closed)().send_packed_command(b"PING")


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "rediss://127.0.0.1:1/0", "unix:///tmp/nowhere"])
def test_every_connection_tells_of_it(url: str) -> None:
    pool = connect(RedisSettings(redis_url=url)).connection_pool  # type: ignore[attr-defined]
    assert pool.connection_class.__name__ == "TellingConnection"


def test_memory_that_is_full_may_have_room_later() -> None:
    assert OutOfMemoryError in AWAY
