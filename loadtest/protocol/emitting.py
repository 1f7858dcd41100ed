"""What an emit costs the server a token, beside the bare floor: `PUBLISH` of the same bytes on the same connection.

The floor is told twice: each step's message to each gateway in one PUBLISH (the least there can be: no owner, no
offset, no journal), and one PUBLISH a token (what is usual). Emits and floors take turns, so that noise hits both.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace

from loadtest.protocol.rig import GATEWAYS, MODEL, WORKER, Cost, Rig, request_ids
from shared import keys
from shared.request_queue import Delivery
from shared.schemas import TokensFrame, encode_frames
from shared.token_stream import Emission, payloads_of
from worker.holdings import TELL_EVERY

FRAMES = encode_frames([TokensFrame(0, [504], " the sea")])


@dataclass(frozen=True, slots=True)
class EmitRow:
    """Microseconds of the server a token. CPU time, the floors too, is the median of the rounds; time in the script is
    the least, since whoever else runs on this machine can only add to it. `spread`: dearest round over cheapest."""

    num_running: int
    num_tenants: int
    script_us: float
    cpu_us: float
    floor_step_us: float
    floor_token_us: float
    spread: float

    @property
    def tokens_per_s(self) -> float:
        """Through one server core, with nothing else on it."""
        return 1e6 / self.cpu_us


async def measure_emit(rig: Rig, num_running: int, num_tenants: int, *, tokens: int, rounds: int) -> EmitRow:
    steps = max(1, tokens // num_running)
    step = await start_requests(rig, num_running, num_tenants)
    emits: list[Cost] = []
    by_step: list[Cost] = []
    by_token: list[Cost] = []
    for _ in range(rounds):
        first, step = step, [replace(e, offset=e.offset + steps * len(FRAMES)) for e in step]
        work = [_step_after(first, i) for i in range(steps)]
        number = steps * num_running
        by_step.append(await rig.measure("publish", number, lambda work=work: _publish_steps(rig, work)))
        by_token.append(await rig.measure("publish", number, lambda work=work: _publish_tokens(rig, work)))
        emits.append(await rig.measure("evalsha", number, lambda work=work: _emit(rig, work)))
    cpu = [cost.cpu_us for cost in emits]
    return EmitRow(
        num_running, num_tenants, min(cost.script_us for cost in emits), statistics.median(cpu),
        statistics.median(cost.cpu_us for cost in by_step), statistics.median(cost.cpu_us for cost in by_token),
        max(cpu) / min(cpu),
    )  # fmt: skip


def _step_after(first: list[Emission], number: int) -> list[Emission]:
    """As a worker does, each tells how many tokens it has once in TELL_EVERY steps: not all in the same."""
    return [
        replace(
            e, offset=e.offset + number * len(FRAMES), total_tokens=number + 1 if (number + i) % TELL_EVERY == 0 else 0
        )
        for i, e in enumerate(first)
    ]


async def start_requests(rig: Rig, number: int, num_tenants: int) -> list[Emission]:
    """`number` requests taken, each past its first token; the next emission of each."""
    await rig.empty()
    for i, request_id in enumerate(request_ids(number)):
        await rig.admit(request_id, tenant=f"tenant-{i % num_tenants}", gateway=GATEWAYS[i % len(GATEWAYS)])
    deliveries: list[Delivery] = []
    while len(deliveries) < number:
        deliveries += (await rig.queue.take(*WORKER, slots=number - len(deliveries), room=10**9)).deliveries
    first = [Emission(d.request_id, d.owner, len(d.journal), FRAMES, 1, d.gateways, total_tokens=1) for d in deliveries]
    await rig.stream.emit(*WORKER, first)
    return [replace(e, offset=e.offset + len(FRAMES)) for e in first]


async def _emit(rig: Rig, work: list[list[Emission]]) -> None:
    for step in work:
        emitted = await rig.stream.emit(*WORKER, step)
        assert emitted.is_published, emitted


async def _publish_steps(rig: Rig, work: list[list[Emission]]) -> None:
    for step in work:
        for gateway, payload in payloads_of(step).items():
            await rig.client.publish(keys.channel(MODEL, gateway), payload)


async def _publish_tokens(rig: Rig, work: list[list[Emission]]) -> None:
    """Pipelined, so that the server's price is not that of waiting for a reply to each."""
    for step in work:
        async with rig.client.pipeline(transaction=False) as pipe:
            for emission in step:
                for gateway, payload in payloads_of([emission]).items():
                    pipe.publish(keys.channel(MODEL, gateway), payload)
            await pipe.execute()
