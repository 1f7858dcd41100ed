"""A drill: what alerts are for is done to a real stack, and a real Prometheus says so.

How long something must last (`for`) is cut out of the rules here: minutes become seconds. promtool tests that part.
"""

from __future__ import annotations

import re
import threading
import time
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from loadtest.stack import Stack
from loadtest.valkey import free_port
from tests.e2e.scraper import Scraper
from tests.unit.deploy.observability.promql import PROMETHEUS

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(400)]
POISON = 61
SETTINGS = {
    "backend": "simulated", "sim_step_us": 2000, "lease_ms": 1500, "heartbeat_ms": 200, "reap_ms": 500,
    "max_crashes": 1, "max_waiting": 4, "allow_faults": True, "drain_timeout_s": 1,
}  # fmt: skip


class Fragile(Stack):
    """Every worker dies of a request that asks for POISON tokens."""

    def settings_of(self, name: str) -> dict[str, object]:
        if not name.startswith("worker"):
            return {}
        return {"faults": f'after_take:kill,match=max_tokens":{POISON};take:delay=1'}


def ask(stack: Stack, max_tokens: int) -> None:
    """And do not wait."""

    def call() -> None:
        body = {"model": "simulated", "max_tokens": max_tokens, "messages": [{"role": "user", "content": "hello"}]}
        with suppress(httpx.HTTPError):
            httpx.post(f"{stack.base_url}/v1/chat/completions", json=body, timeout=300)

    threading.Thread(target=call, daemon=True).start()


def until_firing(prometheus: Scraper, *names: str, within_s: float = 40.0) -> None:
    give_up = time.monotonic() + within_s
    while missing := set(names) - prometheus.firing():
        assert time.monotonic() < give_up, f"{missing} did not fire: {prometheus.firing()} did"
        time.sleep(0.5)


def rules_without_waiting(folder: Path) -> Path:
    (folder / "rules").mkdir()
    for path in (PROMETHEUS / "rules").glob("*.yml"):
        (folder / "rules" / path.name).write_text(re.sub(r"^ +for: .*\n", "", path.read_text("utf-8"), flags=re.M))
    return folder / "rules"


def test_what_alerts_are_for_sets_them_off(tmp_path: Path) -> None:
    with Fragile(tmp_path, num_workers=3, env=SETTINGS) as stack:
        targets = {"headrace-gateway": [f"127.0.0.1:{stack.port}", f"127.0.0.1:{free_port()}"]}
        with Scraper(tmp_path, targets, rules_without_waiting(tmp_path)) as prometheus:
            ask(stack, POISON)
            until_firing(prometheus, "HeadraceGatewayDown", "HeadraceDeadLetters")
            assert prometheus.firing() == {"HeadraceGatewayDown", "HeadraceDeadLetters"}, "and no other"
            for worker in stack.workers:
                worker.kill()
            for _ in range(3):  # the first of a kind is no increase
                for _ in range(5):
                    ask(stack, 5)
                time.sleep(3)
            until_firing(prometheus, "HeadraceNoWorkers", "HeadraceRefusing")
            until_firing(prometheus, "HeadraceQueueOld", within_s=100)
            stack.valkey.kill()
            until_firing(prometheus, "HeadraceRedisDown")
