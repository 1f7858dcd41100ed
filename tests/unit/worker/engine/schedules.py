"""Random schedules from a seed: whatever happens to a request, its answer is what it is alone.

Arrivals, budgets and chunks of any size, pools small enough to preempt, prefixes in common with other requests and
with their answers, tenants, classes, aborts, several choices, stop strings, random ends; a journal resumed from any
cut; and a worker that is killed, whose requests go on elsewhere from what their journals had. The counts show that
what is claimed has happened.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from shared.schemas import Frame, Request, ServiceClass
from tests.unit.worker.engine.harness import (
    Machine,
    answers,
    check_blocks,
    collect,
    drain,
    events,
    make_request,
    num_new_tokens,
    start,
)
from worker.engine.executor import Work
from worker.engine.kv_cache_manager import CacheScope
from worker.engine.scheduling.cost_model import Pace
from worker.engine.scheduling.policies import POLICIES

MOST_BLOCKS = 19  # any drawn request fits alone in so many
LONGEST_PROMPT_BLOCKS = 9


class RandomPace(Pace):
    """As if steps took very different times."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(1.0)
        self._rng = rng

    def chunk(self, decodes: Work, position: int) -> int | None:
        return self._rng.choice([1, 2, 7, 16, None])


@dataclass(frozen=True)
class World:
    """What all machines of a run have in common, and the sampling parameters of a request."""

    machine: Machine
    draw_params: Callable[[random.Random], dict]
    drafts: tuple[int, ...] = (0, 1, 5, 5)
    overlaps: bool = False

    @property
    def block(self) -> int:
        return self.machine.block_size

    def draw_machine(self, rng: random.Random) -> Machine:
        return replace(
            self.machine,
            num_blocks=1 + rng.randint(MOST_BLOCKS, MOST_BLOCKS + 9),
            max_num_seqs=rng.randint(1, 8),
            max_step_tokens=rng.choice([1, 2, 3, 5, 8, 16, 33, 64]),
            watermark_blocks=rng.randint(0, 3),
            policy=rng.choice(sorted(POLICIES)),
            scope=rng.choice(list(CacheScope)),
            pace=rng.choice([None, RandomPace(rng)]),
            max_drafts=rng.choice(self.drafts),
            foresees=rng.random() < 0.5,
            overlaps=self.overlaps,
        )

    def draw_request(self, rng: random.Random, name: str, earlier: list[list[int]]) -> Request:
        """Its prompt begins as the first prompt of all, or as one of `earlier`, and goes on by itself."""
        begun = rng.choice([list(range(1, 1 + self.block * 4)), *earlier])
        begun = begun[: rng.randint(0, (LONGEST_PROMPT_BLOCKS - 2) * self.block)]
        return make_request(
            name,
            [*begun, *rng.choices(range(1, 20), k=rng.randint(1, 2 * self.block))],
            max_tokens=rng.randint(1, 10 * self.block),
            service_class=rng.choice(list(ServiceClass)),
            tenant=rng.choice(["a", "a", "b"]),
            **self.draw_params(rng),
        )

    def run_alone(self, request: Request) -> list[Frame]:
        machine = replace(self.machine)
        start(machine.engine, request)
        return drain(machine.engine)[request.request_id]


class RandomRun:
    """One schedule. `journals` is what Redis would have."""

    def __init__(self, world: World, seed: int) -> None:
        self.rng = random.Random(seed)
        self.world = world
        self.machine = world.draw_machine(self.rng)
        self.requests: list[Request] = []
        self.alone: dict[str, list[Frame]] = {}
        earlier: list[list[int]] = []
        for index in range(self.rng.randint(2, 8)):
            request = world.draw_request(self.rng, str(index), earlier)
            self.requests.append(request)
            self.alone[request.request_id] = whole = world.run_alone(request)
            earlier.append([*request.prompt_ids, *answers(whole, request.params.n)[0][0].token_ids])
        self.journals: dict[str, list[Frame]] = {}
        self.aborted: set[str] = set()
        self.counts: Counter[str] = Counter()

    def run(self) -> None:
        arriving = list(self.requests)
        for _ in range(20_000):
            if not arriving and not self.machine.engine.has_work():
                self.count()
                return
            while arriving and self.rng.random() < 0.5:
                self.arrive(arriving.pop())
            self.disturb()
            outputs = self.machine.engine.step()
            assert not self.aborted & {output.request_id for output in outputs}
            collect(outputs, self.journals)
            self.counts["ahead"] += self.machine.engine._next is not None
            check_blocks(self.machine.scheduler)
        raise AssertionError("the schedule does not drain")

    def arrive(self, request: Request) -> None:
        if self.rng.random() < 0.3:
            whole = self.alone[request.request_id]
            self.journals[request.request_id] = whole[: self.rng.randrange(len(whole))]
            self.counts["resumed"] += num_new_tokens(self.journals[request.request_id]) > 0
        start(self.machine.engine, request, self.journals.setdefault(request.request_id, []))

    def disturb(self) -> None:
        self.machine.now_s += self.rng.expovariate(1 / 5)
        if self.rng.random() < 0.01:
            self.abort(self.rng.choice(self.requests).request_id)
        if self.rng.random() < 0.005:
            self.kill()

    def abort(self, request_id: str) -> None:
        if request_id in self.journals:
            self.machine.engine.abort([request_id])
            self.aborted.add(request_id)

    def kill(self) -> None:
        """Another machine goes on with what was not ended, from journals that lack what was under way."""
        self.count()
        self.machine = self.world.draw_machine(self.rng)
        for request in self.requests:
            journal = self.journals.get(request.request_id)
            if journal is None or request.request_id in self.aborted or is_ended(journal):
                continue
            del journal[max(0, len(journal) - self.rng.randint(0, 3)) :]
            start(self.machine.engine, request, journal)
            self.counts["requeued"] += num_new_tokens(journal) > 0

    def count(self) -> None:
        for stats in self.machine.engine.recorder.recent:
            self.counts["found"] += stats.num_found_tokens
            self.counts["displaced"] += stats.num_displaced
            self.counts["recomputed"] += stats.num_recomputed_tokens
            self.counts["drafted"] += stats.num_draft_tokens
            self.counts["accepted"] += stats.num_accepted_tokens

    def check(self) -> None:
        for request in self.requests:
            if request.request_id in self.aborted:
                self.counts["aborted"] += 1
                continue
            journal = self.journals[request.request_id]
            assert answers(journal, request.params.n) == answers(self.alone[request.request_id], request.params.n)
            self.counts["preempted"] += "preempted" in events(journal)


def is_ended(journal: Iterable[Frame]) -> bool:
    return any(type(frame).__name__ == "EndFrame" for frame in journal)


def run_all(world: World, seeds: Iterable[int]) -> Counter[str]:
    """What happened in all of them."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        run = RandomRun(world, seed)
        try:
            run.run()
            run.check()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}") from error
        counts += run.counts
    return counts
