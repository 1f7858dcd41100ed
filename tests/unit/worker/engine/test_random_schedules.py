"""The contract's heart: whatever the batch, a request's answer is what it is alone.

Seeded schedules of arrivals, budgets, pools small enough to preempt, aborts, several choices, stop strings, random
ends, and resumes from any cut of the journal. The counters show that what is claimed has happened.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from shared.schemas import Frame, Request
from tests.unit.worker.engine.harness import (
    Machine,
    answers,
    check_blocks,
    collect,
    events,
    make_request,
    num_new_tokens,
    run_alone,
    start,
)

EOS_PROBABILITY = 0.01
SEEDS_PER_TEST = 50


def draw_request(rng: random.Random, index: int) -> Request:
    prompt = [1, 2, 3, 4, 5, 6, 7, 8][: rng.randint(0, 8)] + rng.choices(range(1, 20), k=rng.randint(1, 25))
    return make_request(
        str(index),
        prompt,
        max_tokens=rng.randint(1, 40),
        seed=rng.randint(-5, 5),
        temperature=rng.choice([0.0, 0.7]),
        top_p=rng.choice([1.0, 0.9]),
        n=rng.choice([1, 1, 1, 2, 3]),
        stop=tuple("".join(rng.choices("abcdefgh", k=rng.randint(2, 3))) for _ in range(rng.randint(0, 2))),
        ignore_eos=rng.random() < 0.2,
    )


def draw_machine(rng: random.Random) -> Machine:
    """At least 19 blocks of 4: any drawn request fits alone."""
    return Machine(
        num_blocks=1 + rng.randint(19, 28),
        max_num_seqs=rng.randint(1, 8),
        max_step_tokens=rng.choice([1, 2, 3, 5, 8, 16, 33, 64]),
        watermark_blocks=rng.randint(0, 3),
        eos_probability=EOS_PROBABILITY,
    )


class RandomRun:
    """One schedule: requests come at drawn steps, some resumed from a cut journal, some are aborted."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.machine = draw_machine(self.rng)
        self.requests = [draw_request(self.rng, index) for index in range(self.rng.randint(2, 8))]
        self.alone = {r.request_id: run_alone(r, eos_probability=EOS_PROBABILITY) for r in self.requests}
        self.journals: dict[str, list[Frame]] = {}
        self.aborted: set[str] = set()
        self.counts: Counter[str] = Counter()

    def run(self) -> None:
        arriving = list(self.requests)
        for _ in range(20_000):
            if not arriving and not self.machine.engine.has_work():
                return
            while arriving and self.rng.random() < 0.5:
                self.arrive(arriving.pop())
            if self.rng.random() < 0.01:
                self.abort(self.rng.choice(self.requests).request_id)
            outputs = self.machine.engine.step()
            assert not self.aborted & {output.request_id for output in outputs}
            collect(outputs, self.journals)
            check_blocks(self.machine.scheduler)
        raise AssertionError("the schedule does not drain")

    def arrive(self, request: Request) -> None:
        if self.rng.random() < 0.4:
            whole = self.alone[request.request_id]
            self.journals[request.request_id] = whole[: self.rng.randrange(len(whole))]
            self.counts["resumed"] += num_new_tokens(self.journals[request.request_id]) > 0
        start(self.machine.engine, request, self.journals.get(request.request_id, ()))

    def abort(self, request_id: str) -> None:
        if request_id in self.journals:
            self.machine.engine.abort([request_id])
            self.aborted.add(request_id)

    def check(self) -> None:
        for request in self.requests:
            if request.request_id in self.aborted:
                self.counts["aborted"] += 1
                continue
            journal = self.journals[request.request_id]
            assert answers(journal, request.params.n) == answers(self.alone[request.request_id], request.params.n)
            self.counts["preempted"] += "preempted" in events(journal)


@pytest.mark.parametrize("first_seed", range(0, 300, SEEDS_PER_TEST))
def test_answers_are_those_of_running_alone(first_seed: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(first_seed, first_seed + SEEDS_PER_TEST):
        run = RandomRun(seed)
        run.run()
        run.check()
        counts += run.counts
    assert counts["preempted"] >= 10
    assert counts["resumed"] >= 10
    assert counts["aborted"] >= 3


def test_every_cut_of_a_journal_resumes_to_the_same_answer() -> None:
    request = make_request(max_tokens=25, temperature=0.8, n=2, stop=("ab", "bcd", "cc"))
    whole = run_alone(request)
    for cut in range(len(whole)):
        journal = whole[:cut] + run_alone(request, whole[:cut])
        assert answers(journal, n=2) == answers(whole, n=2)
        if cut != 1:  # between the event and the token that it announces: it is announced again
            assert events(journal).count("first_token") == 1
