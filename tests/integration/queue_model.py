"""A small model of the queue's books: what each request must be after each call, whatever was repeated or lost.

Knows nothing of keys and scripts. `test_queue_machine.py` drives both and compares them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

UNDONE = ("waiting", "running")
MAX_CRASHES = 3


@dataclass
class Entry:
    """One request. `owner` and `worker` are those of the running attempt; `ids` what its journal must hold.

    `lost` are ids its journal held and lost: its worker brings them back with its next emit, or they are gone.
    """

    gateways: set[str]
    state: str = "waiting"
    owner: str = ""
    worker: str = ""
    ids: list[int] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    crashes: int = 0
    has_grown: bool = False
    is_due: bool = False


@dataclass
class Model:
    entries: dict[str, Entry] = field(default_factory=dict)
    late: set[str] = field(default_factory=set)

    def undone(self) -> list[str]:
        return [name for name, entry in self.entries.items() if entry.state in UNDONE]

    def running_at(self, worker: str) -> dict[str, Entry]:
        return {n: e for n, e in self.entries.items() if e.state == "running" and e.worker == worker}

    def owns(self, name: str, owner: str) -> bool:
        entry = self.entries[name]
        return entry.state == "running" and entry.owner == owner

    def take(self, name: str, owner: str, worker: str) -> None:
        entry = self.entries[name]
        assert entry.state == "waiting", f"{name} was handed out while {entry.state}"
        entry.state, entry.owner, entry.worker, entry.has_grown = "running", owner, worker, False

    def emit(self, name: str, ids: list[int], *, final: bool) -> None:
        entry = self.entries[name]
        entry.ids += entry.lost + ids
        entry.lost = []
        entry.has_grown = True
        if final:
            self.end(name, "finished")

    def lose_tail(self, name: str, *, has_grown: bool) -> None:
        entry = self.entries[name]
        entry.lost.insert(0, entry.ids.pop())
        entry.has_grown = has_grown

    def go_back(self, name: str) -> None:
        entry = self.entries[name]
        entry.state, entry.owner, entry.worker, entry.lost = "waiting", "", "", []

    def end(self, name: str, state: str) -> None:
        self.entries[name].state = state

    def cancel(self, name: str) -> str:
        """The reply expected."""
        if self.entries[name].state in UNDONE:
            self.end(name, "cancelled")
        return self.entries[name].state

    def attach(self, name: str, gateway: str) -> None:
        """An ended request has nobody added."""
        if self.entries[name].state in UNDONE:
            self.entries[name].gateways.add(gateway)

    def detach(self, name: str, gateway: str) -> str:
        """The reply expected, also of a repeat: `gateways` of an ended request are those that were there at its end."""
        entry = self.entries[name]
        if entry.state not in UNDONE:
            return entry.state if gateway in entry.gateways else "left"
        if entry.gateways - {gateway}:
            entry.gateways.discard(gateway)
            return "left"
        self.end(name, "cancelled")
        return "cancelled"

    def reap(self) -> None:
        """Deadlines first, then the work of late workers; only what has made nothing is blamed."""
        for name in self.undone():
            if self.entries[name].is_due:
                self.end(name, "expired")
        for worker in self.late:
            for name, entry in self.running_at(worker).items():
                entry.crashes += not entry.has_grown
                self.end(name, "dead") if entry.crashes > MAX_CRASHES else self.go_back(name)
        self.late.clear()
