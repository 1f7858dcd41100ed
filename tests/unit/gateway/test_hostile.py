"""A few hundred of the hostile requests of `python -m loadtest fuzz`, through the real app around fakes."""

from __future__ import annotations

from dataclasses import replace

import httpx

from loadtest.edge.fuzz import Findings, attack_with
from loadtest.edge.hostile import fields_of, hostile_requests
from tests.unit.gateway.fakes import CARD, build_app


async def test_no_hostile_request_is_a_fault_of_ours() -> None:
    app = build_app()
    findings = Findings()
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        requests = hostile_requests(fields_of(app.openapi()), 11, 165)
        ours = [replace(each, content=each.content.replace(b"simulated", CARD.name.encode())) for each in requests]
        await attack_with(client, ours, findings)
    assert findings.faults == {}
    assert {200, 400, 404, 415} <= set(findings.statuses)
