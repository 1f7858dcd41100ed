"""Reports as text for a terminal. Pure.

Names of tenants, reasons and the like come from outside: nothing of them may steer the terminal.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from urllib.parse import unquote

from shared.operations.dead_letters import Letter
from shared.operations.overview import Flow, Overview
from shared.operations.reports import AllRetried, DeadRequest, Fleet, Held, Ledger
from shared.operations.scaling.figures import ModelScaling, RevisionScaling
from shared.operations.timeline import Step, Timeline
from shared.registry import WorkerRow

NONE = "-"


def table(*rows: Sequence[object]) -> list[str]:
    """Columns as wide as their widest cell; the first row is the head."""
    cells = [[clean(str(cell)) or NONE for cell in row] for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*cells, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def clean(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def seconds(ms: float) -> str:
    return f"{ms / 1000:.1f} s" if abs(ms) < 120_000 else f"{ms / 60_000:.0f} min"


def clock(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def queue(rows: Sequence[Overview]) -> list[str]:
    return [line for row in rows for line in _model(row)] or ["no model is registered"]


def _model(row: Overview) -> list[str]:
    figures = {name: int(row.counts.get(name, 0)) for name in ("waiting", "running", "waiting_tokens", "waiting_bytes")}
    b = row.bounds
    lines = [
        clean(row.model),
        f"  waiting {figures['waiting']} of {b.max_waiting}, tokens {figures['waiting_tokens']} of"
        f" {b.max_waiting_tokens}, bytes {figures['waiting_bytes']} of {b.max_waiting_bytes}; oldest"
        f" {seconds(row.oldest_age_ms)}",
        f"  running {figures['running']} on {row.num_live_workers} live workers; dead letters {row.num_dead_letters}",
    ]
    if row.paused:
        since = f"{clock(row.paused.since_ms)} ({seconds(row.at_ms - row.paused.since_ms)})"
        lines.append(f"  PAUSED by {clean(row.paused.by)} since {since}: {clean(row.paused.why) or 'no reason given'}")
    flows = [_flow(flow) for flow in row.flows]
    if row.retry_waiting:
        flows.insert(0, ("(went back)", NONE, row.retry_waiting, seconds(row.retry_oldest_age_ms), NONE, NONE))
    if flows:
        lines += ["  " + line for line in table(("CLASS", "TENANT", "WAITING", "OLDEST", "RUNNING", "WEIGHT"), *flows)]
    return lines


def _flow(flow: Flow) -> tuple[object, ...]:
    oldest = seconds(flow.oldest_age_ms) if flow.waiting else NONE
    return flow.service_class, flow.tenant, flow.waiting, oldest, flow.running, f"{flow.weight:g}"


def scaling(rows: Sequence[ModelScaling]) -> list[str]:
    return [line for row in rows for line in _wanted(row)] or ["no model is registered"]


def _wanted(row: ModelScaling) -> list[str]:
    p = row.policy
    bounds = f"within {p.min_workers} to {p.max_workers}, to wait {p.target_wait_s:g} s, {p.utilisation:.0%} full"
    lines = [f"{clean(row.model)}: {row.wanted_workers} wanted ({bounds}), {row.live_workers} live"]
    return lines + [f"  {line}" for revision in row.revisions for line in _of_revision(revision)]


def _of_revision(row: RevisionScaling) -> list[str]:
    wait = NONE if row.wait_ms is None else seconds(row.wait_ms)
    speed = f"{row.worker_tokens_per_s:g}" if row.worker_tokens_per_s else "not known"
    return [
        f"{clean(row.model)}: needs {row.needed_workers} ({row.because}){' PAUSED' if row.is_paused else ''}",
        f"  waiting {row.waiting}, tokens {row.waiting_tokens}, with answers {row.expected_tokens}; oldest"
        f" {seconds(row.oldest_age_ms)}; who comes now waits {wait}",
        f"  running {row.running} in {row.busy_slots} of {row.slots} slots, {row.utilisation:.0%} full; a worker does"
        f" {speed} tokens a second; {row.drain_per_s:g} requests, {row.drain_tokens_per_s:g} tokens finish a second",
    ]


def request(t: Timeline) -> list[str]:
    f = t.fields
    asked = f"class {f.get('class', NONE)}, tenant {unquote(f.get('tenant', NONE))}"
    tokens = f"tokens {f.get('prompt_tokens', '0')} in, {f.get('tokens', '0')} out of {f.get('max_tokens', NONE)}"
    spent = ", ".join(f"{phase} {seconds(ms)}" for phase, ms in t.time_in.items())
    lines = [
        f"{t.request_id}  {t.state}  {clean(t.model)}",
        f"  {clean(asked)}; {tokens}; attempts {f.get('attempt', '0')}, blamed {f.get('crashes', '0')} times",
        f"  {spent}; workers {', '.join(t.workers) or 'none'}; gateways {', '.join(t.gateways) or 'none'}",
    ]
    for name, words in (("error", "error"), ("ended_by", "ended by"), ("retried_as", "runs again as")):
        if name in f:
            lines.append(f"  {words} {clean(f[name])}")
    start = t.steps[0].at_ms
    head = ("AT", "STEP", "LASTED", "TOKENS", "WORKER", "ATTEMPT")
    lines += ["  " + line for line in table(head, *(_step(step, start) for step in t.steps))]
    return [*lines, f"  began {clock(start)}"]


def _step(step: Step, start: int) -> tuple[object, ...]:
    lasted = seconds(step.lasted_ms) if step.lasted_ms else NONE
    at = f"+{(step.at_ms - start) / 1000:.3f} s"
    return at, step.event, lasted, step.tokens or NONE, step.worker, step.attempt or NONE


def workers(fleet: Fleet) -> list[str]:
    head = ("WORKER", "STATE", "LEASE LEFT", "OWNS", "RUNNING", "KV BLOCKS", "HOST", "MODEL")
    rows = [_worker(row, model) for model, found in fleet.workers.items() for row in found]
    lines = table(head, *rows) if rows else ["no worker is registered"]
    gateways = [(name, "late" if left < 0 else "live", seconds(left)) for name, left in fleet.gateways.items()]
    lines += [f"{row.worker_id} takes nothing: {clean(row.why)}" for row in _all(fleet) if row.why]
    return [*lines, "", *(table(("GATEWAY", "STATE", "LEASE LEFT"), *gateways) if gateways else ["no gateway lives"])]


def _all(fleet: Fleet) -> list[WorkerRow]:
    return [row for found in fleet.workers.values() for row in found]


def _worker(row: WorkerRow, model: str) -> tuple[object, ...]:
    load = row.load
    blocks = f"{load['kv_blocks_used']:g}/{load['kv_blocks_total']:g}" if "kv_blocks_total" in load else NONE
    host = f"{row.info.host}:{row.info.pid}" if row.info else NONE
    running = f"{load['num_running']:g}" if "num_running" in load else NONE
    return row.worker_id, row.state, seconds(row.lease_left_ms), row.num_owned, running, blocks, host, model


def held(found: Held) -> list[str]:
    rows = [(request_id, seconds(ms)) for request_id, ms in found.requests.items()]
    return table(("REQUEST", "HELD FOR"), *rows) if rows else [f"{found.worker} holds nothing"]


def letters(found: Sequence[Letter]) -> list[str]:
    rows = [(x.request_id, clock(x.died_at_ms), x.crashes, x.worker, x.service_class, x.tenant, x.model) for x in found]
    head = ("REQUEST", "DIED", "BLAMED", "LAST WORKER", "CLASS", "TENANT", "MODEL")
    return table(head, *rows) if rows else ["no dead letters"]


def dead_request(found: DeadRequest) -> list[str]:
    asked = ", ".join(f"{name} {clean(str(value))}" for name, value in found.params.items())
    return [*letters([found.letter]), f"  prompt of {found.prompt_tokens} tokens; {asked}", *request(found.timeline)]


def all_retried(done: AllRetried) -> list[str]:
    lines = [f"{row.request_id} runs again as {row.retried_as}" for row in done.retried]
    lines += [f"{request_id} cannot: {clean(why)}" for request_id, why in done.failed.items()]
    stopped = f"; stopped: {clean(done.stopped)}" if done.stopped else ""
    return [*lines, f"{len(done.retried)} run again, {done.left} letters are left{stopped}"]


def ledgers(found: Sequence[Ledger]) -> list[str]:
    lines: list[str] = []
    for ledger in found:
        sums = ", ".join(f"{name} {number}" for name, number in sorted(ledger.sums.items())) or "empty"
        verdict = f"{len(ledger.problems)} problems" if ledger.problems else "the books balance"
        lines += [f"{clean(ledger.model)}: {verdict} ({sums})", *(f"  {clean(words)}" for words in ledger.problems)]
    return lines or ["no model is registered"]
