"""Batches on a real store: every way one ends, who takes over, and that a line has one answer whatever happens."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from gateway.batches.lines import parse_line
from gateway.http.options import part_key
from gateway.store.batch_rows import BatchStatus
from gateway.store.batch_runs import Answer, Lease, LeaseGone
from gateway.store.paging import Page
from gateway.store.schema import files
from shared.access.entries import Tenant
from shared.errors import AuthenticationFailed, BatchNotFound, FileNotFound, InvalidRequest, ModelNotFound
from tests.integration.batch_office import Endpoint, Reply, gateway_on, line

REFUSED: Reply = (429, {"retry-after-ms": "1000"}, {"error": {"code": "rate_limit_exceeded"}})
BAD: Reply = (400, {}, {"error": {"code": "invalid_request_error", "param": "messages"}})


def numbered(number: int) -> list[dict[str, Any]]:
    return [line(f"l{i}", body={"model": "m", "n": i}) for i in range(number)]


async def test_every_line_is_answered_in_one_of_two_files(tmp_path: Path) -> None:
    used = {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
    endpoint = Endpoint(lambda b, times: BAD if b["n"] % 3 == 0 else (200, {}, {"n": b["n"], "usage": used}))
    async with gateway_on(tmp_path, endpoint) as gateway:
        batch = await gateway.over(await gateway.make(*numbered(20)))
        done, failed = await gateway.lines_of(batch.output_file_id), await gateway.lines_of(batch.error_file_id)
        assert await gateway.runs.answered(batch.id) == set()
    assert batch.status is BatchStatus.COMPLETED
    assert (batch.num_lines, batch.num_completed, batch.num_failed) == (20, 13, 7)
    assert (batch.usage["input_tokens"], batch.usage["output_tokens"], batch.usage["cached_tokens"]) == (91, 26, 52)
    assert sorted(done.keys() | failed.keys()) == sorted(f"l{i}" for i in range(20))
    assert done["l4"]["response"]["body"]["n"] == 4 and failed["l3"]["response"]["status_code"] == 400


async def test_a_file_whose_form_is_wrong_fails_before_anything_is_asked(tmp_path: Path) -> None:
    endpoint = Endpoint()
    async with gateway_on(tmp_path, endpoint) as gateway:
        batch = await gateway.over(await gateway.make(line("a"), b"{", line("a"), line("b", method="GET")))
    assert batch.status is BatchStatus.FAILED and endpoint.asked == []
    assert [(fault["line"], fault["code"]) for fault in batch.faults] == [
        (2, "invalid_json_line"),
        (3, "duplicate_custom_id"),
        (4, "invalid_method"),
    ]


async def test_a_refused_line_waits_and_those_behind_it(tmp_path: Path) -> None:
    endpoint = Endpoint(lambda body, times: REFUSED if body["n"] == 1 and times < 4 else (200, {}, {}))
    async with gateway_on(tmp_path, endpoint) as gateway:
        batch = await gateway.over(await gateway.make(*numbered(3)))
        keys = [parse_line(n + 1, b'{"custom_id":"l","method":"POST","url":"/","body":{"model":"m"}}', "/", 99)
                for n in range(3)]  # fmt: skip
    assert batch.num_completed == 3
    order = [[key.key_hash(batch.id) for key in keys].index(inside.key_hash) for inside in endpoint.asked]
    assert order == [0, 1, 1, 1, 1, 2]


async def test_no_more_are_under_way_than_there_is_room(tmp_path: Path) -> None:
    endpoint = Endpoint(lambda body, times: None)
    async with gateway_on(tmp_path, endpoint, room=5) as gateway:
        batch = await gateway.make(*numbered(20))
        await endpoint.until(lambda: len(endpoint.asked) == 5)
        await gateway.desk.cancel(batch.id, batch.tenant)
        await gateway.over(batch)
    assert len(endpoint.asked) == 5


async def test_a_cancelled_batch_keeps_what_is_done_and_names_the_rest(tmp_path: Path) -> None:
    endpoint = Endpoint(lambda body, times: (200, {}, {}) if body["n"] < 3 else None)
    async with gateway_on(tmp_path, endpoint) as gateway:
        batch = await gateway.make(*numbered(10))
        await endpoint.until(lambda: len(endpoint.asked) == 10)
        assert (await gateway.desk.cancel(batch.id, batch.tenant)).status is BatchStatus.CANCELLING
        batch = await gateway.over(batch)
        done, left = await gateway.lines_of(batch.output_file_id), await gateway.lines_of(batch.error_file_id)
        assert (await gateway.desk.cancel(batch.id, batch.tenant)).status is BatchStatus.CANCELLED
    assert sorted(done) == ["l0", "l1", "l2"] and len(left) == 7
    assert {answer["error"]["code"] for answer in left.values()} == {"batch_cancelled"}
    assert set(list(endpoint.runs.values())[3:]) <= endpoint.cancelled and batch.status is BatchStatus.CANCELLED
    assert (batch.num_completed, batch.num_failed) == (3, 7)


async def test_what_is_not_done_when_the_window_ends_is_expired(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("gateway.batches.desk.WINDOW_MS", 1500)
    endpoint = Endpoint(lambda body, times: (200, {}, {}) if body["n"] < 2 else None)
    async with gateway_on(tmp_path, endpoint) as gateway:
        batch = await gateway.over(await gateway.make(*numbered(5)))
        done, late = await gateway.lines_of(batch.output_file_id), await gateway.lines_of(batch.error_file_id)
    assert batch.status is BatchStatus.EXPIRED
    assert sorted(done) == ["l0", "l1"]
    assert {answer["error"]["code"] for answer in late.values()} == {"batch_expired"} and len(late) == 3
    assert all(0 < inside.deadline_ms <= 1500 for inside in endpoint.asked)


async def test_another_gateway_goes_on_and_asks_only_for_what_has_no_answer(tmp_path: Path) -> None:
    held = Endpoint(lambda body, times: (200, {}, {"by": "first"}) if body["n"] < 4 else None)
    async with gateway_on(tmp_path, held, "first") as first:
        batch = await first.make(*numbered(8))
        await held.until(lambda: len(held.asked) == 8)
        while len(await first.runs.answered(batch.id)) < 4:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    second_endpoint = Endpoint(lambda body, times: (200, {}, {"by": "second"}))
    async with gateway_on(tmp_path, second_endpoint, "second") as second:
        batch = await second.over(batch)
        done = await second.lines_of(batch.output_file_id)
    assert [answer["response"]["body"]["by"] for _, answer in sorted(done.items())] == ["first"] * 4 + ["second"] * 4
    assert {inside.key_hash for inside in second_endpoint.asked} == set(list(held.runs)[4:])


async def test_a_gateway_that_shows_no_life_loses_its_batch_and_can_write_nothing_more(tmp_path: Path) -> None:
    endpoint = Endpoint(lambda body, times: None)
    async with gateway_on(tmp_path, endpoint, "hung") as hung:
        batch = await hung.make(*numbered(3))
        await endpoint.until(lambda: len(endpoint.asked) == 3)
        run = hung.crew._runs[batch.id]
        hung.runs.renew = lambda lease: asyncio.Event().wait()  # type: ignore[assignment]
        async with gateway_on(tmp_path, Endpoint(), "other") as other:
            batch = await other.over(batch)
        assert batch.num_completed == 3
        with pytest.raises(LeaseGone):
            await hung.runs.record(Lease(batch.id, run.batch.fence), [Answer(1, True, "twice")])


async def test_a_batch_cancelled_while_nobody_computes_it_cancels_what_was_in_the_queue(tmp_path: Path) -> None:
    endpoint = Endpoint(lambda body, times: None)
    async with gateway_on(tmp_path, endpoint, "first") as first:
        batch = await first.make(*numbered(3))
        await endpoint.until(lambda: len(endpoint.asked) == 3)
        await first.crew.stop()
        await first.desk.cancel(batch.id, batch.tenant)
    async with gateway_on(tmp_path, endpoint, "second") as second:
        batch = await second.over(batch)
    assert batch.status is BatchStatus.CANCELLED
    assert endpoint.cancelled == set(endpoint.runs.values()) and len(endpoint.asked) == 3


async def test_of_a_line_with_several_prompts_each_ones_run_is_cancelled(tmp_path: Path) -> None:
    endpoint = Endpoint(lambda body, times: None)
    async with gateway_on(tmp_path, endpoint, "first") as first:
        batch = await first.make(line("l", body={"model": "m", "prompt": ["a", "b", "c"]}))
        await endpoint.until(lambda: len(endpoint.asked) == 1)
        endpoint.runs |= {part_key(endpoint.asked[0].key_hash, part): f"part{part}" for part in (1, 2)}
        await first.crew.stop()
        await first.desk.cancel(batch.id, batch.tenant)
    async with gateway_on(tmp_path, endpoint, "second") as second:
        await second.over(batch)
    assert endpoint.cancelled == {"r0", "part1", "part2"}


async def test_an_answer_is_recorded_once(tmp_path: Path) -> None:
    endpoint = Endpoint(lambda body, times: None)
    async with gateway_on(tmp_path, endpoint) as gateway:
        batch = await gateway.make(*numbered(2))
        await endpoint.until(lambda: len(endpoint.asked) == 2)
        lease = Lease(batch.id, gateway.crew._runs[batch.id].batch.fence)
        for text in ("first", "again"):
            await gateway.runs.record(lease, [Answer(1, True, text)])
        assert [answer.text for answer in await gateway.runs.answers(batch.id, 0, 10)] == ["first"]
        assert (await gateway.desk.find(batch.id, batch.tenant)).num_completed == 1


async def test_a_key_that_is_gone_answers_what_is_left(tmp_path: Path) -> None:
    def gone(_: str) -> Tenant:
        raise AuthenticationFailed("the key is not known any more")

    async with gateway_on(tmp_path, Endpoint(), tenant_of=gone) as gateway:
        batch = await gateway.over(await gateway.make(*numbered(2)))
        answers = (await gateway.lines_of(batch.error_file_id)).values()
    assert [answer["response"]["body"]["error"]["code"] for answer in answers] == ["invalid_api_key"] * 2


async def test_a_model_that_does_not_exist_fails_the_batch(tmp_path: Path) -> None:
    def missing(name: str) -> None:
        raise ModelNotFound(f"The model '{name}' does not exist", param="model")

    async with gateway_on(tmp_path, Endpoint(), check_model=missing) as gateway:
        batch = await gateway.over(await gateway.make(line("a"), line("b")))
    assert [(fault["code"], fault["line"]) for fault in batch.faults] == [("model_not_found", 1)]


async def test_what_is_anothers_is_not_there(tmp_path: Path) -> None:
    async with gateway_on(tmp_path, Endpoint()) as gateway:
        batch = await gateway.over(await gateway.make(line("a")))
        for call in (gateway.desk.find(batch.id, "other"), gateway.desk.cancel(batch.id, "other")):
            with pytest.raises(BatchNotFound):
                await call
        for file_id in (batch.input_file_id, batch.output_file_id):
            with pytest.raises(FileNotFound):
                await gateway.library.open(file_id, "other")


async def test_the_input_of_a_batch_under_way_stays(tmp_path: Path) -> None:
    endpoint = Endpoint(lambda body, times: None)
    async with gateway_on(tmp_path, endpoint) as gateway:
        batch = await gateway.make(line("a"))
        with pytest.raises(InvalidRequest, match="under way"):
            await gateway.library.remove(batch.input_file_id, batch.tenant)
        await gateway.desk.cancel(batch.id, batch.tenant)
        await gateway.over(batch)
        await gateway.library.remove(batch.input_file_id, batch.tenant)


async def test_files_that_are_over_and_strays_are_swept(tmp_path: Path, monkeypatch: Any) -> None:
    async with gateway_on(tmp_path, Endpoint()) as gateway:
        kept, over = await gateway.upload(b"kept"), await gateway.upload(b"over")
        async with gateway.database.writing() as connection:
            await connection.execute(update(files).where(files.c.id == over).values(expires_at_ms=1))
        with pytest.raises(FileNotFound):
            await gateway.library.find(over, "anonymous")
        async with gateway.library.blobs.writing("file-stray") as blob:
            await blob.write(b"no row")
        monkeypatch.setattr("gateway.files.library._STRAY_S", -60.0)
        assert await gateway.library.sweep(strays_too=True) == 2
        assert [path.name for path in (tmp_path / "files").iterdir()] == [kept]


async def test_lists_go_on_behind_what_was_seen(tmp_path: Path) -> None:
    async with gateway_on(tmp_path, Endpoint()) as gateway:
        ids = [await gateway.upload(b"x") for _ in range(5)]
        for is_ascending, expected in ((True, sorted(ids)), (False, sorted(ids, reverse=True))):
            seen: list[str] = []
            while True:
                page = await gateway.library.page("anonymous", Page(2, seen[-1] if seen else "", is_ascending), "")
                seen += [file.id for file in page.items]
                if not page.has_more:
                    break
            assert sorted(seen, reverse=not is_ascending) == expected and len(seen) == 5
        with pytest.raises(InvalidRequest, match="after"):
            await gateway.library.page("anonymous", Page(2, "file-none"), "")
