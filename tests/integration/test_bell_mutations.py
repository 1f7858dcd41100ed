"""Each part of the bells in the scripts, and a test that fails when it is taken out."""

from __future__ import annotations

from shared.redis_client import Scripts
from tests.integration import test_bells as bells
from tests.integration.faults import MutatedScripts
from tests.integration.mutations import Defence, each_of, fails_without
from tests.integration.queue_actors import Actors
from tests.integration.queue_driver import timeless


async def what_a_dead_worker_held_wakes_as_many(actors: Actors) -> None:
    await bells.test_what_goes_back_wakes_as_many(actors, bells.die)


async def what_a_leaving_worker_held_wakes_as_many(actors: Actors) -> None:
    await bells.test_what_goes_back_wakes_as_many(actors, bells.unregister)


async def a_dead_worker_passes_its_ring_on(actors: Actors) -> None:
    await bells.test_who_is_gone_passes_its_ring_on(actors, bells.die)


async def a_leaving_worker_passes_its_ring_on(actors: Actors) -> None:
    await bells.test_who_is_gone_passes_its_ring_on(actors, bells.unregister)


async def a_cancelled_request_leaves_no_name(actors: Actors) -> None:
    await bells.test_a_worker_that_runs_nothing_of_a_stream_is_not_named_there(actors, "cancel")


LISTENS = "listen(worker, held)\nelse"
RINGS = "audit('admitted', id, tenant)\nring()"
DEFENCES = [
    Defence(bells.test_one_request_wakes_one_worker, "admit", RINGS),
    Defence(bells.test_one_request_wakes_one_worker, "admit", "local lacking = waiting -", "local lacking = 9 -"),
    Defence(bells.test_a_ring_is_heard_before_and_after_it_is_listened_for, "take", LISTENS, "else"),
    Defence(bells.test_asking_answers_the_bell, "take", "\nleave_bell(worker)"),
    Defence(bells.test_asking_answers_the_bell, "admit", "redis.call('PEXPIRE', key('bell', worker), BELL_MS)"),
    Defence(
        bells.test_a_worker_that_took_something_is_not_idle, "take", "redis.call('ZREM', base .. 'idle', worker)\n"
    ),
    Defence(bells.test_who_holds_least_is_woken_first, "take", "now - num_held * BY_LOAD", "now + num_held"),
    Defence(bells.test_a_worker_without_a_lease_is_passed_over, "admit", "lease and tonumber(lease) > now and", ""),
    Defence(
        bells.test_a_worker_that_asks_no_more_is_passed_over,
        "admit",
        "and tonumber(rank) % BY_LOAD > now - ASKS_AGAIN_MS",
    ),
    Defence(
        bells.test_pausing_wakes_nobody_and_resuming_as_many_as_wait,
        "admit",
        "or redis.call('EXISTS', base .. 'paused') == 1",
    ),
    Defence(bells.test_pausing_wakes_nobody_and_resuming_as_many_as_wait, "resume", "\nring()\n", "\n"),
    Defence(
        bells.test_pausing_wakes_nobody_and_resuming_as_many_as_wait, "take", "listen(worker, held)\n  return", "return"
    ),
    Defence(
        bells.test_pausing_wakes_nobody_and_resuming_as_many_as_wait,
        "resume",
        "lacking = lacking - 1",
        "lacking = 0",
    ),
    Defence(what_a_dead_worker_held_wakes_as_many, "reap", "\nring()\nreturn", "\nreturn"),
    Defence(what_a_leaving_worker_held_wakes_as_many, "unregister", "\nring()\n", "\n"),
    Defence(a_dead_worker_passes_its_ring_on, "reap", "\n  leave_bell(worker)\n", "\n"),
    Defence(a_leaving_worker_passes_its_ring_on, "unregister", "end\nleave_bell(worker)\n", "end\n"),
    Defence(bells.test_what_is_released_wakes_one, "release", "\nring()\n", "\n"),
    Defence(bells.test_what_a_witness_puts_back_wakes_one, "repair", "\nring()\n", "\n"),
    Defence(
        bells.test_what_a_woken_worker_has_no_room_for_wakes_another, "take", "  ring()\nend\nreturn", "end\nreturn"
    ),
    Defence(bells.test_whom_a_ring_does_not_bring_is_replaced, "heartbeat", "\nring()\n", "\n"),
    Defence(bells.test_whom_a_ring_does_not_bring_is_replaced, "heartbeat", "now - WOKEN_MS,", "'-inf',"),
    Defence(bells.test_a_drained_worker_is_rung_no_more, "drain", "redis.call('ZREM', base .. 'idle', worker)"),
    Defence(
        bells.test_a_drained_worker_is_rung_no_more,
        "take",
        "if redis.call('HGET', key('w', worker), 'draining') then return end",
    ),
    Defence(a_cancelled_request_leaves_no_name, "cancel", "redis.call('XGROUP', 'DELCONSUMER', stream, 'w', consumer)"),
]


class TimelessMutatedScripts(MutatedScripts):
    def text(self, name: str) -> str:
        return timeless(super().text(name))


@each_of(DEFENCES)
async def test_without_its_defence_it_fails(scripts: Scripts, defence: Defence) -> None:
    await fails_without(defence, scripts, bells.timeless_actors, TimelessMutatedScripts)
