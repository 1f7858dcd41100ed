"""A gateway's readiness against a real server: what it must not accept requests on, and what it must not forget."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from gateway.models.catalogue import Catalogue
from gateway.upkeep import Upkeep
from loadtest.valkey import Valkey
from shared import keys
from shared.config import GatewaySettings
from shared.errors import ModelNotFound
from shared.observability import GatewayMetrics
from shared.redis_client import Scripts
from shared.registry import Registry
from shared.schemas import ModelCard
from shared.text.tokenizer import encode_blob
from worker.backends.simulated import SimulatedConfig, build_simulated


@pytest.fixture
async def gateway(valkey: Valkey, scripts: Scripts) -> AsyncIterator[tuple[Upkeep, Catalogue]]:
    settings = GatewaySettings(redis_url=valkey.url, model_poll_s=0.02, lease_ms=600, heartbeat_ms=100, reap_ms=200)
    metrics = GatewayMetrics(CollectorRegistry())
    catalogue = Catalogue(settings, scripts, metrics)
    upkeep = Upkeep(settings, scripts, "g1", catalogue, metrics)
    await upkeep.start()
    await catalogue.start()
    yield upkeep, catalogue
    await catalogue.stop()
    await upkeep.stop()


async def publish(scripts: Scripts) -> ModelCard:
    engine = build_simulated(SimulatedConfig())
    await Registry(scripts).publish_model(engine.card, encode_blob(engine.tokenizer_blob))
    return engine.card


async def until_ready(upkeep: Upkeep, *, is_ready: bool) -> str:
    while True:
        now, why = await upkeep.is_ready(0)
        if now is is_ready:
            return why


async def test_ready_once_a_model_is_known_and_not_before(gateway: Any, scripts: Scripts) -> None:
    upkeep, _ = gateway
    assert "no model" in await until_ready(upkeep, is_ready=False)
    await publish(scripts)
    assert await until_ready(upkeep, is_ready=True) == ""
    assert await upkeep.is_ready(1) == (False, "0 of 1 workers are up")


async def test_a_server_that_may_drop_requests_is_not_ready(gateway: Any, scripts: Scripts) -> None:
    upkeep, _ = gateway
    await publish(scripts)
    await until_ready(upkeep, is_ready=True)
    await scripts.client.execute_command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")  # type: ignore[attr-defined]
    try:
        await upkeep.stop()
        await upkeep.start()  # it looks at once, and then every half minute
        assert "maxmemory-policy" in await until_ready(upkeep, is_ready=False)
    finally:
        await scripts.client.execute_command("CONFIG", "SET", "maxmemory-policy", "noeviction")  # type: ignore[attr-defined]


async def test_a_model_the_server_lost_is_still_found_for_a_while(gateway: Any, scripts: Scripts) -> None:
    upkeep, catalogue = gateway
    card = await publish(scripts)
    await until_ready(upkeep, is_ready=True)
    await scripts.client.execute_command("FLUSHALL")  # type: ignore[attr-defined]
    await catalogue._refresh()
    assert catalogue.find(card.name) == card
    with pytest.raises(ModelNotFound, match=card.name):
        catalogue.find("another")


async def test_a_paused_model_is_shown_by_its_metric_also_when_another_revision_of_it_is_not(scripts: Scripts) -> None:
    metrics = GatewayMetrics(CollectorRegistry())
    catalogue = Catalogue(GatewaySettings(), scripts, metrics)
    card = await publish(scripts)
    await scripts.client.hset(
        keys.MODELS, "other", msgspec.json.encode(msgspec.structs.replace(card, revision="other"))
    )
    shown: list[float | None] = []
    for script, *args in (("resume", "ann"), ("pause", "ann", "bad weights"), ("resume", "ann")):
        await scripts.run(script, keys.counts(card.revision), *args)
        await catalogue._refresh()
        shown.append(metrics.registry.get_sample_value("headrace_model_paused", {"model": card.name}))
    assert shown == [0.0, 1.0, 0.0]
