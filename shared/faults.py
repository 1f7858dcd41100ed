"""Failpoints: named places where a process can be made to fail on purpose. For drills only.

    HEADRACE_FAULTS="before_emit:kill,count=1,probability=0.01,seed=7;take:delay=200"

Actions: `kill` (SIGKILL, no clean-up), `raise` (as if the server's connection broke), `delay=MS`, and `drop` where a
point can lose something. With `match=TEXT` only what shows that text is struck (a poisonous request). Not armed, a
point costs one comparison. Knows no asyncio and no settings: the composition root arms it and brings the way to sleep.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from shared.errors import ConfigurationError

log = logging.getLogger(__name__)
# point -> where it is
POINTS = {
    "before_admit": "gateway: a request is about to be admitted",
    "after_admit": "gateway: it was admitted, the reply is lost",
    "forward": "gateway: frames are about to go to the client",
    "publish_drop": "gateway: a message of the subscription arrives",
    "repair": "gateway: a stream is about to be compared with its journal",
    "take": "worker: about to ask for work",
    "after_take": "worker: work was handed over, the reply is lost",
    "before_emit": "worker: a step is about to be emitted",
    "after_emit_before_reply": "worker: a step was emitted, the reply is lost",
    "heartbeat": "worker: about to renew its lease",
    "release": "worker: about to give a request back",
    "kv_alloc": "worker: a waiting sequence asks for KV blocks",
}
CAN_DROP = frozenset({"publish_drop", "kv_alloc"})
ACTIONS = frozenset({"kill", "raise", "delay", "drop"})


@dataclass(slots=True)
class Failpoint:
    """What happens at a point: at most `count` times (0: no bound), each with this probability."""

    point: str
    action: str
    delay_ms: float = 0.0
    count: int = 0
    probability: float = 1.0
    seed: int = 0
    match: str = ""
    num_hits: int = 0
    _rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._rng = random.Random(f"{self.seed}:{self.point}:{self.action}")

    def draws(self, detail: object) -> bool:
        """Whether it happens this time."""
        if self.match and self.match not in repr(detail):
            return False
        if (self.count and self.num_hits >= self.count) or self._rng.random() >= self.probability:
            return False
        self.num_hits += 1
        return True


class Faults:
    """Armed failpoints of one process."""

    def __init__(
        self, failpoints: list[Failpoint], sleep: Callable[[float], Awaitable[object]], on_fault: Callable[[str], None]
    ) -> None:
        self._at: dict[str, list[Failpoint]] = {}
        for failpoint in failpoints:
            self._at.setdefault(failpoint.point, []).append(failpoint)
        self._sleep = sleep
        self._on_fault = on_fault

    async def hit(self, point: str, detail: object) -> bool:
        is_dropped = False
        for failpoint in self._drawn(point, detail):
            if failpoint.action == "delay":
                await self._sleep(failpoint.delay_ms / 1000)
            else:
                is_dropped |= _obey(failpoint)
        return is_dropped

    def hit_in_thread(self, point: str) -> bool:
        is_dropped = False
        for failpoint in self._drawn(point, None):
            if failpoint.action == "delay":
                time.sleep(failpoint.delay_ms / 1000)
            else:
                is_dropped |= _obey(failpoint)
        return is_dropped

    def _drawn(self, point: str, detail: object) -> list[Failpoint]:
        drawn = [failpoint for failpoint in self._at.get(point, ()) if failpoint.draws(detail)]
        for failpoint in drawn:
            kind = f"{point}:{failpoint.action}"
            log.warning("fault_injected", extra={"kind": kind})
            self._on_fault(kind)
        return drawn


_armed: Faults | None = None


def arm(spec: str, *, sleep: Callable[[float], Awaitable[object]], on_fault: Callable[[str], None]) -> None:
    """Arm what `spec` says in this process; '' disarms. Raises ConfigurationError."""
    global _armed
    _armed = Faults(parse(spec), sleep, on_fault) if spec else None
    if spec:
        log.warning("faults_armed", extra={"faults": spec})


async def hit(point: str, detail: object = None) -> bool:
    """On the event loop. True: lose what is at hand (points of CAN_DROP only). May raise ConnectionError.

    `detail` is what `match` is looked for in; it costs nothing where nothing is armed.
    """
    return _armed is not None and await _armed.hit(point, detail)


def hit_in_thread(point: str) -> bool:
    """The same in a thread that may block."""
    return _armed is not None and _armed.hit_in_thread(point)


def parse(spec: str) -> list[Failpoint]:
    """`point:action[=MS][,count=N][,probability=P][,seed=S][,match=TEXT]`, several joined by `;`.

    Raises ConfigurationError.
    """
    return [_parse_one(part.strip()) for part in spec.split(";") if part.strip()]


def _parse_one(part: str) -> Failpoint:
    point, _, rest = part.partition(":")
    words, *options = rest.split(",")
    action, _, delay_ms = words.partition("=")
    if point not in POINTS:
        raise ConfigurationError(f"no failpoint is called '{point}': there are {', '.join(sorted(POINTS))}")
    if action not in ACTIONS or (action == "drop" and point not in CAN_DROP) or (action == "delay") != bool(delay_ms):
        raise ConfigurationError(f"'{part}': the action must be kill, raise, delay=MS, or drop where it can")
    pairs = [option.strip().partition("=") for option in options]
    values = {name: value for name, _, value in pairs}
    if values.keys() - {"count", "probability", "seed", "match"}:
        raise ConfigurationError(f"'{part}': options are count, probability, seed and match")
    try:
        return Failpoint(
            point, action, float(delay_ms or 0),
            int(values.get("count", 0)), float(values.get("probability", 1)), int(values.get("seed", 0)),
            values.get("match", ""),
        )  # fmt: skip
    except ValueError as error:
        raise ConfigurationError(f"'{part}': {error}") from error


def _obey(failpoint: Failpoint) -> bool:
    """True for a drop."""
    if failpoint.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if failpoint.action == "raise":
        raise ConnectionError(f"failpoint {failpoint.point}")
    return failpoint.action == "drop"
