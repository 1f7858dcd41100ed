"""What admit and take cost the server while much waits, from many flows; and what a waiting request keeps in memory.

The crowd is put there by a loader of our own (a thousand requests a call, the very keys `admit` writes), since the
real one would take minutes for a million. What is measured then is the real `admit` and `take`.
"""

from __future__ import annotations

import os
import statistics
from dataclasses import dataclass

from loadtest.protocol.rig import MODEL, WORKER, Rig, request_ids
from shared import keys
from shared.request_queue import Bounds, Ticket

PAGE = 1000
BATCH = 100
PROBE = "01976b00-0000-7000-8000-000000000000"
PROBES_FROM = 10**9  # ids of the measured requests begin here: none is in the crowd

# ARGV: 1 first number, 2 how many, 3 flows. Writes what `admit` writes, for class `default`; counters at once.
LOADER = """
local base = string.sub(KEYS[1], 1, -7)
local first, number, flows = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
for i = first, first + number - 1 do
  local id, tenant = string.format('01976b00-0000-7000-8000-%012d', i), 'tenant-' .. i % flows
  local stream = 'q:default:' .. tenant
  if redis.call('EXISTS', base .. stream) == 0 then
    redis.call('XGROUP', 'CREATE', base .. stream, 'w', '0', 'MKSTREAM')
    redis.call('HSET', base .. 'tenant:' .. tenant, 'weight', 1, 'vtime:default', 0)
    redis.call('ZADD', base .. 'flows:default', 0, tenant)
  end
  local entry = redis.call('XADD', base .. stream, '*', 'id', id)
  redis.call('HSET', base .. 'r:' .. id, 'owner', '/0/1', 'state', 'waiting', 'class', 'default', 'tenant', tenant,
    'tokens', 0, 'stream', stream, 'entry', entry, 'attempt', 0, 'crashes', 0, 'prompt_tokens', 16,
    'max_tokens', 512, 'n', 1, 'bytes', 4, 'admitted_at', 1, 'start_deadline', 9e15, 'deadline', 0, 'detached', '0')
  redis.call('SET', base .. 'b:' .. id, 'body')
  redis.call('SADD', base .. 'g:' .. id, 'g-one')
  redis.call('SADD', base .. 'att:g-one', id)
  redis.call('ZADD', base .. 'deadlines', 9e15, id)
  redis.call('HINCRBY', base .. 'tenant:' .. tenant, 'waiting:default', 1)
end
redis.call('HINCRBY', KEYS[1], 'waiting', number)
redis.call('HINCRBY', KEYS[1], 'waiting:default', number)
redis.call('HINCRBY', KEYS[1], 'waiting_tokens', 16 * number)
redis.call('HINCRBY', KEYS[1], 'waiting_bytes', 4 * number)
"""


@dataclass(frozen=True, slots=True)
class WaitingRow:
    """Microseconds of the server a request: inside the script, and CPU of the whole; `memory` is all of Redis."""

    num_waiting: int
    num_flows: int
    admit_us: float
    admit_cpu_us: float
    take_us: float
    take_cpu_us: float
    memory_mb: float


async def measure_waiting(rig: Rig, num_waiting: int, num_flows: int, *, rounds: int) -> WaitingRow:
    """Each round admits a batch and takes as many, one a call, so that as much waits after it as before."""
    await rig.empty()
    loader = rig.client.register_script(LOADER)
    for first in range(0, num_waiting, PAGE):
        number = min(PAGE, num_waiting - first)
        await loader(keys=[keys.counts(MODEL)], args=[first, number, num_flows])
    admits: list[tuple[float, float]] = []
    takes: list[tuple[float, float]] = []
    for number in range(rounds):
        ids = request_ids(BATCH, PROBES_FROM + number * BATCH)
        admit = await rig.measure("evalsha", BATCH, lambda ids=ids: _admit(rig, ids, num_flows))
        take = await rig.measure("evalsha", BATCH, lambda: _take(rig))
        admits.append((admit.script_us, admit.cpu_us))
        takes.append((take.script_us, take.cpu_us))
    memory_mb = (await rig.client.info("memory"))["used_memory"] / 1e6
    (admit_us, admit_cpu_us), (take_us, take_cpu_us) = (
        [statistics.median(side) for side in zip(*costs, strict=True)] for costs in (admits, takes)
    )
    return WaitingRow(num_waiting, num_flows, admit_us, admit_cpu_us, take_us, take_cpu_us, memory_mb)


async def measure_refusals(rig: Rig, num_promises: int, *, rounds: int) -> float:
    """Microseconds inside `admit` for one that a full queue refuses and promises a time, after so many others."""
    await rig.empty()
    await rig.admit(PROBE)
    seconds, _ = await rig.client.time()
    for first in range(0, num_promises, PAGE):
        dues = {f"{i:024x}": seconds * 1000 + 20_000 + i for i in range(first, min(first + PAGE, num_promises))}
        await rig.client.zadd(keys.promises(MODEL), dues)
    costs = [
        await rig.measure("evalsha", BATCH, lambda number=number: _refuse(rig, number * BATCH))
        for number in range(rounds)
    ]
    return statistics.median(cost.script_us for cost in costs)


async def measure_memory(rig: Rig, *, number: int = 2000, body_bytes: int = 1024) -> float:
    """Bytes of Redis a waiting request with a body of `body_bytes`, everything counted."""
    await rig.empty()
    before = (await rig.client.info("memory"))["used_memory"]
    for request_id in request_ids(number):
        await rig.admit(request_id, tenant="tenant-0", body=os.urandom(body_bytes))
    return ((await rig.client.info("memory"))["used_memory"] - before) / number


async def _admit(rig: Rig, ids: list[str], num_flows: int) -> None:
    for i, request_id in enumerate(ids):
        await rig.admit(request_id, tenant=f"tenant-{i * 7919 % num_flows}")


async def _refuse(rig: Rig, first: int) -> None:
    for number in range(first, first + BATCH):
        mark = f"refused-{number:016x}"
        ticket = Ticket(mark, "default", "t", prompt_tokens=16, max_tokens=512, n=1, mark=mark, drain_per_s=1000.0)
        assert (await rig.queue.admit(ticket, b"body", Bounds(1, 0, 0), gateway="g-one")).decision == "full"


async def _take(rig: Rig) -> None:
    for _ in range(BATCH):
        taken = await rig.queue.take(*WORKER, slots=1, room=10**9)
        assert len(taken.deliveries) == 1
