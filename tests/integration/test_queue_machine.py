"""Any order of calls, each repeated or with its reply lost, keeps the books: Hypothesis drives the real server.

After each step every request is what the model says, its journal holds the model's tokens, and fsck finds nothing;
at the end one worker brings all that is left to its end.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule, run_state_machine_as_test

from loadtest.valkey import Valkey
from shared import keys
from shared.request_queue import Bounds, LeaseLost
from shared.schemas import EndFrame
from shared.text.prefixes import Prefixes
from tests.integration.queue_actors import MODEL, tokens
from tests.integration.queue_driver import QueueDriver, cut, some
from tests.integration.queue_model import Entry

TIMES = st.integers(1, 3)
GATEWAYS = st.sampled_from(("g1", "g2"))
PICK = st.integers(0, 1 << 16)


class QueueMachine(QueueDriver):
    @initialize(num_requests=st.integers(1, 5), num_workers=st.integers(1, 3))
    def begin(self, num_requests: int, num_workers: int) -> None:
        """Work under way: an empty queue is found soon enough."""
        for number in range(num_requests):
            self.admit(1, "g1", "ab"[number % 2], "default", "pq"[number % 2])
        for _ in range(num_workers):
            self.register(1)

    # gateways

    @precondition(lambda self: len(self.model.undone()) < 8)
    @rule(
        times=TIMES, gateway=GATEWAYS, tenant=st.sampled_from("ab"), kind=st.sampled_from(("default", "flex")),
        prefix=st.sampled_from(("", "p", "q")),
    )  # fmt: skip
    def admit(self, times: int, gateway: str, tenant: str, kind: str, prefix: str) -> None:
        name = self.name("r")
        lane: dict[str, Any] = {"lane_ms": 60_000, "prefixes": Prefixes((prefix,), (prefix,))} if prefix else {}
        self.model.entries[name] = Entry({gateway})
        for turn in range(times):
            call = self.actors.admit(
                name, gateway=gateway, tenant=tenant, service_class=kind, start_deadline_ms=60_000, **lane
            )
            assert self.run(call).decision == ("duplicate" if turn else "accepted")

    @precondition(lambda self: any(e.state == "waiting" for e in self.model.entries.values()))
    @rule()
    def refuse(self) -> None:
        assert self.run(self.actors.admit(self.name("r"), bounds=Bounds(1, 0, 0))).decision == "full"

    @precondition(lambda self: len(self.model.undone()) > 2)
    @rule(pick=PICK, times=TIMES, gateway=st.sampled_from(("", "g1", "g2")))
    def leave(self, pick: int, times: int, gateway: str) -> None:
        """Cancelled by its client, or left by one gateway."""
        name = some(pick, self.model.entries)
        for _ in range(times):
            if gateway:
                expected = self.model.detach(name, gateway)
                assert self.run(self.queue.detach(name, gateway)) == expected
            else:
                expected = self.model.cancel(name)
                assert self.run(self.queue.cancel(name)) == expected

    @precondition(lambda self: self.model.entries)
    @rule(pick=PICK, times=TIMES, gateway=GATEWAYS)
    def attach(self, pick: int, times: int, gateway: str) -> None:
        name = some(pick, self.model.entries)
        self.model.attach(name, gateway)
        for _ in range(times):
            assert self.run(self.queue.attach(name, gateway)) == self.model.entries[name].state

    @precondition(lambda self: self.model.entries)
    @rule(pick=PICK, times=TIMES, gateway=GATEWAYS, missed=st.integers(0, 2))
    def repair(self, pick: int, times: int, gateway: str, missed: int) -> None:
        """A gateway that missed the last frames gets them."""
        name = some(pick, self.model.entries)
        entry, journal = self.model.entries[name], self.journal(name)
        seen = cut(journal, missed)
        self.model.attach(name, gateway)
        for _ in range(times):
            repaired = self.run(self.stream.repair(name, gateway, seen, ""))
            assert (repaired.verdict, repaired.state, seen + repaired.tail) == ("tail", entry.state, journal)

    @precondition(lambda self: self.model.undone())
    @rule(pick=PICK, times=TIMES, gateway=GATEWAYS, lost=st.integers(1, 2))
    def put_back(self, pick: int, times: int, gateway: str, lost: int) -> None:
        """The journal lost frames that a client has seen, and its attempt is another one: the client's view wins."""
        name = some(pick, self.model.undone())
        seen = self.journal(name)
        if not seen:
            return
        self.command("SET", keys.journal(MODEL, name), cut(seen, lost))
        self.model.entries[name].gateways.add(gateway)
        assert self.run(self.stream.repair(name, gateway, seen, "an older owner")).verdict == "mismatch"
        for turn in range(times):
            repaired = self.run(self.stream.repair(name, gateway, seen, "an older owner", send_prefix=True))
            assert repaired.verdict == ("tail" if turn else "requeued")
        self.model.go_back(name)

    # workers

    @precondition(lambda self: len(self.workers) < 3)
    @rule(times=TIMES)
    def register(self, times: int) -> None:
        worker = self.name("w")
        self.workers[worker] = {}
        for _ in range(times):
            self.run(self.actors.register(worker))

    @precondition(lambda self: self.workers)
    @rule(pick=PICK, times=TIMES, slots=st.integers(1, 3))
    def take(self, pick: int, times: int, slots: int) -> None:
        self.take_for(pick, times, slots, is_heard=True)

    @precondition(lambda self: self.workers)
    @rule(pick=PICK, slots=st.integers(1, 3))
    def take_unheard(self, pick: int, slots: int) -> None:
        self.take_for(pick, 1, slots, is_heard=False)

    @precondition(lambda self: any(self.workers.values()))
    @rule(times=TIMES, turns=st.integers(1, 2))
    def emit(self, times: int, turns: int) -> None:
        """All workers take their steps."""
        for worker in sorted(self.workers) * turns:
            self.step(worker, list(self.workers[worker].values()), times, ends=False)

    @precondition(lambda self: any(self.workers.values()))
    @rule(pick=PICK, times=TIMES)
    def finish(self, pick: int, times: int) -> None:
        """One ends while the others of its worker go on."""
        worker = some(pick, (name for name, held in self.workers.items() if held))
        self.step(worker, [self.workers[worker][some(pick, self.workers[worker])]], times, ends=True)

    @precondition(lambda self: any(self.workers.values()))
    @rule(pick=PICK)
    def lose_tail(self, pick: int) -> None:
        """Redis forgets the last frame of a running request; its worker will send it again."""
        worker = some(pick, (w for w, held in self.workers.items() if held))
        name = some(pick, self.workers[worker])
        held = self.workers[worker][name]
        if self.model.owns(name, held.delivery.owner) and self.journal(name) != held.delivery.journal:
            shorter = cut(self.journal(name), 1)
            self.command("SET", keys.journal(MODEL, name), shorter)
            self.model.lose_tail(name, has_grown=shorter != held.delivery.journal)

    @precondition(lambda self: self.workers)
    @rule(pick=PICK, times=TIMES)
    def heartbeat(self, pick: int, times: int) -> None:
        """Books compared: what it owns unknowingly goes back, what it holds and does not own is dropped."""
        worker = some(pick, self.workers)
        self.model.late.discard(worker)
        for _ in range(times):
            beat = self.run(self.queue.heartbeat(worker, "nonce", b"{}"))
            running = self.model.running_at(worker)
            assert beat.owned == {n: (e.owner, tuple(beat.owned[n][1])) for n, e in running.items()}
            for name, (owner, _) in beat.owned.items():
                if name not in self.workers[worker] or self.workers[worker][name].delivery.owner != owner:
                    assert self.run(self.queue.release(name, owner))
                    self.model.go_back(name)
        mine = self.workers[worker]
        self.workers[worker] = {n: h for n, h in mine.items() if self.model.owns(n, h.delivery.owner)}

    @precondition(lambda self: any(self.workers.values()))
    @rule(pick=PICK, times=TIMES)
    def release(self, pick: int, times: int) -> None:
        worker = some(pick, (w for w, held in self.workers.items() if held))
        name = some(pick, self.workers[worker])
        held = self.workers[worker].pop(name)
        is_owner = self.model.owns(name, held.delivery.owner)
        for turn in range(times):
            assert self.run(self.queue.release(name, held.delivery.owner)) == (is_owner and turn == 0)
        if is_owner:
            self.model.go_back(name)

    @precondition(lambda self: len(self.workers) > 2)
    @rule(pick=PICK, times=TIMES)
    def unregister(self, pick: int, times: int) -> None:
        worker = some(pick, self.workers)
        self.reaped[worker] = self.workers.pop(worker)
        self.model.late.discard(worker)
        for _ in range(times):
            self.run(self.queue.unregister(worker, "nonce"))
        for name in self.model.running_at(worker):
            self.model.go_back(name)

    # operators

    @rule(times=TIMES, is_paused=st.sampled_from((True, False, False)))
    def pause(self, times: int, is_paused: bool) -> None:
        for _ in range(times):
            self.set_paused(is_paused=is_paused)

    # time and death

    @precondition(lambda self: self.workers)
    @rule(pick=PICK, page=st.sampled_from((0, 1, 200)))
    def crash(self, pick: int, page: int) -> None:
        """Its lease runs out. Where nobody reaps it at once (page 0) it may come back."""
        worker = some(pick, self.workers)
        self.model.late.add(worker)
        self.command("ZADD", keys.lease(MODEL), "XX", 1, worker)
        if page:
            self.reap_all(page)

    @precondition(lambda self: self.model.undone())
    @rule(pick=PICK)
    def pass_deadline(self, pick: int) -> None:
        """It stays overdue until the reaper comes; one that met its start deadline has none."""
        name = some(pick, self.model.undone())
        if self.model.entries[name].state == "running":
            self.command("ZADD", keys.deadlines(MODEL), "XX", 1, name)
            self.model.entries[name].is_due = self.command("ZSCORE", keys.deadlines(MODEL), name) is not None
            self.reap_all(200)

    @rule(times=TIMES, page=st.sampled_from((1, 2, 200)))
    def reap(self, times: int, page: int) -> None:
        for _ in range(times):
            self.reap_all(page)

    @precondition(lambda self: any(self.reaped.values()))
    @rule(pick=PICK)
    def speak_from_the_grave(self, pick: int) -> None:
        """A worker that was reaped goes on: nothing of it is heard."""
        worker = some(pick, (w for w, held in self.reaped.items() if held))
        held = self.reaped[worker][min(self.reaped[worker])]
        held.journal += tokens(0)
        try:
            self.run(self.stream.emit(worker, "nonce", [held.emission(1)]))
        except LeaseLost:
            return
        raise AssertionError(f"{worker} was heard")

    # the books

    @invariant()
    def every_request_is_what_the_model_says(self) -> None:
        names = list(self.model.entries)
        standings = self.run(self.stream.check(names)) if names else []
        assert {n: s.state for n, s in zip(names, standings, strict=True)} == {
            name: entry.state for name, entry in self.model.entries.items()
        }

    @invariant()
    def fsck_finds_nothing(self) -> None:
        assert self.run(self.actors.problems()) == []

    @invariant()
    def as_many_are_woken_as_wait_or_nobody_is_idle(self) -> None:
        woken, idle = self.rung_and_not()
        waiting = sum(entry.state == "waiting" for entry in self.model.entries.values())
        assert self.is_paused or not idle or waiting <= len(woken)

    def teardown(self) -> None:
        try:
            self.end_everything()
            for name, entry in self.model.entries.items():
                assert self.run(self.actors.ids(name)) == entry.ids
                ends = [f.outcome for f in self.run(self.actors.frames(name)) if isinstance(f, EndFrame)]
                assert ends == [entry.state]
                tokens_told = self.command("HGET", keys.request(MODEL, name), "tokens")
                assert int(tokens_told) == len(entry.ids)
            self.fsck_finds_nothing()
        finally:
            self.run(self.client.aclose())
            self.runner.close()


def test_any_order_of_calls_keeps_the_books(valkey: Valkey) -> None:
    bounded = settings(max_examples=40, stateful_step_count=50, deadline=None, derandomize=True, database=None)

    class Here(QueueMachine):
        url = valkey.url

    run_state_machine_as_test(Here, settings=bounded)
