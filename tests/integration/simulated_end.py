"""How a simulation ends: without faults everything must come to its end, and is judged.

Each client has exactly one answer and one that is due to it, no innocent is dead, the books balance, and nothing
is left behind: no keys in Redis, nothing held in a worker or a gateway.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from loadtest.valkey import Valkey
from shared import keys
from shared.fsck import fsck
from tests.integration.faults import Mix
from tests.integration.simulated_worker import POISON_SEED
from tests.integration.simulation import MODEL, World

_MAX_ROUNDS = 3000


class Ending:
    def __init__(self, world: World) -> None:
        self._world = world

    async def finish(self) -> None:
        self._world.faults.calm()
        for _ in range(_MAX_ROUNDS):
            await self._round()
            if await self._is_over():
                break
        self._judge()
        await self._look_at_what_is_left()

    async def _round(self) -> None:
        await self._world.pass_time()
        await self._world.reap()
        for gateway in self._world.gateways:
            await gateway.listen()
            gateway.check(waiting_too=True)
        for worker in list(self._world.workers):
            worker.paused = 0
            for what in ("take", "step", "post", "emit", "beat"):
                if worker in self._world.workers:
                    self._world.act(worker, what)
                    await self._world.faults.quiet()
        self.raise_failures()

    def raise_failures(self) -> None:
        for client in self._world.clients:
            if client.task is not None and client.task.done() and not client.task.cancelled():
                client.task.result()

    async def _is_over(self) -> bool:
        if not all(client.is_done for client in self._world.clients) or not all(w.is_idle for w in self._world.workers):
            return False
        counts = await self._world.queue.counts()
        return counts.get("waiting", 0) == 0 == counts.get("running", 0) and all(
            g.is_idle for g in self._world.gateways
        )

    def _judge(self) -> None:
        for client in self._world.clients:
            name = client.request.request_id
            assert client.is_done, f"{name} hangs: {client.seen.decode()}"
            self._world.stats[client.outcome or ("contradiction" if client.has_contradiction else "left")] += 1
            is_poison = client.request.params.seed == POISON_SEED
            allowed = {
                "finished": not is_poison,
                "cancelled": name in self._world.ended_from_outside
                or (client.was_resumed and self._world.mix.can_lose_data),
                "expired": name in self._world.expired,
                "dead": is_poison,
                "": client.is_gone or self._world.mix.can_lose_data,
            }
            assert allowed.get(client.outcome), f"{name} ended as {client.outcome}: {client.seen.decode()}"

    async def _look_at_what_is_left(self) -> None:
        assert (await fsck(self._world.plain, MODEL)).problems == []
        left = [key for kind in ("b:", "q:", "own:", "att:", "deadlines") async for key in self._keys(kind)]
        # A dead letter keeps its body for a while: an operator may have it run again.
        names = {client.request.request_id for client in self._world.clients}
        dead = {keys.body(MODEL, name) for name in names if await self._state(name) == b"dead"}
        assert [key for key in left if key.decode() not in dead] == []
        counts: Counter[str] = Counter(
            {
                name: int(value)
                for name, value in (await self._world.queue.counts()).items()
                if not name.startswith(("vclock", "vtime", "weight"))
            }
        )
        assert [counts[name] for name in ("waiting", "waiting_tokens", "waiting_bytes", "running")] == [0, 0, 0, 0]
        assert all(worker.is_idle for worker in self._world.workers), "a worker keeps what has ended"
        for gateway in self._world.gateways:
            assert gateway.is_idle, (
                f"a gateway keeps {list(gateway.fanout._held)} {gateway.fanout._tasks} "
                f"{gateway.dispatcher._attendance._tasks}"
            )

    async def _state(self, request_id: str) -> bytes | None:
        return await self._world.plain.client.hget(keys.request(MODEL, request_id), "state")

    def _keys(self, kind: str) -> Any:
        return self._world.plain.client.scan_iter(match=keys.base(MODEL) + kind + "*")


async def simulate(seed: int, server: Valkey, mix: Mix, num_steps: int = 500) -> Counter[str]:
    """Raises AssertionError where a promise was broken; returns what happened how often."""
    world = World(seed, server, mix)
    ending = Ending(world)
    await world.open()
    try:
        for _ in range(num_steps):
            await world.step()
            ending.raise_failures()
        await ending.finish()
    finally:
        await world.close()
    return world.stats
