"""Scripts that a server forgot, at the worst moments: nothing is lost by it and nothing done twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from redis.exceptions import NoScriptError

from shared.token_stream import Emission
from tests.contract.redis_modes.conftest import Mode
from tests.integration.queue_actors import END, tokens


class Forgetful:
    """A client whose server forgets all scripts before it is asked for one, and again before it is given its text."""

    def __init__(self, mode: Mode, client: Any) -> None:
        self._mode = mode
        self._client = client
        self.num_forgotten = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def evalsha(self, *args: Any) -> Any:
        await self._mode.everywhere("SCRIPT", "FLUSH")
        try:
            return await self._client.evalsha(*args)
        except NoScriptError:
            self.num_forgotten += 1
            await self._mode.everywhere("SCRIPT", "FLUSH")
            raise


@pytest.fixture
def forgetful(mode: Mode) -> Iterator[list[Forgetful]]:
    clients = [Forgetful(mode, actors.scripts.client) for actors in (mode.gateway, mode.worker)]
    for actors, client in zip((mode.gateway, mode.worker), clients, strict=True):
        actors.scripts.client = client  # type: ignore[assignment]
    yield clients
    assert all(client.num_forgotten for client in clients)


async def test_each_script_of_a_request_runs_once_though_the_server_forgets_it(
    mode: Mode, forgetful: list[Forgetful]
) -> None:
    """Each call twice, as after a lost reply: once in effect."""
    assert [(await mode.gateway.admit("r1")).decision for _ in range(2)] == ["accepted", "duplicate"]
    await mode.worker.register("w1")
    delivery = await mode.worker.take_one("w1")
    length = len(delivery.journal)
    for frames, final in ((tokens(7), ""), (tokens(8) + END, "finished")):
        step = Emission("r1", delivery.owner, length, frames, 1, delivery.gateways, final, b"{}")
        assert [(await mode.worker.stream.emit("w1", "nonce", [step])).is_published for _ in range(2)] == [True] * 2
        length += len(frames)
    counts = await mode.worker.queue.counts()
    assert (counts["total_admitted"], counts["total_finished"], counts["takes"], counts["running"]) == (1, 1, 1, 0)
    assert (await mode.worker.ids("r1"), await mode.problems()) == ([7, 8], [])
