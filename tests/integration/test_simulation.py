"""Seeds of the fault simulation (simulation.py). A failing seed is named by its parameter: run it alone again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gateway import dispatch
from loadtest.valkey import Valkey
from tests.integration.faults import Mix
from tests.integration.simulated_end import simulate

MIXES = {
    "everyday": Mix(),
    "crashes": Mix(crash=0.006, max_crashes=8),
    "losses": Mix(crash=0.003, flush=0.002, max_crashes=8),
    "calm": Mix(lost=0, late=0, dropped=0, worker_kill=0, gateway_kill=0, poison=0, worker_pause=0),
    "crowded": Mix(join=0.05, leave=0.02, gateway_kill=0.006, dropped=0.3, crash=0.002, max_crashes=8),
    "deaf": Mix(dropped=0.6, late=0.2),
    "cruel": Mix(
        lost=0.1, late=0.2, dropped=0.3, worker_kill=0.01, gateway_kill=0.008, crash=0.004, join=0.02, max_crashes=12
    ),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    """Its own: it is killed, and the end of its file cut off."""
    server = Valkey(tmp_path_factory.mktemp("simulation"))
    yield server
    server.kill()


@pytest.fixture(autouse=True)
def no_pause_between_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_RETRY_S", 0)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("mix", MIXES)
async def test_promises_hold_whatever_fails(server: Valkey, mix: str, seed: int) -> None:
    await simulate(seed, server, MIXES[mix])


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mix", MIXES)
async def test_promises_hold_for_many_seeds(server: Valkey, mix: str) -> None:
    for seed in range(100, 150):
        await simulate(seed, server, MIXES[mix])
