"""Each defence of the scripts, and a schedule that fails when it is taken out. What never fails proves nothing."""

from __future__ import annotations

import pytest

from shared import keys
from shared.redis_client import Scripts
from shared.request_queue import Delivery, LeaseLost, Ticket
from tests.integration import test_ends as ends
from tests.integration.mutations import Defence, each_of, fails_without
from tests.integration.queue_actors import MODEL, NO_BOUNDS, Actors, tokens


async def command(actors: Actors, *words: str | bytes | int) -> None:
    await actors.scripts.client.execute_command(*words)  # type: ignore[attr-defined]


async def lose_tail(actors: Actors, delivery: Delivery) -> bytes:
    """Redis forgets token 7; returns what a client has seen of it."""
    await command(actors, "SET", keys.journal(MODEL, "r1"), delivery.journal)
    return delivery.journal + tokens(7)


async def an_old_owner_cannot_append(actors: Actors) -> None:
    old = await actors.begin_running()
    await actors.queue.release("r1", old.owner)
    new = await actors.take_one("w1")
    actors.tail[old.request_id, old.owner] = len(new.journal)
    assert (await actors.emit("w1", old, tokens(9))).fenced == ["r1"]


async def a_reaped_worker_is_told(actors: Actors) -> None:
    delivery = await actors.begin_running()
    await actors.lose("w1")
    await actors.reap()
    with pytest.raises(LeaseLost):
        await actors.emit("w1", delivery, tokens(8))


async def a_gap_is_not_closed_over(actors: Actors) -> None:
    delivery = await actors.begin_running()
    await lose_tail(actors, delivery)
    assert (await actors.emit("w1", delivery, tokens(8))).lost == {"r1": len(delivery.journal)}


async def a_repeat_appends_nothing(actors: Actors) -> None:
    delivery = await actors.begin_running()
    actors.forget_sent(delivery)
    await actors.emit("w1", delivery, tokens(7))
    assert await actors.ids("r1") == [7]


async def of_a_repeat_with_more_only_the_rest_is_new(actors: Actors) -> None:
    delivery = await actors.begin_running()
    actors.forget_sent(delivery)
    await actors.emit("w1", delivery, tokens(7) + tokens(8), num_tokens=2)
    assert await actors.ids("r1") == [7, 8]
    charged = await actors.scripts.client.hget(keys.base(MODEL) + "tenant:t", "vtime:default")
    assert charged == b"6", "4 of the prompt and 2 made"


async def nothing_is_published_that_is_not_in_a_journal(actors: Actors) -> None:
    delivery = await actors.begin_running()
    pubsub = actors.scripts.client.pubsub()
    await pubsub.subscribe(keys.channel(MODEL, "g1"))
    await pubsub.get_message(timeout=1)
    actors.forget_sent(delivery)
    await actors.emit("w1", delivery, tokens(9))
    await pubsub.ping()
    message = await pubsub.get_message(timeout=1)
    await pubsub.aclose()
    assert message["type"] == "pong"


async def after_a_silence_nobody_is_late(actors: Actors) -> None:
    await actors.begin_running()
    await command(actors, "ZADD", keys.lease(MODEL), 1, "w1")
    assert [(await actors.reap()).is_grace, (await actors.reap()).is_grace] == [True, True]


async def die(actors: Actors, worker: str, *, page: int = 200) -> None:
    await actors.lose(worker)
    while (await actors.queue.reap((), max_crashes=3, page=page)).has_more:
        pass


async def crashes(actors: Actors, request_id: str) -> int:
    return int(await actors.scripts.client.hget(keys.request(MODEL, request_id), "crashes") or 0)


async def who_makes_progress_is_not_blamed(actors: Actors) -> None:
    await actors.begin_running()
    await die(actors, "w1")
    assert await crashes(actors, "r1") == 0


async def who_kills_every_worker_is_dead_lettered(actors: Actors) -> None:
    await actors.admit("r1")
    for i in range(4):
        await actors.register(f"w{i}")
        await actors.take_one(f"w{i}")
        await die(actors, f"w{i}")
    assert await actors.state("r1") == "dead"


async def an_orphan_is_one_that_no_gateway_holds(actors: Actors) -> None:
    await actors.begin_running()
    await actors.queue.attach("r1", "g2")
    await actors.forget_grace()
    await actors.reap("g1")
    assert await actors.state("r1") == "running"


