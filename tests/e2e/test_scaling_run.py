"""A fleet of real workers that follows `/operator/v1/scaling` from none and back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from loadtest.scaling.fleet import Fleet, settings
from loadtest.scaling.growth import grow
from loadtest.scaling.load import Clients

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(180)]


def test_a_fleet_comes_from_none_grows_with_its_queue_and_goes_again(tmp_path: Path) -> None:
    query = {"target_wait_s": 1, "min_workers": 0, "max_workers": 4, "idle_s": 1}
    with Fleet(tmp_path, settings(50), num_hosts=2, start_s=0.5) as fleet:
        fleet.resize(1)
        fleet.stack.wait_ready(1)
        fleet.resize(0)
        clients = Clients(fleet.stack.port, max_tokens=32)
        rows = asyncio.run(grow(fleet.stack.base_url, fleet, clients, [(10, 6)], query, hold_s=2))
    assert clients.failed == [] and clients.num_asked > 20
    assert (rows[0].started, rows[-1].live) == (0, 0)
    assert max(row.live for row in rows) > 1
