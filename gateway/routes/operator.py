"""`/operator/v1`: what the `headrace` command shows and does, for consoles and scripts, under the operator's key.

Every answer is `{"data": ..., "redis_cli": [...]}`, the same JSON as the command's `--json`; errors have OpenAI's
shape. The header `x-headrace-operator` names who acts, for the audit.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from typing import Annotated, Any, cast

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gateway.routes.admitting.arrival import json_bytes
from shared.errors import InvalidRequest
from shared.operations import adapters, reports, routing
from shared.operations.access import Operators
from shared.operations.desk import Desk
from shared.operations.reports import Report
from shared.operations.scaling.wanted import Policy

router = APIRouter(prefix="/operator/v1", tags=["operator"])
ROUTE_BODY = {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}}
NAME_HEADER = "x-headrace-operator"


@dataclass(frozen=True, slots=True)
class Operator:
    """Somebody with the key, at the desk."""

    desk: Desk
    by: str


async def _operator(http: HttpRequest) -> AsyncGenerator[Operator]:
    operators = cast("Operators", http.app.state.operators)
    address = http.client.host if http.client else "unknown"
    by = operators.identify(http.headers.get("authorization", ""), http.headers.get(NAME_HEADER, ""), address)
    async with operators.desk() as desk:
        yield Operator(desk, by)


OperatorDep = Annotated[Operator, Depends(_operator)]
Count = Annotated[int, Query(ge=1, le=1000)]
Why = Annotated[str, Query(max_length=500)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class PauseBody(_Body):
    why: str = ""


class DrainBody(_Body):
    """`now`: give back at once what runs."""

    now: bool = False


class ScalingQuery(BaseModel):
    """What is wanted of the fleet, for this answer only. `current`: how many workers the caller has started."""

    model_config = ConfigDict(extra="forbid")

    model: str = ""
    target_wait_s: Annotated[float | None, Field(gt=0)] = None
    utilisation: Annotated[float | None, Field(gt=0, le=1)] = None
    min_workers: Annotated[int | None, Field(ge=0, le=10_000)] = None
    max_workers: Annotated[int | None, Field(ge=1, le=10_000)] = None
    idle_s: Annotated[float | None, Field(ge=0)] = None
    tolerance: Annotated[float | None, Field(ge=0, le=1)] = None
    current: Annotated[int | None, Field(ge=0, le=10_000)] = None

    def policy(self, usual: Policy) -> Policy:
        """Raises InvalidRequest where the bounds contradict each other."""
        policy = replace(usual, **self.model_dump(exclude_none=True, exclude={"model", "current"}))
        if policy.min_workers > policy.max_workers:
            words = f"min_workers {policy.min_workers} is more than max_workers {policy.max_workers}"
            raise InvalidRequest(words, param="min_workers")
        return policy


class AdapterBody(_Body):
    """`path`: a folder on the worker's machine."""

    name: str
    path: str


@router.get("/queue")
async def queue(operator: OperatorDep, model: str = "") -> Response:
    return _answer(await reports.queue(operator.desk, model))


@router.get("/scaling")
async def scaling(operator: OperatorDep, query: Annotated[ScalingQuery, Query()]) -> Response:
    """How many workers each model wants. What the query does not say is as the gateway's settings have it."""
    policy = query.policy(operator.desk.scaling)
    return _answer(await reports.scaling(operator.desk, query.model, policy, query.current))


@router.get("/workers")
async def workers(operator: OperatorDep) -> Response:
    return _answer(await reports.workers(operator.desk))


@router.get("/workers/{worker_id}")
async def worker(operator: OperatorDep, worker_id: str) -> Response:
    return _answer(await reports.worker(operator.desk, worker_id))


@router.get("/fsck")
async def fsck(operator: OperatorDep, model: str = "") -> Response:
    return _answer(await reports.fsck(operator.desk, model))


@router.get("/requests/{request_id}")
async def request(operator: OperatorDep, request_id: str) -> Response:
    return _answer(await reports.request(operator.desk, request_id))


@router.post("/requests/{request_id}/cancel")
async def cancel(operator: OperatorDep, request_id: str) -> Response:
    return _answer(await reports.cancel(operator.desk, request_id, operator.by))


@router.post("/workers/{worker_id}/drain")
async def drain(operator: OperatorDep, worker_id: str, body: DrainBody | None = None) -> Response:
    is_now = body is not None and body.now
    return _answer(await reports.drain(operator.desk, worker_id, operator.by, is_now=is_now))


@router.get("/adapters")
async def list_adapters(operator: OperatorDep) -> Response:
    return _answer(await adapters.listed(operator.desk))


@router.post("/workers/{worker_id}/adapters")
async def load_adapter(operator: OperatorDep, worker_id: str, body: AdapterBody) -> Response:
    """Answers when the adapter is served, or refused; after a minute with how it stands."""
    return _answer(await adapters.load(operator.desk, worker_id, body.name, body.path, operator.by))


@router.delete("/workers/{worker_id}/adapters/{name}")
async def unload_adapter(operator: OperatorDep, worker_id: str, name: str) -> Response:
    """Its requests on this worker end first, or go back to the queue."""
    return _answer(await adapters.unload(operator.desk, worker_id, name, operator.by))


@router.post("/models/{model:path}/pause")
async def pause(operator: OperatorDep, model: str, body: PauseBody | None = None) -> Response:
    return _answer(await reports.pause(operator.desk, model, operator.by, body.why if body else ""))


@router.post("/models/{model:path}/resume")
async def resume(operator: OperatorDep, model: str) -> Response:
    return _answer(await reports.resume(operator.desk, model, operator.by))


@router.get("/dead")
async def dead_letters(operator: OperatorDep, model: str = "", count: Count = 100) -> Response:
    return _answer(await reports.dead_letters(operator.desk, model, count))


@router.get("/dead/{request_id}")
async def dead_letter(operator: OperatorDep, request_id: str) -> Response:
    return _answer(await reports.dead_letter(operator.desk, request_id))


@router.post("/dead/{request_id}/retry")
async def retry(operator: OperatorDep, request_id: str) -> Response:
    return _answer(await reports.retry(operator.desk, request_id, operator.by))


@router.post("/dead/retry")
async def retry_all(operator: OperatorDep, model: str = "", count: Count = 1000) -> Response:
    """The oldest letters first, as many as the queue has room for; `stopped` says why there were no more."""
    return _answer(await reports.retry_all(operator.desk, model, operator.by, count))


@router.delete("/dead/{request_id}")
async def drop(operator: OperatorDep, request_id: str, why: Why = "") -> Response:
    return _answer(await reports.drop(operator.desk, request_id, operator.by, why))


@router.get("/routes")
async def routes(operator: OperatorDep) -> Response:
    return _answer(await routing.routes(operator.desk))


@router.get("/routes/{name:path}")
async def route(operator: OperatorDep, name: str) -> Response:
    return _answer(await routing.route(operator.desk, name))


@router.put("/routes/{name:path}", openapi_extra={"requestBody": ROUTE_BODY})
async def set_route(http: HttpRequest, operator: OperatorDep, name: str) -> Response:
    """The whole entry, in the place of what was there; `by` and `at_ms` are ours to say."""
    return _answer(await routing.set_route(operator.desk, name, await json_bytes(http), operator.by))


@router.delete("/routes/{name:path}")
async def drop_route(operator: OperatorDep, name: str) -> Response:
    return _answer(await routing.drop_route(operator.desk, name, operator.by))


def _answer(report: Report[Any]) -> Response:
    return Response(report.json(), media_type="application/json")
