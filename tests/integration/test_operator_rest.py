"""`/operator/v1` against a queue on the real server: the key, who acts, the same answers as the commands."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import orjson
import pytest
from fastapi import FastAPI

from gateway.http.errors import install_error_handlers
from gateway.routes import operator
from loadtest.valkey import Valkey
from shared import keys
from shared.config import GatewaySettings, load
from shared.errors import ConfigurationError
from shared.operations.access import Operators
from shared.registry import Registry
from shared.schemas import WorkerInfo
from tests.integration.queue_actors import MODEL, Actors
from tests.integration.test_operations import CARD, admit, audited, kill

KEY = "an operator's key"


@pytest.fixture
async def rest(valkey: Valkey, actors: Actors) -> AsyncIterator[httpx.AsyncClient]:
    """A client with the key, and a name."""
    await Registry(actors.scripts).publish_model(CARD, b"{}")
    async with OperatorClient(valkey.url, KEY) as client:
        client.headers.update({"authorization": f"Bearer {KEY}", "x-headrace-operator": "ann"})
        yield client
    assert await actors.problems() == []


class OperatorClient(httpx.AsyncClient):
    """A gateway's operator routes under this key."""

    def __init__(self, redis_url: str, key: str | None) -> None:
        app = FastAPI()
        install_error_handlers(app)
        app.include_router(operator.router)
        settings = GatewaySettings.model_validate({"redis_url": redis_url, "operator_key": key})
        self.operators = app.state.operators = Operators(settings)
        super().__init__(transport=httpx.ASGITransport(app), base_url="http://gateway")

    async def __aexit__(self, *error: Any) -> None:
        await self.operators.stop()
        await super().__aexit__(*error)


def error_of(answer: httpx.Response) -> tuple[int, str]:
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return answer.status_code, error["code"]


PATHS = [
    ("GET", "/queue"), ("GET", "/scaling"), ("GET", "/workers"), ("GET", "/workers/w1"), ("GET", "/fsck"),
    ("GET", "/requests/r1"), ("POST", "/requests/r1/cancel"),
    ("POST", "/workers/w1/drain"), ("POST", "/models/tiny/pause"), ("POST", "/models/tiny/resume"), ("GET", "/dead"),
    ("GET", "/dead/r1"), ("POST", "/dead/r1/retry"), ("POST", "/dead/retry"), ("DELETE", "/dead/r1"),
    ("GET", "/routes"), ("GET", "/routes/a/b"), ("PUT", "/routes/a"), ("DELETE", "/routes/a"),
    ("GET", "/adapters"), ("POST", "/workers/w1/adapters"), ("DELETE", "/workers/w1/adapters/poet"),
]  # fmt: skip


def test_the_list_of_paths_is_complete() -> None:
    known = {(method, route.path) for route in operator.router.routes for method in route.methods}  # type: ignore[attr-defined]
    assert len(known) == len(PATHS)


@pytest.mark.parametrize(("method", "path"), PATHS)
async def test_nothing_is_shown_or_done_without_the_key(valkey: Valkey, method: str, path: str) -> None:
    async with OperatorClient(valkey.url, KEY) as client:
        for header in ({}, {"authorization": "Bearer another key, as long"}, {"authorization": KEY}):
            answer = await client.request(method, f"/operator/v1{path}", headers=header)
            assert error_of(answer) == (401, "invalid_operator_key")
            assert answer.headers["www-authenticate"] == "Bearer"


async def test_it_is_off_until_there_is_a_key_and_says_how_to_switch_it_on(valkey: Valkey) -> None:
    async with OperatorClient(valkey.url, None) as client:
        answer = await client.get("/operator/v1/queue", headers={"authorization": "Bearer "})
        assert error_of(answer) == (403, "operator_disabled")
        assert "HEADRACE_OPERATOR_KEY" in answer.text


def test_a_key_too_short_to_be_one_is_refused_at_start_and_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_OPERATOR_KEY", "hunter2")
    with pytest.raises(ConfigurationError, match=r"HEADRACE_OPERATOR_KEY: .*16") as refused:
        load(GatewaySettings)
    assert "hunter2" not in str(refused.value)
    assert KEY not in repr(GatewaySettings.model_validate({"operator_key": KEY}))


async def test_pause_show_resume(rest: httpx.AsyncClient, actors: Actors) -> None:
    await admit(actors, "r1")
    assert (await rest.post("/operator/v1/models/tiny/pause", json={"why": "bad weights"})).status_code == 200
    (row,) = (await rest.get("/operator/v1/queue")).json()["data"]
    assert (row["counts"]["waiting"], row["paused"]["why"]) == (1, "bad weights")
    assert (await rest.post(f"/operator/v1/models/{MODEL}/resume")).json()["data"] == [MODEL]
    assert {by for _, _, by in await audited(actors)} == {"ann (127.0.0.1)"}


