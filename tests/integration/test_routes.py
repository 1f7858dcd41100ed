"""`headrace route` and `/operator/v1/routes` on the real server; what a gateway makes of the routes it finds."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import msgspec
import orjson
import pytest
from prometheus_client import CollectorRegistry
from typer.testing import CliRunner, Result

from deploy.cli import app
from gateway.models.catalogue import Catalogue
from loadtest.valkey import Valkey
from shared import keys
from shared.config import GatewaySettings
from shared.errors import ModelNotFound, Unavailable
from shared.observability import GatewayMetrics
from shared.redis_client import Scripts
from shared.registry import Registry
from shared.request_queue import Bounds
from shared.text.tokenizer import encode_blob
from tests.integration.queue_actors import MODEL, Actors
from tests.integration.test_operations import CARD
from tests.integration.test_operator_rest import KEY, OperatorClient, error_of
from tests.unit.shared.tokenizer_samples import blob_of, byte_level

Headrace = Callable[..., Awaitable[Result]]
OTHER = msgspec.structs.replace(CARD, name="other", revision="other@1")


@pytest.fixture
async def headrace(valkey: Valkey, actors: Actors) -> Headrace:
    await Registry(actors.scripts).publish_model(CARD, b"{}")

    async def run(*words: str) -> Result:
        return await asyncio.to_thread(CliRunner().invoke, app, ["route", *words, "--redis", valkey.url])

    return run


@pytest.fixture
async def rest(valkey: Valkey, actors: Actors) -> AsyncIterator[httpx.AsyncClient]:
    await Registry(actors.scripts).publish_model(CARD, b"{}")
    async with OperatorClient(valkey.url, KEY) as client:
        client.headers.update({"authorization": f"Bearer {KEY}", "x-headrace-operator": "ann"})
        yield client


async def stored(scripts: Scripts) -> dict[bytes, Any]:
    return {name: orjson.loads(fields) for name, fields in (await scripts.client.hgetall(keys.ROUTES)).items()}


async def test_a_route_is_set_shown_and_dropped_at_the_terminal(headrace: Headrace, scripts: Scripts) -> None:
    words = ("--target", "tiny=90", "--target", "new=10", "--fallback", "other", "--by", "ann")
    told = (await headrace("set", "chat", *words)).stdout
    assert re.search(r"chat +90.0% +tiny +other", told) and "no worker has registered new, other" in told
    entry = (await stored(scripts))[b"chat"]
    assert entry | {"at_ms": 0} == {
        "targets": {"tiny": 90.0, "new": 10.0}, "fallbacks": ["other"], "by": "ann", "at_ms": 0,
    }  # fmt: skip
    assert re.search(r"chat .*ann", (await headrace("show", "chat")).stdout)
    assert "chat is dropped" in (await headrace("drop", "chat")).stdout
    assert await stored(scripts) == {} and "there are no routes" in (await headrace("list")).stdout
    log = await scripts.client.xrange(keys.ROUTES_LOG)  # type: ignore[attr-defined]
    assert (log[0][1][b"event"], log[0][1][b"by"], len(log)) == (b"set", b"ann", 2)


async def test_the_line_behind_a_route_sets_the_same(headrace: Headrace, scripts: Scripts) -> None:
    told = (await headrace("set", "tiny", "--bound", "max_waiting=7", "--class-weight", "flex=2")).stdout
    before = await stored(scripts)
    (line,) = re.findall(r"^# redis-cli (HSET .*)$", told, re.M)
    await scripts.client.execute_command("DEL", keys.ROUTES)  # type: ignore[attr-defined]
    await scripts.client.execute_command(*shlex.split(line))  # type: ignore[attr-defined]
    assert await stored(scripts) == before and before[b"tiny"]["class_weights"] == {"flex": 2.0}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["set", "chat", "--target", "tiny=0"], "targets: Expected `float` > 0.0"),
        (["set", "chat", "--target", "tiny=much"], "--target tiny=much: must be NAME=NUMBER"),
        (["set", "chat", "--target", "tiny=nan"], "must be NAME=NUMBER"),
        (["set", "chat", "--bound", "max_requests=4"], "unknown field `max_requests`"),
        (["set", "chat", "--target", "chat2", "--bound", "max_waiting=1"], "set it at 'chat2'"),
        (["set", "a" * 257, "--target", "tiny"], "1 to 256 characters"),
        (["set", "loop", "--target", "pool"], "a cycle: pool -> loop -> pool"),
        (["drop", "none"], "no route none"),
        (["show", "none"], "no route none"),
    ],
)
async def test_what_is_wrong_is_said_at_the_terminal(
    headrace: Headrace, scripts: Scripts, words: list[str], said: str
) -> None:
    await scripts.client.hset(keys.ROUTES, "pool", '{"targets": {"loop": 1}}')
    result = await headrace(*words)
    assert (result.exit_code, said in result.output.replace("\n", " ")) == (1, True), result.output
    assert len(await stored(scripts)) == 1


async def test_over_rest_a_route_is_the_same_and_faults_name_the_field(rest: httpx.AsyncClient) -> None:
    path = "/operator/v1/routes/acme/chat"
    put = await rest.put(path, json={"targets": {"tiny": 1}})
    assert put.json()["data"]["ends"] == {"tiny": 1.0} and put.json()["data"]["route"]["by"].startswith("ann (")
    assert [line.split()[1] for line in put.json()["redis_cli"]] == ["HSET", "XADD"]
    assert (await rest.get("/operator/v1/routes")).json()["data"]["routes"] == [(await rest.get(path)).json()["data"]]
    refused = await rest.put(path, json={"targets": {"tiny": -1}})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "targets")
    assert error_of(await rest.put(path, content=b"{}", headers={"content-type": "text/plain"}))[0] == 415
    assert (await rest.delete(path)).json()["data"] == {"name": "acme/chat"}
    assert error_of(await rest.get(path)) == error_of(await rest.delete(path)) == (404, "route_not_found")


async def test_an_operator_sees_the_bounds_of_the_model(rest: httpx.AsyncClient) -> None:
    await rest.put("/operator/v1/routes/tiny", json={"max_waiting": 7})
    (row,) = (await rest.get("/operator/v1/queue")).json()["data"]
    assert row["bounds"]["max_waiting"] == 7 and row["model"] == MODEL


@pytest.fixture
async def catalogue(scripts: Scripts) -> Catalogue:
    """Two models, `tiny` with a worker's lease; routes as the tests write them."""
    for card in (CARD, OTHER):
        await Registry(scripts).publish_model(card, encode_blob(blob_of(byte_level())))
    await scripts.client.execute_command("ZADD", keys.lease(MODEL), "9999999999999", "w1")  # type: ignore[attr-defined]
    return Catalogue(GatewaySettings(), scripts, GatewayMetrics(CollectorRegistry()))


