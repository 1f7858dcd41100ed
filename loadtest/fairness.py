"""Who is served how much: the real queue and scripts, two gateways, workers whose steps cost no time.

Time is virtual (a step is `STEP_S`), so that an hour of service passes in minutes and only the queue decides. Tenants
always have something waiting; tenant B comes in by one gateway only; each second a newcomer brings one request. What
a tenant is served is its prompts and the tokens made for it. In one window a tenant may be off by the larger of 2% and
one request.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import typer

from loadtest.results import write_results
from loadtest.valkey import Valkey
from shared.config import RedisSettings
from shared.redis_client import Scripts, connect
from shared.request_queue import Bounds, Delivery, RequestQueue, Ticket
from shared.schemas import ChoiceEndFrame, EndFrame, Outcome, TokensFrame, Usage, encode_frames
from shared.token_stream import Emission, TokenStream

MODEL = "fairness@0123456789ab"
STEP_S, WINDOW_S = 0.02, 10.0
NUM_WORKERS, SLOTS = 4, 32
TOKEN = encode_frames([TokensFrame(0, [7], " a")])
END = encode_frames([ChoiceEndFrame(0, "length"), EndFrame(Outcome.FINISHED, Usage(1, 1))])


@dataclass(frozen=True, slots=True)
class Sizes:
    """Tokens: prompts evenly between two bounds; answers lognormal, as real ones are, up to a bound."""

    prompt: tuple[int, int]
    answer: tuple[float, float]
    max_answer: int

    def draw(self, rng: random.Random) -> tuple[int, int]:
        answer = int(rng.lognormvariate(*self.answer))
        return rng.randint(*self.prompt), max(2, min(self.max_answer, answer))


@dataclass(slots=True)
class Tenant:
    name: str
    weight: float
    gateways: tuple[str, ...]
    backlog: int
    num_waiting: int = 0


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
    """Queue and workers, one step at a time. `served` counts tokens by (window, tenant)."""

    def __init__(self, scripts: Scripts, tenants: list[Tenant], sizes: Sizes, seed: int) -> None:
        self.queue = RequestQueue(scripts, MODEL, 60, 3_600_000)
        self.stream = TokenStream(scripts, MODEL, 60, 3_600_000)
        self.tenants = {tenant.name: tenant for tenant in tenants}
        self.sizes = sizes
        self.rng = random.Random(seed)
        self.workers = [Worker(f"w-{i}") for i in range(NUM_WORKERS)]
        self.served: Counter[tuple[int, str]] = Counter()
        self.largest: Counter[str] = Counter()
        self.waits: list[float] = []
        self._sizes_of: dict[str, tuple[int, int]] = {}
        self._tenant_of: dict[str, Tenant] = {}
        self._arrived: dict[str, float] = {}
        self._steps = 0

    @property
    def now_s(self) -> float:
        return self._steps * STEP_S

    async def step(self) -> None:
        for tenant in list(self.tenants.values()):
            while tenant.num_waiting < tenant.backlog:
                await self._admit(tenant)
        for worker in self.workers:
            if len(worker.running) < SLOTS:
                await self._take(worker)
        for worker in self.workers:
            if worker.running:
                await self._emit(worker)
        self._steps += 1

    async def newcome(self, number: int) -> None:
        """A tenant nobody knew, with one request."""
        await self._admit(Tenant(f"newcomer-{number}", 1.0, ("g-one",), 0))

    async def _admit(self, tenant: Tenant) -> None:
        request_id = f"r-{len(self._sizes_of)}"
        prompt, answer = self._sizes_of[request_id] = self.sizes.draw(self.rng)
        self.largest[tenant.name] = max(self.largest[tenant.name], prompt + answer)
        gateway = self.rng.choice(tenant.gateways)
        ticket = Ticket(request_id, "default", tenant.name, prompt, answer, 1, tenant_weight=tenant.weight)
        decision = (await self.queue.admit(ticket, b"body", Bounds(0, 0, 0), gateway=gateway)).decision
        assert decision == "accepted", decision
        tenant.num_waiting += 1
        if tenant.name not in self.tenants:
            self._arrived[request_id] = self.now_s
        self._tenant_of[request_id] = tenant

    async def _take(self, worker: Worker) -> None:
        taken = await self.queue.take(worker.name, "nonce", slots=SLOTS - len(worker.running), room=10**9)
        for d in taken.deliveries:
            tenant = self._tenant_of.pop(d.request_id)
            tenant.num_waiting -= 1
            prompt, answer = self._sizes_of[d.request_id]
            self._serve(tenant.name, prompt)
            worker.running.append(Sequence(d, tenant.name, answer, len(d.journal)))
            if d.request_id in self._arrived:
                self.waits.append(self.now_s - self._arrived.pop(d.request_id))

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
            self._serve(sequence.tenant, 1)
        emitted = await self.stream.emit(worker.name, "nonce", emissions)
        assert emitted.is_published, emitted
        worker.running = [sequence for sequence in worker.running if sequence.left]

    def _serve(self, tenant: str, num_tokens: int) -> None:
        self.served[int(self.now_s / WINDOW_S), tenant] += num_tokens


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of one window: weight-4 tenants' tokens over the others', per tenant; what it may be; whether it is."""

    window: int
    ratio: float
    tolerance: float

    @property
    def is_fair(self) -> bool:
        return abs(self.ratio / 4 - 1) <= self.tolerance