async def test_a_request_is_shown_and_cancelled(rest: httpx.AsyncClient, actors: Actors) -> None:
    await admit(actors, "r1")
    assert (await rest.get("/operator/v1/requests/r1")).json()["data"]["steps"][0]["event"] == "queued"
    assert (await rest.post("/operator/v1/requests/r1/cancel")).json()["data"]["state"] == "cancelled"
    assert error_of(await rest.get("/operator/v1/requests/unknown")) == (404, "request_not_found")


async def test_a_worker_is_shown_and_drained(rest: httpx.AsyncClient, actors: Actors) -> None:
    info = WorkerInfo(worker_id="w1", model=MODEL, backend="none", host="h", pid=1, max_num_seqs=8, kv_blocks=64)
    await actors.queue.register("w1", "nonce", msgspec.json.encode(info))
    await admit(actors, "r1")
    await actors.take_one("w1")
    assert (await rest.post("/operator/v1/workers/w1/drain", json={"now": True})).status_code == 200
    (row,) = (await rest.get("/operator/v1/workers")).json()["data"]["workers"][MODEL]
    assert (row["worker_id"], row["state"]) == ("w1", "draining")
    assert row["info"]["host"] == "h"
    assert (await rest.get("/operator/v1/workers/w1")).json()["data"]["requests"].keys() == {"r1"}
    assert error_of(await rest.post("/operator/v1/workers/w2/drain")) == (404, "worker_not_found")


async def test_dead_letters_are_listed_shown_retried_dropped(rest: httpx.AsyncClient, actors: Actors) -> None:
    for request_id in ("first", "second"):
        await admit(actors, request_id)
        await kill(actors, request_id)
    assert [x["request_id"] for x in (await rest.get("/operator/v1/dead")).json()["data"]] == ["second", "first"]
    assert (await rest.get("/operator/v1/dead/first")).json()["data"]["prompt_tokens"] == 3
    new_id = (await rest.post("/operator/v1/dead/first/retry")).json()["data"]["retried_as"]
    assert await actors.state(new_id) == "waiting"
    assert (await rest.delete("/operator/v1/dead/second", params={"why": "known"})).status_code == 200
    assert error_of(await rest.delete("/operator/v1/dead/second")) == (404, "dead_letter_not_found")


async def test_all_dead_letters_are_retried_and_what_there_is_no_room_for_stays(
    rest: httpx.AsyncClient, actors: Actors
) -> None:
    for request_id in ("first", "second"):
        await admit(actors, request_id)
        await kill(actors, request_id)
    done = (await rest.post("/operator/v1/dead/retry", params={"count": 1})).json()["data"]
    assert ([row["request_id"] for row in done["retried"]], done["stopped"], done["left"]) == (["first"], "", 1)
    done = (await rest.post("/operator/v1/dead/retry", params={"model": "tiny"})).json()["data"]
    assert ([row["request_id"] for row in done["retried"]], done["left"]) == (["second"], 0)
    assert {by for event, _, by in await audited(actors) if event == "retried"} == {"ann (127.0.0.1)"}
    assert error_of(await rest.post("/operator/v1/dead/retry", params={"count": 1001}))[0] == 400


async def test_bad_bodies_are_refused_in_openais_shape(rest: httpx.AsyncClient) -> None:
    for body in (b'{"reason": "x"}', b'{"why": 7}', b"not json"):
        answer = await rest.post("/operator/v1/models/tiny/pause", content=body)
        assert error_of(answer)[0] == 400, answer.text


async def test_books_that_do_not_balance_are_told(rest: httpx.AsyncClient, actors: Actors) -> None:
    client: Any = actors.scripts.client
    await client.hincrby(keys.counts(MODEL), "waiting", 1)
    answer = orjson.loads((await rest.get("/operator/v1/fsck")).content)
    assert "counts.waiting is 1" in answer["data"][0]["problems"][0] and answer["redis_cli"]
    await client.hincrby(keys.counts(MODEL), "waiting", -1)


async def test_a_server_that_is_away_is_a_503() -> None:
    async with OperatorClient("redis://127.0.0.1:1/0", KEY) as client:
        answer = await client.get("/operator/v1/queue", headers={"authorization": f"Bearer {KEY}"})
        assert error_of(answer) == (503, "server_is_overloaded")
