"""What is known of models, tokenizers, workers and gateways; the read side that consoles and the catalogue use.

Model cards stay when no worker lives, so that a known model still queues. The server's run id tells when
everything must be registered again.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from shared import keys
from shared.redis_client import Scripts
from shared.schemas import ModelCard, WorkerInfo


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """One registered worker. `lease_left_ms` below 0: late."""

    worker_id: str
    info: WorkerInfo
    lease_left_ms: int
    num_owned: int


@dataclass(slots=True)
class Registry:
    scripts: Scripts

    async def publish_model(self, card: ModelCard, tokenizer: bytes) -> None:
        """Make a model known. Idempotent."""
        client = self.scripts.client
        await client.set(keys.tokenizer(card.tokenizer_digest), tokenizer)
        await client.hset(keys.MODELS, card.revision, msgspec.json.encode(card))

    async def is_published(self, card: ModelCard) -> bool:
        client = self.scripts.client
        known = await client.hget(keys.MODELS, card.revision)
        return known is not None and await client.exists(keys.tokenizer(card.tokenizer_digest)) == 1

    async def models(self) -> list[ModelCard]:
        raw = await self.scripts.client.hgetall(keys.MODELS)
        cards = [msgspec.json.decode(card, type=ModelCard) for card in raw.values()]
        return sorted(cards, key=lambda card: (card.name, card.created_s, card.revision))

    async def tokenizer(self, digest: str) -> bytes | None:
        raw = await self.scripts.client.get(keys.tokenizer(digest))
        return raw

    async def num_live_workers(self, model: str) -> int:
        """Workers of a model whose lease has not run out."""
        return int(await self.scripts.client.zcount(keys.lease(model), await self._now_ms(), "+inf"))

    async def workers(self, model: str) -> list[WorkerRow]:
        client = self.scripts.client
        now = await self._now_ms()
        leases: list[tuple[bytes, float]] = await client.zrange(keys.lease(model), 0, -1, withscores=True)
        rows: list[WorkerRow] = []
        for name, deadline in leases:
            worker_id = name.decode()
            info = await client.hget(keys.worker(model, worker_id), "info")
            if info is not None:
                owned = int(await client.zcard(keys.owned(model, worker_id)))
                decoded = msgspec.json.decode(info, type=WorkerInfo)
                rows.append(WorkerRow(worker_id, decoded, int(deadline) - now, owned))
        return rows

    async def beat_gateway(self, gateway: str, lease_ms: int, grace_ms: int) -> list[str]:
        """Say that `gateway` lives ('' only asks); returns gateways dead for longer than the grace."""
        dead: list[bytes] = await self.scripts.run("gateway_beat", keys.GATEWAYS, gateway, lease_ms, grace_ms)
        return [name.decode() for name in dead]

    async def forget_gateways(self, gateways: list[str]) -> None:
        if gateways:
            await self.scripts.client.zrem(keys.GATEWAYS, *gateways)

    async def run_id(self) -> str:
        """Changes whenever the server was restarted or another one took over."""
        info = await self.scripts.client.info("server")
        return str(info["run_id"])

    async def _now_ms(self) -> int:
        seconds, micros = await self.scripts.client.time()
        return seconds * 1000 + micros // 1000
