"""A real Prometheus scrapes a real run: every panel's query returns data, every alert is quiet, promtool is content."""

from __future__ import annotations

import asyncio
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from deploy.observability.dashboards import DASHBOARDS
from loadtest.stack import Stack
from loadtest.valkey import free_port
from tests.architecture.source_tree import ROOT
from tests.e2e.scraper import Scraper
from tests.unit.deploy.observability.promql import promtool

pytestmark = pytest.mark.e2e
SETTINGS = {"backend": "simulated", "sim_step_us": 2000, "heartbeat_ms": 200}
ENOUGH_S = 60.0  # rates over a minute, of what is scraped each second


@pytest.fixture
def observed(tmp_path: Path) -> Iterator[tuple[Stack, str]]:
    """A stack, and the address of its worker's metrics."""
    port = free_port()
    with Stack(tmp_path, env=SETTINGS | {"worker_metrics_port": port, "worker_metrics_vllm": True}) as stack:
        yield stack, f"127.0.0.1:{port}"


async def ask(stack: Stack, num_requests: int) -> None:
    body = {"model": "simulated", "max_tokens": 8, "messages": [{"role": "user", "content": "hello"}]}
    async with httpx.AsyncClient(base_url=stack.base_url, timeout=30) as client:
        calls = (client.post("/v1/chat/completions", json=body | {"stream": n % 2 == 0}) for n in range(num_requests))
        assert {reply.status_code for reply in await asyncio.gather(*calls)} == {200}


def test_a_live_scrape_is_as_prometheus_wants_it(observed: tuple[Stack, str]) -> None:
    stack, worker = observed
    asyncio.run(ask(stack, 4))
    for url in (f"{stack.base_url}/metrics", f"http://{worker}/metrics"):
        told = httpx.get(url).content
        checked = subprocess.run([promtool(), "check", "metrics"], input=told, capture_output=True)
        assert (checked.returncode, checked.stdout + checked.stderr) == (0, b""), url


def test_each_request_is_counted_where_it_ended(observed: tuple[Stack, str]) -> None:
    stack, worker = observed
    asyncio.run(ask(stack, 4))
    told = httpx.get(f"{stack.base_url}/metrics").text
    ended = re.findall(
        r'^headrace_(?:requests_total|request_duration_seconds_count)\{.*"finished".*\} (.+)$', told, re.M
    )
    assert ended == ["4.0", "4.0"]
    assert (
        'vllm:generation_tokens_total{model_name="simulated"} 32.0' in httpx.get(f"http://{worker}/metrics/vllm").text
    )


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_every_panel_has_data_and_every_alert_is_quiet(observed: tuple[Stack, str], tmp_path: Path) -> None:
    stack, worker = observed
    with Scraper(
        tmp_path, {"headrace-gateway": [f"127.0.0.1:{stack.port}"], "headrace-worker": [worker]}
    ) as prometheus:
        until = time.monotonic() + ENOUGH_S
        while time.monotonic() < until:
            asyncio.run(ask(stack, 4))
            time.sleep(0.5)
        queries = {
            (each.uid, panel.title, query) for each in DASHBOARDS for panel in each.panels for query, _ in panel.queries
        }
        assert [query for query in sorted(queries) if not prometheus.query(query[2])] == []
        assert prometheus.query('ALERTS{alertstate="firing"}') == []


def saying_that_all_is_well() -> list[str]:
    """The queries that end the runbooks, but for batches, of which this run has none."""
    books = [path.read_text("utf-8") for path in (ROOT / "docs/runbooks").glob("Headrace*.md")]
    ends = [re.findall(r"```promql\n(.*?)```", book.partition("## Verification")[2], re.S) for book in books]
    lines = [line for blocks in ends for block in blocks for line in block.splitlines()]
    return [line for line in lines if "batch_lines" not in line]
