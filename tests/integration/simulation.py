"""A seeded simulation of the whole protocol on a real server: two gateways and three workers under faults.

One action at a time, drawn by the seed. How it ends is judged in simulated_end.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from typing import Any

from gateway.http.options import AdmissionOptions
from loadtest.valkey import Valkey
from shared import keys
from shared.config import GatewaySettings
from shared.redis_client import AWAY, Scripts, connect
from shared.redis_client import Client as RedisClient
from shared.request_queue import RequestQueue
from shared.schemas import Request, SamplingParams, ServiceClass
from tests.integration.faults import Faults, FaultyScripts, Mix
from tests.integration.simulated_gateway import Client, SimulatedGateway, twin
from tests.integration.simulated_worker import POISON_SEED, Poisoned, SimulatedWorker

MODEL = "sim@0123456789ab"
LEASE_MS = 5000
_MAX_ROUNDS = 3000


class World:
    """`steps` actions, then `finish`."""

    def __init__(self, seed: int, server: Valkey, mix: Mix) -> None:
        self.rng = random.Random(seed)
        self._seed = seed
        self.mix = mix
        self.server = server
        self.faults = Faults(self.rng, lost=mix.lost, parked=mix.late)
        self.stats = self.faults.stats
        self.settings = GatewaySettings(redis_url=server.url, lease_ms=LEASE_MS, redis_timeout_s=60)
        self._redis: list[RedisClient] = []
        self.plain = Scripts(self._connect())
        self.queue = RequestQueue(FaultyScripts(self._connect(), self.faults), MODEL, 600, LEASE_MS)
        self.gateways: list[SimulatedGateway] = []
        self.workers: list[SimulatedWorker] = []
        self.clients: list[Client] = []
        self.dead_gateways: list[str] = []
        self.ended_from_outside: set[str] = set()
        self.expired: set[str] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._num_names = 0

    def _connect(self) -> RedisClient:
        client = connect(self.settings)
        self._redis.append(client)
        return client

    def _name(self, kind: str) -> str:
        self._num_names += 1
        return f"{kind}{self._seed}-{self._num_names}"

    async def open(self) -> None:
        await self._empty()
        for _ in range(2):
            await self._new_gateway()
        for _ in range(3):
            self._new_worker()

    async def close(self) -> None:
        for client in self.clients:
            if client.task is not None:
                client.task.cancel()
        for gateway in self.gateways:
            await gateway.kill()
        for worker in self.workers:
            worker.kill()
        await asyncio.gather(*self._tasks, *(c.task for c in self.clients if c.task), return_exceptions=True)
        for redis in self._redis:
            await redis.aclose()

    async def _new_gateway(self) -> None:
        scripts = FaultyScripts(self._connect(), self.faults)
        gateway = SimulatedGateway(self._name("g"), scripts, self.settings, MODEL, self.rng)
        await gateway.open()
        self.gateways.append(gateway)

    def _new_worker(self) -> None:
        scripts = FaultyScripts(self._connect(), self.faults)
        self.workers.append(SimulatedWorker(self._name("w"), scripts, self.settings, MODEL, self.rng))

    # actions

    async def step(self) -> None:
        mix = self.mix
        shares = {
            self.kill_worker: mix.worker_kill, self.pause_worker: mix.worker_pause,
            self.kill_gateway: mix.gateway_kill, self.leave: mix.leave, self.cancel: mix.cancel,
            self.release: mix.release, self.join: mix.join, self.expire: mix.expire,
            self.flush_scripts: mix.script_flush, self.crash: mix.crash, self.flush: mix.flush,
            self.submit: 0.06, self.reap: 0.02, self.pass_time: 0.02, self.let_through: 0.12,
        }  # fmt: skip
        drawn = self.rng.random()
        for action, share in shares.items():
            if drawn < share:
                await action()
                break
            drawn -= share
        else:
            await self._step_actor()
        await self.faults.quiet()

    async def _step_actor(self) -> None:
        actor = self.rng.choice((*self.gateways, *self.workers))
        if isinstance(actor, SimulatedWorker):
            self.act(actor)
        elif self.rng.random() < 0.75:
            await actor.listen(dropped=self.mix.dropped, late=True)
        else:
            actor.check(waiting_too=self.rng.random() < 0.3)

    def act(self, worker: SimulatedWorker, what: str = "") -> None:
        if worker.paused:
            worker.paused -= 1
            return
        try:
            worker.act(what)
        except Poisoned:
            self.stats["poisoned"] += 1
            self._replace(worker)

    def _replace(self, worker: SimulatedWorker) -> None:
        worker.kill()
        self.workers.remove(worker)
        self._new_worker()

    async def submit(self) -> None:
        if sum(not client.is_done for client in self.clients) >= 14:
            return
        rng = self.rng
        request = Request(
            request_id=self._name("r"), model=MODEL, prompt_ids=(len(self.clients) % 3,) * 200,
            tenant=rng.choice("abc"),
            params=SamplingParams(
                max_tokens=rng.randint(1, 20), seed=POISON_SEED if rng.random() < self.mix.poison else 1
            ),
            service_class=rng.choice([ServiceClass.PRIORITY, ServiceClass.DEFAULT, ServiceClass.BATCH]),
        )  # fmt: skip
        deadline_ms = rng.choice((0, 0, 600_000))
        options = AdmissionOptions(600_000, deadline_ms, detached=rng.random() < self.mix.detached)
        client = Client(request, options)
        self.clients.append(client)
        client.submit(rng.choice(self.gateways))

    def _some_client(self) -> Client | None:
        following = [c for c in self.clients if not c.is_done and c.gateway is not None]
        return self.rng.choice(following) if following else None

    async def kill_worker(self) -> None:
        self._replace(self.rng.choice(self.workers))

    async def pause_worker(self) -> None:
        self.rng.choice(self.workers).paused = self.rng.randint(5, 60)

    async def kill_gateway(self) -> None:
        gateway = self.gateways.pop(self.rng.randrange(len(self.gateways)))
        await gateway.kill()
        self.dead_gateways.append(gateway.name)
        await self._new_gateway()
        for client in self.clients:
            if client.gateway is gateway and not client.is_done:
                assert client.task is not None
                client.task.cancel()
                await asyncio.gather(client.task, return_exceptions=True)
                if client.is_done:
                    continue
                # A client that was not yet accepted has nothing to come back to.
                if client.seen and self.rng.random() < 0.7 and not self._is_followed(client, *self.gateways):
                    client.resume(self.rng.choice(self.gateways))
                else:
                    client.is_gone = True
                    self.ended_from_outside.add(client.request.request_id)

    def _is_followed(self, client: Client, *gateways: SimulatedGateway) -> bool:
        return any(gateway.fanout.get(client.request.request_id) is not None for gateway in gateways)

    async def leave(self) -> None:
        client = self._some_client()
        if client is not None:
            self.ended_from_outside.add(client.request.request_id)
            client.leave()

    async def cancel(self) -> None:
        client = self._some_client()
        if client is not None:
            self.ended_from_outside.add(client.request.request_id)
            self._spawn(self.queue.cancel(client.request.request_id))

    async def release(self) -> None:
        self.rng.choice(self.workers).release_one()

    async def join(self) -> None:
        client = self._some_client()
        if client is not None and client.seen:
            for gateway in self.gateways:
                if not self._is_followed(client, gateway):
                    other = twin(client)
                    self.clients.append(other)
                    other.resume(gateway)
                    return

    async def expire(self) -> None:
        """The deadline of some request passes."""
        client = self._some_client()
        name = client.request.request_id if client else ""
        if await self.plain.client.execute_command("ZSCORE", keys.deadlines(MODEL), name) is not None:  # type: ignore[attr-defined]
            self.expired.add(name)
            await self.plain.client.execute_command("ZADD", keys.deadlines(MODEL), 1, name)  # type: ignore[attr-defined]

    async def reap(self) -> None:
        # The grace of a dead gateway is longer than a client needs to come back.
        dead = [] if any(client.is_resuming for client in self.clients) else self.dead_gateways
        self._spawn(self.queue.reap(dead, max_crashes=self.mix.max_crashes, page=self.rng.choice((1, 2, 200))))

    async def pass_time(self) -> None:
        """A lease's time: who does not live has lost his, and reaping is past its grace."""
        client: Any = self.plain.client
        alive = {worker.identity[0] for worker in self.workers if not worker.paused}
        for name in await client.zrange(keys.lease(MODEL), 0, -1):
            if name.decode() not in alive:
                await client.zadd(keys.lease(MODEL), {name: 1}, xx=True)
        seconds, micros = await client.time()
        now_ms = seconds * 1000 + micros // 1000
        await client.hset(keys.counts(MODEL), mapping={"reaped_at": now_ms, "grace_until": 0})

    async def let_through(self) -> None:
        if self.faults.parked:
            self.faults.let_through(self.rng.randrange(len(self.faults.parked)))

    async def flush_scripts(self) -> None:
        await self.plain.client.execute_command("SCRIPT", "FLUSH")  # type: ignore[attr-defined]

    async def flush(self) -> None:
        self.stats["flush"] += 1
        await self._empty()

    async def _empty(self) -> None:
        # In the file before its length is read: what comes before is never cut off.
        await self.plain.client.execute_command("FLUSHALL")  # type: ignore[attr-defined]
        await self.plain.client.execute_command("WAITAOF", 1, 0, 5000)  # type: ignore[attr-defined]
        self._aof_start = self._aof()[1]

    async def crash(self) -> None:
        """The server dies, and the end of its file with it."""
        self.stats["crash"] += 1
        self.server.kill()
        path, size = self._aof()
        os.truncate(path, max(self._aof_start, size - self.rng.choice((0, 300, 3000, 12000)) * self.rng.randint(1, 3)))
        self.server.start()
        while True:
            try:
                await self.plain.client.ping()
                return
            except AWAY:
                continue

    def _aof(self) -> tuple[str, int]:
        path = max(self.server.directory.glob("appendonlydir/*.incr.aof"), key=lambda p: p.stat().st_mtime)
        return str(path), path.stat().st_size

    def _spawn(self, call: Any) -> None:
        async def run() -> None:
            with contextlib.suppress(*AWAY):
                await call

        task = asyncio.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