async def repair(actors: Actors, prefix: bytes, owner: str = "", *, send_prefix: bool = False) -> str:
    return (await actors.stream.repair("r1", "g1", prefix, owner, send_prefix=send_prefix)).verdict


async def what_a_client_saw_is_put_back(actors: Actors) -> None:
    delivery = await actors.begin_running()
    seen = await lose_tail(actors, delivery)
    await die(actors, "w1")
    await repair(actors, seen, send_prefix=True)
    assert await actors.ids("r1") == [7]


async def other_bytes_are_not_continued(actors: Actors) -> None:
    delivery = await actors.begin_running()
    assert await repair(actors, delivery.journal + tokens(9)) == "mismatch"


async def a_live_attempt_sends_again_what_was_lost(actors: Actors) -> None:
    delivery = await actors.begin_running()
    seen = await lose_tail(actors, delivery)
    assert await repair(actors, seen, delivery.owner, send_prefix=True) == "wait"


async def a_finished_journal_stays(actors: Actors) -> None:
    delivery = await actors.begin_running()
    await actors.finish("w1", delivery)
    assert await repair(actors, delivery.journal + tokens(9), send_prefix=True) == "contradiction"


async def two_witnesses_are_not_spliced(actors: Actors) -> None:
    delivery = await actors.begin_running()
    await die(actors, "w1")
    await repair(actors, delivery.journal + tokens(8), send_prefix=True)
    assert await repair(actors, delivery.journal + tokens(5, 6), send_prefix=True) == "contradiction"


async def a_forgotten_gateway_hears_again(actors: Actors) -> None:
    delivery = await actors.begin_running()
    await command(actors, "SREM", f"{keys.base(MODEL)}g:r1", "g1")
    await repair(actors, delivery.journal)
    assert (await actors.queue.heartbeat("w1", "nonce", b"{}")).owned["r1"][1] == ("g1",)


async def a_first_token_put_back_meets_its_start_deadline(actors: Actors) -> None:
    await actors.admit("r1", start_deadline_ms=60_000)
    await actors.register("w1")
    delivery = await actors.take_one("w1")
    await actors.queue.release("r1", delivery.owner)
    await repair(actors, delivery.journal + tokens(7), send_prefix=True)
    assert await actors.scripts.client.zcard(keys.deadlines(MODEL)) == 0


async def admission_repeated_admits_once(actors: Actors) -> None:
    await actors.admit("r1")
    await actors.admit("r1")
    assert (await actors.queue.counts())["waiting"] == 1


async def a_first_token_brought_back_meets_its_start_deadline(actors: Actors) -> None:
    ticket = Ticket("r1", "default", "t", 4, 8, 1, start_deadline_ms=60_000)
    await actors.queue.admit(ticket, b"body", NO_BOUNDS, gateway="g1", prefix=tokens(7), witness=True)
    assert await actors.scripts.client.zcard(keys.deadlines(MODEL)) == 0


async def what_is_past_its_deadline_is_not_begun(actors: Actors) -> None:
    await actors.admit("r1", deadline_ms=60_000)
    await command(actors, "ZADD", keys.deadlines(MODEL), 1, "r1")
    await actors.register("w1")
    assert await actors.take("w1") == []


async def suspect(actors: Actors, name: str) -> None:
    await actors.admit(name)
    await command(actors, "HSET", keys.request(MODEL, name), "crashes", 2)


async def a_suspect_is_tried_alone(actors: Actors) -> None:
    await actors.register("w1")
    await suspect(actors, "r1")
    await actors.admit("innocent")
    (delivery,) = await actors.take("w1")
    assert await actors.take("w1") == []
    await actors.emit("w1", delivery, tokens(7))
    assert [d.request_id for d in await actors.take("w1")] == ["innocent"]


async def a_suspect_waits_for_who_is_unproven(actors: Actors) -> None:
    await actors.register("w1")
    await actors.admit("innocent")
    (delivery,) = await actors.take("w1")
    await suspect(actors, "r1")
    assert await actors.take("w1") == []
    await actors.emit("w1", delivery, tokens(7))
    assert [d.request_id for d in await actors.take("w1")] == ["r1"]


