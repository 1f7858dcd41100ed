"""The server under the protocol benchmark, and what its meters say.

Two meters: `script_us` is the server's own count of time inside the command (commandstats, wall time), `cpu_us` the
CPU its main thread used for all of it: parsing, the script, the append-only file, replies. On a machine shared with
others the second is the steadier one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.valkey import Valkey
from shared import keys
from shared.config import RedisSettings
from shared.redis_client import Scripts, connect
from shared.request_queue import Bounds, RequestQueue, Ticket
from shared.token_stream import TokenStream

MODEL = "benchmark@0123456789ab"
WORKER = ("w-benchmark", "nonce")
GATEWAYS = ("g-one", "g-two")
NO_BOUNDS = Bounds(0, 0, 0)
LEASE_MS = 3_600_000
RETENTION_S = 600


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one measured stretch, in microseconds of the server, for each unit it was divided by."""

    script_us: float
    cpu_us: float


class Rig:
    """One embedded server with two listening gateways and a registered worker."""

    def __init__(self, server: Valkey) -> None:
        self.server = server
        self.client: Any = connect(RedisSettings(redis_url=server.url, redis_timeout_s=60))
        self.scripts = Scripts(self.client)
        self.queue = RequestQueue(self.scripts, MODEL, RETENTION_S, LEASE_MS)
        self.stream = TokenStream(self.scripts, MODEL, RETENTION_S, LEASE_MS)

    async def measure(self, command: str, number: int, work: Callable[[], Awaitable[object]]) -> Cost:
        """What `work` cost the server, over `number` units; `script_us` counts `command` only."""
        await self.client.config_resetstat()
        before = await self.cpu_s()
        await work()
        after = await self.cpu_s()
        stats = (await self.client.info("commandstats")).get(f"cmdstat_{command}", {"usec": 0})
        return Cost(stats["usec"] / number, (after - before) * 1e6 / number)

    async def cpu_s(self) -> float:
        info = await self.client.info("cpu")
        return float(info["used_cpu_user_main_thread"]) + float(info["used_cpu_sys_main_thread"])

    async def empty(self) -> None:
        await self.client.execute_command("FLUSHALL", "SYNC")  # or what is being freed counts as memory used
        await self.queue.register(*WORKER, b"{}")

    async def admit(self, request_id: str, *, tenant: str = "t", body: bytes = b"body", gateway: str = "g-one") -> None:
        ticket = Ticket(
            request_id, "default", tenant, prompt_tokens=16, max_tokens=512, n=1, start_deadline_ms=600_000,
            traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        )  # fmt: skip
        await self.queue.admit(ticket, body, NO_BOUNDS, gateway=gateway)


@asynccontextmanager
async def rig(directory: Path) -> AsyncGenerator[Rig]:
    """A rig whose gateways listen, and read what they are sent, until it is left."""
    server = Valkey(directory)
    try:
        made = Rig(server)
        listeners = [asyncio.create_task(_listen(server.port, gateway)) for gateway in GATEWAYS]
        await made.empty()
        while len(await made.client.pubsub_channels()) < len(GATEWAYS):  # noqa: ASYNC110
            await asyncio.sleep(0)
        yield made
        for listener in listeners:
            listener.cancel()
        await asyncio.gather(*listeners, return_exceptions=True)
        await made.client.aclose()
    finally:
        server.kill()


async def _listen(port: int, gateway: str) -> None:
    """Reads and throws away: a gateway that costs this process next to nothing."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    channel = keys.channel(MODEL, gateway)
    writer.write(command_of("SUBSCRIBE", channel))
    while await reader.read(1 << 20):
        pass


def command_of(*words: str) -> bytes:
    """A command as it goes over the wire."""
    encoded = [word.encode() for word in words]
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in encoded)


def request_ids(number: int, start: int = 0) -> list[str]:
    """As long as real ones are."""
    return [f"01976b00-0000-7000-8000-{i:012d}" for i in range(start, start + number)]
