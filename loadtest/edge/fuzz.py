"""`python -m loadtest fuzz`: 20,000 hostile requests, then schemathesis, on the running server, simulated backend.

Nothing may be a 5xx (but a 504 for a deadline that was asked for), everything that fails has the error shape and a
request id, nothing may hang, and the gateway's memory stays flat.
"""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import typer

from loadtest.edge.hostile import Hostile, fields_of, hostile_requests
from loadtest.edge.process import used_by
from loadtest.results import write_results
from loadtest.stack import Stack

HANG_S = 20.0
AT_ONCE = 8
KEYS = {"message", "type", "param", "code"}
CHECKS = "not_a_server_error,response_schema_conformance,status_code_conformance,content_type_conformance"
ENV: dict[str, object] = {
    "backend": "simulated", "sim_step_us": 200, "sim_prefill_us_per_token": 0, "max_num_seqs": 64,
    "log_level": "warning",
}  # fmt: skip


@dataclass(slots=True)
class Findings:
    """`faults`: what must not be, the first of each kind and status."""

    statuses: Counter[int] = field(default_factory=Counter[int])
    slowest_s: float = 0.0
    num_faults: int = 0
    faults: dict[str, str] = field(default_factory=dict[str, str])

    def fault(self, what: str, hostile: Hostile, words: str) -> None:
        self.num_faults += 1
        sent = f"{hostile.method} {hostile.path[:100]} {hostile.headers!s:.200} {hostile.content[:400]!r}"
        self.faults.setdefault(f"{hostile.kind}: {what}", f"{sent}: {words[:300]}")


async def attack(base_url: str, requests: Sequence[Hostile], findings: Findings) -> None:
    async with httpx.AsyncClient(base_url=base_url, trust_env=False, timeout=HANG_S) as client:
        await attack_with(client, requests, findings)


async def attack_with(client: httpx.AsyncClient, requests: Sequence[Hostile], findings: Findings) -> None:
    queue = iter(requests)

    async def one_after_another() -> None:
        for hostile in queue:
            await _send(client, hostile, findings)

    await asyncio.gather(*(one_after_another() for _ in range(AT_ONCE)))


async def _send(client: httpx.AsyncClient, hostile: Hostile, findings: Findings) -> None:
    began = time.monotonic()
    headers = [(name.encode(), value.encode()) for name, value in hostile.headers.items()]
    try:
        reply = await client.request(hostile.method, hostile.path, content=hostile.content, headers=headers)
    except httpx.TimeoutException:
        return findings.fault("hangs", hostile, f"no answer in {HANG_S} s")
    except (httpx.InvalidURL, httpx.LocalProtocolError):
        return None  # refused by the client itself
    except httpx.HTTPError as error:
        return findings.fault("connection", hostile, repr(error))
    findings.slowest_s = max(findings.slowest_s, time.monotonic() - began)
    findings.statuses[reply.status_code] += 1
    what = fault_of(reply)
    if what:
        findings.fault(what, hostile, reply.text)
    return None


def fault_of(reply: httpx.Response) -> str:
    """What an answer must not be; empty for a good one."""
    if reply.status_code >= 500 and not (reply.status_code == 504 and "deadline" in reply.text):
        return f"status {reply.status_code}"
    if "x-request-id" not in reply.headers:
        return "no request id"
    if reply.status_code < 400:
        return ""
    try:
        error: Any = reply.json()["error"]
    except (ValueError, KeyError, TypeError):
        return "no error shape"
    return "" if set(error) == KEYS and isinstance(error["code"], str | None) else "no error shape"


def schemathesis(program: str, base_url: str, examples: int) -> dict[str, object]:
    """What it found against the server's own document: its exit status and the end of its report."""
    argv = [
        program, "run", f"{base_url}/openapi.json", "--url", base_url, "--checks", CHECKS,
        "--max-examples", str(examples),
        "--exclude-path-regex", "^/operator/", "--request-timeout", str(HANG_S), "--no-color", "--generation-database",
        "none", "--seed", "7", "--phases", "examples,coverage,fuzzing",
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:  # where it leaves what it found
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=900, cwd=folder)
    return {"exit": done.returncode, "report": (done.stdout + done.stderr).splitlines()[-60:]}


def main(count: int = 20_000, seed: int = 7, schemathesis_at: str = "", examples: int = 40, write: bool = True) -> None:
    """Hostile requests to a running server; with `--schemathesis-at PROGRAM` its checks as well."""
    with tempfile.TemporaryDirectory() as folder, Stack(Path(folder), env=ENV) as stack:
        fields = fields_of(httpx.get(f"{stack.base_url}/openapi.json", trust_env=False, timeout=HANG_S).json())
        requests = list(hostile_requests(fields, seed, count))
        findings, warm_up = Findings(), min(2000, count // 4)
        asyncio.run(attack(stack.base_url, requests[:warm_up], findings))
        before = used_by(stack.gateway.pid)
        asyncio.run(attack(stack.base_url, requests[warm_up:], findings))
        after = used_by(stack.gateway.pid)
        figures: dict[str, object] = {
            "requests": count, "seed": seed, "endpoints": sorted(fields), "faults": findings.num_faults,
            "first_faults": findings.faults, "statuses": {str(k): v for k, v in sorted(findings.statuses.items())},
            "slowest_s": round(findings.slowest_s, 2), "rss_mb_after_warm_up": round(before.rss_mb, 1),
            "rss_mb_at_the_end": round(after.rss_mb, 1),
        }  # fmt: skip
        if schemathesis_at:
            figures["schemathesis"] = schemathesis(schemathesis_at, stack.base_url, examples)
            figures["rss_mb_after_schemathesis"] = round(used_by(stack.gateway.pid).rss_mb, 1)
        is_alive = httpx.get(f"{stack.base_url}/health/ready", trust_env=False, timeout=HANG_S).is_success
    for name, value in figures.items():
        typer.echo(f"  {name}: {value}")
    if write:
        typer.echo(f"written to {write_results('fuzz', figures)}")
    if findings.num_faults or not is_alive:
        raise typer.Exit(1)