async def an_old_owner_cannot_release(actors: Actors) -> None:
    old = await actors.begin_running()
    await actors.queue.release("r1", old.owner)
    await actors.take_one("w1")
    assert not await actors.queue.release("r1", old.owner)


async def one_of_two_gateways_leaves(actors: Actors) -> None:
    await actors.begin_running()
    await actors.queue.attach("r1", "g2")
    assert await actors.queue.detach("r1", "g1") == "left"


LEAVING_REPEATED = ends.test_leaving_repeated_after_a_lost_reply_gets_the_same_answer_whatever_happened_since
DEFENCES = [
    Defence(
        an_old_owner_cannot_append, "emit", "local is_owner, state = fields[1] == owner", "local is_owner, state = true"
    ),
    Defence(a_reaped_worker_is_told, "emit", "if not holds_lease(worker, nonce) then return {'nolease'} end"),
    Defence(a_gap_is_not_closed_over, "emit", "return 'lost', length", "return 'append', frames"),
    Defence(a_repeat_appends_nothing, "emit", "return 'there'", "return 'append', frames"),
    Defence(of_a_repeat_with_more_only_the_rest_is_new, "emit", "string.sub(frames, #there + 1)", "frames"),
    Defence(of_a_repeat_with_more_only_the_rest_is_new, "emit", "#detail == #frames and", "true and"),
    Defence(nothing_is_published_that_is_not_in_a_journal, "emit", "if #bad == 0 then", "if true then"),
    Defence(after_a_silence_nobody_is_late, "reap", "if now - last > lease_ms then", "if false then"),
    Defence(after_a_silence_nobody_is_late, "reap", "if now < grace then return reply('grace') end"),
    Defence(who_makes_progress_is_not_blamed, "reap", "if has_grown(id, request.taken_length) then", "if false then"),
    Defence(who_kills_every_worker_is_dead_lettered, "reap", "if crashes <= max_crashes then", "if true then"),
    Defence(an_orphan_is_one_that_no_gateway_holds, "reap", "redis.call('SCARD', key('g', id)) == 0", "true"),
    Defence(what_a_client_saw_is_put_back, "repair", "redis.call('SET', key('j', id), prefix)"),
    Defence(other_bytes_are_not_continued, "repair", "redis.sha1hex(head) == digest", "true"),
    Defence(a_live_attempt_sends_again_what_was_lost, "repair", "request.owner == owner then", "false then"),
    Defence(a_finished_journal_stays, "repair", "if is_done(request.state) then return {'contradiction'} end"),
    Defence(two_witnesses_are_not_spliced, "repair", "if kept > 0 and", "if false and"),
    Defence(a_forgotten_gateway_hears_again, "repair", "redis.call('SADD', key('g', id), gateway) == 1", "false"),
    Defence(a_first_token_put_back_meets_its_start_deadline, "repair", "if tokens > 0 then", "if false then"),
    Defence(admission_repeated_admits_once, "admit", "if state then return {'duplicate', state} end"),
    Defence(a_first_token_brought_back_meets_its_start_deadline, "admit", "and tokens == 0 and", "and"),
    Defence(what_is_past_its_deadline_is_not_begun, "take", "if deadline and", "if false and"),
    Defence(a_suspect_is_tried_alone, "take", "if tries_suspect() then is_closed = true end"),
    Defence(a_suspect_waits_for_who_is_unproven, "take", "if has_unproven() then return false end"),
    Defence(an_old_owner_cannot_release, "release", "or request.owner ~= owner"),
    Defence(one_of_two_gateways_leaves, "detach", "redis.call('SCARD', key('g', id)) == 0", "true"),
    Defence(LEAVING_REPEATED, "detach", "'SISMEMBER', key('g', id), gateway) == 1", "'TIME')"),
    Defence(LEAVING_REPEATED, "detach", "redis.call('SADD', key('g', id), gateway)"),
]
SCHEDULES = {defence.schedule.__name__: defence.schedule for defence in DEFENCES}


@pytest.mark.parametrize("name", SCHEDULES)
async def test_the_schedule_holds(actors: Actors, name: str) -> None:
    await SCHEDULES[name](actors)
    assert await actors.problems() == []


@each_of(DEFENCES)
async def test_without_its_defence_it_fails(scripts: Scripts, defence: Defence) -> None:
    await fails_without(defence, scripts)