async def led_by(catalogue: Catalogue, scripts: Scripts, **routes: Any) -> None:
    for name, fields in routes.items():
        await scripts.client.hset(keys.ROUTES, name, orjson.dumps(fields))
    await catalogue._try_refresh()


async def test_names_are_models_and_routes_that_lead_to_one(catalogue: Catalogue, scripts: Scripts) -> None:
    await led_by(catalogue, scripts, chat={"targets": {"other": 1, "tiny": 9}}, soon={"targets": {"unborn": 1}})
    assert catalogue.names() == ["chat", "other", "tiny"]
    assert catalogue.card("chat") == CARD
    with pytest.raises(ModelNotFound, match="Available models: chat, other, tiny"):
        catalogue.candidates("none")
    with pytest.raises(Unavailable, match="no worker has registered the model 'soon' yet"):
        catalogue.card("soon")
    (candidate,) = catalogue.candidates("soon")
    with pytest.raises(Unavailable, match="'unborn'"):
        catalogue.card_of(candidate)


async def test_a_dead_target_is_passed_over_and_a_name_may_be_its_models(
    catalogue: Catalogue, scripts: Scripts
) -> None:
    await led_by(catalogue, scripts, other={"fallbacks": ["tiny"]}, tiny={"max_waiting": 3})
    assert [(c.model, c.reason) for c in catalogue.candidates("other")] == [("tiny", "no_workers"), ("other", "")]
    assert catalogue.routes.bounds(MODEL, Bounds(9, 9, 9)).max_waiting == 3
    await scripts.client.execute_command("HSET", keys.paused(MODEL), "by", "ann")  # type: ignore[attr-defined]
    await catalogue._try_refresh()
    assert [c.model for c in catalogue.candidates("other")] == ["other"]


async def test_a_key_and_a_conversation_stay_where_they_are(catalogue: Catalogue, scripts: Scripts) -> None:
    await led_by(catalogue, scripts, chat={"targets": {"other": 1, "tiny": 1}})
    assert {catalogue.candidates("chat")[0].model for _ in range(20)} == {"other", "tiny"}
    assert len({catalogue.candidates("chat", "a key")[0].model for _ in range(20)}) == 1
    assert {catalogue.candidates("chat", made_before="other@1")[0].model for _ in range(20)} == {"other"}
    assert {catalogue.candidates("chat", made_before="gone@1")[0].model for _ in range(20)} == {"other", "tiny"}


async def test_a_changed_route_is_followed_and_a_faulty_one_left_out(catalogue: Catalogue, scripts: Scripts) -> None:
    await led_by(catalogue, scripts, chat={"targets": {"other": 1}}, bad={"targets": {"tiny": 0}})
    assert (catalogue.candidates("chat")[0].model, "bad" in catalogue.routes) == ("other", False)
    await led_by(catalogue, scripts, chat={"targets": {"tiny": 1}})
    assert catalogue.candidates("chat")[0].model == "tiny"