async def simulate(server: Valkey, tenants: list[Tenant], sizes: Sizes, windows: int) -> Service:
    """`windows` of ten virtual seconds, after one to warm up; a newcomer each second."""
    client = connect(RedisSettings(redis_url=server.url, redis_timeout_s=60))
    service = Service(Scripts(client), tenants, sizes, seed=1)
    for worker in service.workers:
        await service.queue.register(worker.name, "nonce", b"{}")
    num_newcomers = 0
    while service.now_s < (windows + 1) * WINDOW_S:
        if service.now_s > WINDOW_S + num_newcomers:
            await service.newcome(num_newcomers)
            num_newcomers += 1
        await service.step()
    await client.aclose()
    return service


def judge(service: Service, windows: int) -> list[Verdict]:
    """Groups by weight: with many tenants one window holds about one request of each."""
    heavy = [t.name for t in service.tenants.values() if t.weight == 4]
    light = [t.name for t in service.tenants.values() if t.weight == 1]
    verdicts: list[Verdict] = []
    for window in range(1, windows + 1):
        mine, others = (sum(service.served[window, name] for name in names) for names in (heavy, light))
        request = max(service.largest[name] for name in (*heavy, *light))
        # Each single tenant may be one request off; many of them are off both ways, and 2% must do for their sum.
        slack = request / min(mine, others) if len(heavy) == 1 else 0.0
        verdicts.append(Verdict(window, mine / len(heavy) / (others / len(light)), max(0.02, slack)))
    return verdicts


def most_off(service: Service, windows: int) -> float:
    """The tenant furthest from its share of a window, in requests of the largest size that came."""
    request = max(service.largest.values())
    worst = 0.0
    for window in range(1, windows + 1):
        served = {tenant.name: service.served[window, tenant.name] for tenant in service.tenants.values()}
        unit = sum(served.values()) / sum(tenant.weight for tenant in service.tenants.values())
        off = max(abs(served[tenant.name] - unit * tenant.weight) for tenant in service.tenants.values())
        worst = max(worst, off / request)
    return worst


def _tell(title: str, service: Service, verdicts: list[Verdict], seconds: float) -> dict[str, object]:
    worst = max(verdicts, key=lambda verdict: abs(verdict.ratio / 4 - 1))
    total = sum(service.served.values())
    typer.echo(f"{title}: {total:,} tokens in {len(verdicts) + 1} windows of 10 s ({seconds:.0f} s of real time)")
    typer.echo("  4:1 as " + " ".join(f"{verdict.ratio:.3f}" for verdict in verdicts))
    fair = sum(verdict.is_fair for verdict in verdicts)
    typer.echo(
        f"  {fair} of {len(verdicts)} windows fair; worst {worst.ratio / 4 - 1:+.2%} (allowed {worst.tolerance:.2%})"
    )
    off = most_off(service, len(verdicts))
    typer.echo(f"  the tenant furthest from its share of a window was off by {off:.2f} of the largest request")
    waits = sorted(service.waits)
    typer.echo(
        f"  {len(waits)} newcomers with one request waited {waits[len(waits) // 2]:.2f} s (median), "
        f"at most {waits[-1]:.2f} s"
    )
    return {
        "ratios": [verdict.ratio for verdict in verdicts], "fair_windows": fair, "newcomer_waits_s": waits,
        "tokens": total, "most_off_requests": off, "worst": worst.ratio / 4 - 1, "allowed": worst.tolerance,
    }  # fmt: skip


def two_tenants() -> list[Tenant]:
    """A comes in by both gateways, all of B by the second."""
    return [Tenant("A", 4, ("g-one", "g-two"), 64), Tenant("B", 1, ("g-two",), 64)]


def many_tenants(number: int) -> list[Tenant]:
    gateways = {4: ("g-one", "g-two"), 1: ("g-two",)}
    return [Tenant(f"t-{i}", 4 if i % 2 else 1, gateways[4 if i % 2 else 1], 2) for i in range(number)]


def main(windows: int = 6, many: int = 1000) -> None:
    """Weights 4:1 over ten-second windows: two tenants, then many."""
    cases = (
        ("two tenants", two_tenants(), Sizes((20, 200), (4.5, 0.8), 2000)),
        (f"{many} tenants", many_tenants(many), Sizes((4, 12), (2.5, 0.5), 64)),
    )
    figures: dict[str, object] = {}
    for title, tenants, sizes in cases:
        with tempfile.TemporaryDirectory() as folder:
            server = Valkey(Path(folder))
            try:
                started = time.monotonic()
                service = asyncio.run(simulate(server, tenants, sizes, windows))
                figures[title] = _tell(title, service, judge(service, windows), time.monotonic() - started)
            finally:
                server.kill()
    typer.echo(f"written to {write_results('fairness', figures)}")
