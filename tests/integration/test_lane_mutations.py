"""Each defence of lanes in the scripts, and a test that fails when it is taken out."""

from __future__ import annotations

from shared.redis_client import Scripts
from tests.integration import test_lanes as lanes
from tests.integration.faults import MutatedScripts
from tests.integration.mutations import Defence, each_of, fails_without


class SteadyMutations(MutatedScripts):
    def text(self, name: str) -> str:
        return lanes.steady(super().text(name))


DEFENCES = [
    Defence(
        lanes.test_who_served_a_prefix_goes_first_and_others_take_what_is_behind_it,
        "take",
        "not choice.lane or choice.is_mine or",
        "true or",
    ),
    Defence(
        lanes.test_others_take_it_when_its_time_is_over_and_it_is_counted,
        "take",
        "tonumber(words[6]) <= now) then",
        "false) then",
    ),
    Defence(
        lanes.test_its_own_goes_before_who_is_in_turn_also_when_its_time_is_over,
        "take",
        "if not mine or mine.id == turn.id then",
        "if true then",
    ),
    Defence(
        lanes.test_what_its_worker_took_out_of_turn_goes_on_elsewhere_when_it_dies,
        "take",
        "if not choice.is_next then",
        "if false then",
    ),
    Defence(lanes.test_a_hot_prefix_spreads, "admit", "redis.call('ZADD', lane, now + lane_ms, id)", ""),
    Defence(
        lanes.test_a_full_worker_is_passed_over_at_the_door, "admit", "redis.call('ZCARD', key('own', worker)) +", ""
    ),
    Defence(lanes.test_nothing_is_kept_for_who_is_dead_or_leaving, "admit", "tonumber(lease) <= now or", ""),
    Defence(
        lanes.test_nothing_is_kept_for_who_is_dead_or_leaving,
        "admit",
        "or redis.call('HGET', key('w', worker), 'draining')",
        "",
    ),
    Defence(
        lanes.test_the_preferred_worker_is_rung_though_another_asked_last,
        "admit",
        "if lane then ring_for(lane) end",
        "",
    ),
    Defence(
        lanes.test_what_is_remembered_is_bounded_and_expires,
        "take",
        "if redis.call('HLEN', seen) >= SEEN_MOST then",
        "if false then",
    ),
    Defence(
        lanes.test_one_that_overtakes_and_does_not_fit_stands_in_nobodys_way, "take", "or {mine, turn}", "or {mine}"
    ),
]


@each_of(DEFENCES)
async def test_without_its_defence_it_fails(scripts: Scripts, defence: Defence) -> None:
    await fails_without(defence, scripts, lanes.steady_actors, SteadyMutations)
