"""Who is served how much by the queue alone: the real scripts, two gateways, workers whose steps cost no time.

Time is virtual (a step is `STEP_S`): only the queue decides, and no machine's noise. Each second a newcomer brings
one request.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from loadtest.fairness.tenants import Sizes, Tenant, newcomers
from loadtest.fairness.verdict import WINDOW_S, Ledger
from loadtest.valkey import Valkey
from shared.config import RedisSettings
from shared.redis_client import Scripts, connect
from shared.request_queue import Bounds, Delivery, RequestQueue, Ticket
from shared.schemas import ChoiceEndFrame, EndFrame, Outcome, TokensFrame, Usage, encode_frames
from shared.text.prefixes import NO_PREFIXES, Prefixes
from shared.token_stream import Emission, TokenStream

MODEL = "fairness@0123456789ab"
STEP_S = 0.02
NUM_WORKERS, SLOTS = 4, 32
CONVERSATIONS = 8  # of each tenant, where their requests are kept for who served the last one
TOKEN = encode_frames([TokensFrame(0, [7], " a")])
END = encode_frames([ChoiceEndFrame(0, "length"), EndFrame(Outcome.FINISHED, Usage(1, 1))])


@dataclass(slots=True)
class Sequence:
    delivery: Delivery
    tenant: str
    left: int
    offset: int


@dataclass(slots=True)
class Worker:
    name: str
    running: list[Sequence] = field(default_factory=list[Sequence])


class Service:
    """Queue and workers, one step at a time."""

    def __init__(self, scripts: Scripts, tenants: list[Tenant], sizes: Sizes, seed: int, lane_ms: int) -> None:
        self.queue = RequestQueue(scripts, MODEL, 60, 3_600_000)
        self.stream = TokenStream(scripts, MODEL, 60, 3_600_000)
        self.ledger = Ledger()
        self._tenants = tenants
        self._sizes = sizes
        self._lane_ms = lane_ms
        self._lanes = random.Random(seed)
        self._rng = random.Random(seed)
        self._workers = [Worker(f"w-{i}") for i in range(NUM_WORKERS)]
        self._num_waiting: Counter[str] = Counter()
        self._sizes_of: dict[str, tuple[int, int]] = {}
        self._tenant_of: dict[str, str] = {}
        self._arrived: dict[str, float] = {}
        self._steps = 0

    @property
    def now_s(self) -> float:
        return self._steps * STEP_S

    async def start(self) -> None:
        for worker in self._workers:
            await self.queue.register(worker.name, "nonce", b"{}")

    async def step(self) -> None:
        for tenant in self._tenants:
            while self._num_waiting[tenant.name] < tenant.backlog:
                await self._admit(tenant)
        for worker in self._workers:
            if len(worker.running) < SLOTS:
                await self._take(worker)
        for worker in self._workers:
            if worker.running:
                await self._emit(worker)
        self._steps += 1

    async def newcome(self, tenant: Tenant) -> None:
        self._arrived[await self._admit(tenant)] = self.now_s

    async def _admit(self, tenant: Tenant) -> str:
        request_id = f"r-{len(self._sizes_of)}"
        prompt, answer = self._sizes_of[request_id] = self._sizes.draw(self._rng)
        self.ledger.largest = max(self.ledger.largest, prompt + answer)
        gateway = f"g-{self._rng.choice(tenant.gateways)}"
        ticket = Ticket(
            request_id, "default", tenant.name, prompt, answer, 1, tenant_weight=tenant.weight, lane_ms=self._lane_ms,
            prefixes=self._prefixes(tenant),
        )  # fmt: skip
        decision = (await self.queue.admit(ticket, b"body", Bounds(0, 0, 0), gateway=gateway)).decision
        assert decision == "accepted", decision
        self._num_waiting[tenant.name] += 1
        self._tenant_of[request_id] = tenant.name
        return request_id

    def _prefixes(self, tenant: Tenant) -> Prefixes:
        """Of a conversation, else what all of a tenant begin with."""
        if not self._lane_ms:
            return NO_PREFIXES
        hashes = (f"{tenant.name}-{self._lanes.randrange(CONVERSATIONS)}", tenant.name)
        return Prefixes(hashes, hashes)

    async def _take(self, worker: Worker) -> None:
        taken = await self.queue.take(worker.name, "nonce", slots=SLOTS - len(worker.running), room=10**9)
        for d in taken.deliveries:
            tenant = self._tenant_of.pop(d.request_id)
            self._num_waiting[tenant] -= 1
            prompt, answer = self._sizes_of[d.request_id]
            self.ledger.serve(self.now_s, tenant, prompt)
            worker.running.append(Sequence(d, tenant, answer, len(d.journal)))
            if d.request_id in self._arrived:
                self.ledger.waits.append(self.now_s - self._arrived.pop(d.request_id))

    async def _emit(self, worker: Worker) -> None:
        emissions: list[Emission] = []
        for sequence in worker.running:
            sequence.left -= 1
            is_last = sequence.left == 0
            frames, d = TOKEN + (END if is_last else b""), sequence.delivery
            final = "finished" if is_last else ""
            emissions.append(
                Emission(d.request_id, d.owner, sequence.offset, frames, 1, d.gateways, final, b"{}" if final else b"")
            )
            sequence.offset += len(frames)
            self.ledger.serve(self.now_s, sequence.tenant, 1)
        emitted = await self.stream.emit(worker.name, "nonce", emissions)
        assert emitted.is_published, emitted
        worker.running = [sequence for sequence in worker.running if sequence.left]


async def simulate(server: Valkey, tenants: list[Tenant], sizes: Sizes, windows: int, *, lane_ms: int = 0) -> Ledger:
    """`windows` of ten virtual seconds, after one to warm up; a newcomer each second. `lane_ms` are of the server's
    clock, on which a virtual second takes less time."""
    coming = newcomers(windows * WINDOW_S)
    client = connect(RedisSettings(redis_url=server.url, redis_timeout_s=60))
    service = Service(Scripts(client), tenants, sizes, 1, lane_ms)
    await service.start()
    num_came = 0
    while service.now_s < (windows + 1) * WINDOW_S:
        if service.now_s > WINDOW_S + num_came:
            await service.newcome(coming[num_came])
            num_came += 1
        await service.step()
    await client.aclose()
    return service.ledger
