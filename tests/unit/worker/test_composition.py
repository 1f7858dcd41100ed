from __future__ import annotations

import pytest

from shared.config import WorkerSettings
from shared.errors import ConfigurationError
from tests.unit.worker.engine.harness import cached_tokens, drain, make_request, start
from worker.composition import build_engine
from worker.engine.scheduling.config import SchedulerConfig

FREE = {"backend": "simulated", "sim_step_us": 0, "sim_prefill_us_per_token": 0, "max_adapters": 0}


@pytest.mark.parametrize(("scope", "found"), [("off", 0), ("tenant", 0), ("shared", 32)])
def test_the_scope_of_the_prefix_cache_is_as_set(scope: str, found: int) -> None:
    engine = build_engine(WorkerSettings.model_validate({**FREE, "prefix_cache": scope}))
    for tenant in ("a", "b"):
        start(engine, make_request(prompt=[5] * 40, tenant=tenant))
        told = cached_tokens(drain(engine)["r"])
    assert told == found


def test_limits_of_a_step_are_as_set() -> None:
    engine = build_engine(WorkerSettings.model_validate({**FREE, "max_num_seqs": 3, "max_step_tokens": 8}))
    start(engine, make_request(prompt=[5] * 20))
    engine.step()
    assert (engine.load().free_slots, engine.step(), len(engine.step())) == (2, [], 1)


def test_a_policy_that_does_not_exist_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="'lottery' is not one of fcfs, priority, shortest"):
        SchedulerConfig(policy="lottery").build(num_blocks=9, block_size=16)
