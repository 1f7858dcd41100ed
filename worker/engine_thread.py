"""The one thread that owns the backend; the only place where asyncio and the engine meet.

Commands go in through an inbox; after each step the outputs go out to the event loop. `load` is a snapshot less
what still waits in the inbox, so that a consumer never counts the same room twice. Outputs under way when a
request is aborted or added again are dropped: they belong to an earlier attempt. When a step raises, the engine
is broken: the thread ends and the process with it, so that its leases run out and the crash is counted.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import cast

from shared.schemas import EndFrame, ErrorInfo, Outcome, Prefix, Request
from worker.backends.interface import Engine, Remembering
from worker.deadlines import Deadlines, Due
from worker.engine.outputs import EngineLoad, StepOutput

log = logging.getLogger(__name__)
_IDLE_TICK_S = 0.25
_LATE = ErrorInfo("deadline_exceeded", "the deadline passed while the answer was computed")
_Command = tuple[Request, Sequence[Prefix], Due] | tuple[str, ...] | Callable[[], None]


class EngineThread:
    """start, then add / abort from the event loop, then stop. `on_outputs` is called on the event loop."""

    def __init__(
        self, build: Callable[[], Engine], on_step: Callable[[float, EngineLoad], None],
        deadlines: Deadlines | None = None,
    ) -> None:  # fmt: skip
        self._build = build
        self._on_step = on_step
        self._deadlines = deadlines or Deadlines()
        self.on_outputs: Callable[[list[StepOutput]], None] = lambda _outputs: None
        self._inbox: deque[_Command] = deque()
        self._wake = threading.Condition()
        self._is_stopping = False
        self._is_paused = False
        self._forgetting: list[asyncio.Future[None]] = []
        self._beat = time.monotonic()
        self._load = EngineLoad(0, 0, 0, 0, 0, 0)
        self._inbox_slots = 0
        self._inbox_tokens = 0
        self._num_commands = 0
        self._last_command: dict[str, int] = {}

    async def start(self) -> Engine:
        """Build the backend in its thread; returns it for its card and tokenizer only. Raises what building raises."""
        self._loop = asyncio.get_running_loop()
        self.stopped: asyncio.Future[None] = self._loop.create_future()
        ready: asyncio.Future[Engine] = self._loop.create_future()
        self._thread = threading.Thread(target=self._main, args=(ready,), name="engine", daemon=True)
        self._thread.start()
        return await ready

    def add(self, request: Request, prefixes: Sequence[Prefix], *, start_left_ms: int = 0, left_ms: int = 0) -> None:
        """What is left, from now, until it must have its first token, and until it must be over; 0: no deadline."""
        due = self._deadlines.due(start_left_ms, left_ms)
        with self._wake:
            self._inbox.append((request, prefixes, due))
            self._number(request.request_id)
            self._inbox_slots += request.params.n
            self._inbox_tokens += request.params.n * len(request.prompt_ids) + sum(len(p.token_ids) for p in prefixes)
            self._wake.notify()

    def abort(self, request_ids: Iterable[str]) -> None:
        with self._wake:
            names = tuple(request_ids)
            self._inbox.append(names)
            self._number(*names)
            self._wake.notify()

    async def between_steps(self, call: Callable[[], None]) -> None:
        """Runs it on the engine's thread, when all commands given before were obeyed. Raises what it raises."""
        done: asyncio.Future[None] = self._loop.create_future()

        def run() -> None:
            try:
                call()
            except Exception as error:
                self._post(done.set_exception, error)
            else:
                self._post(done.set_result, None)

        with self._wake:
            self._inbox.append(run)
            self._wake.notify()
        await done

    def refuse(self, request_id: str, why: str) -> None:
        """End a request that cannot even be given to the engine."""
        self.on_outputs([_failed(request_id, why)])

    def load(self) -> EngineLoad:
        with self._wake:
            return replace(
                self._load,
                free_slots=max(0, self._load.free_slots - self._inbox_slots),
                free_tokens=max(0, self._load.free_tokens - self._inbox_tokens),
            )

    def pause(self, *, is_paused: bool) -> None:
        """Hold steps back while what was made cannot be sent."""
        with self._wake:
            self._is_paused = is_paused
            self._wake.notify()

    async def forget_prefixes(self) -> None:
        """What free KV blocks hold is not found any more. Returns when it is done, after the step under way."""
        done: asyncio.Future[None] = self._loop.create_future()
        with self._wake:
            self._forgetting.append(done)
            self._wake.notify()
        await done

    def stalled_s(self) -> float:
        """Seconds since the loop last went round: what a heartbeat must prove small."""
        return time.monotonic() - self._beat

    async def stop(self) -> None:
        with self._wake:
            self._is_stopping = True
            self._wake.notify()
        await self.stopped

    def _number(self, *request_ids: str) -> None:
        self._num_commands += 1
        self._last_command |= dict.fromkeys(request_ids, self._num_commands)

    def _hand_out(self, applied: int, outputs: list[StepOutput]) -> None:
        """On the event loop: outputs of a step before which the first `applied` commands were obeyed."""
        self._last_command = {name: number for name, number in self._last_command.items() if number > applied}
        self.on_outputs([output for output in outputs if output.request_id not in self._last_command])

    # the engine's thread

    def _main(self, ready: asyncio.Future[Engine]) -> None:
        try:
            engine = self._build()
        except BaseException as error:
            self._post(ready.set_exception, error)
            return
        self._load = engine.load()
        self._post(ready.set_result, engine)
        try:
            while self._go_round(engine):
                pass
            engine.close()
            self._post(self._end, None)
        except Exception as error:
            log.exception("engine_failed")
            self._post(self._end, error)

    def _go_round(self, engine: Engine) -> bool:
        """Commands, then one step. False when it is time to stop."""
        with self._wake:
            self._beat = time.monotonic()
            if (
                not self._inbox
                and not self._forgetting
                and not self._is_stopping
                and (self._is_paused or not engine.has_work())
            ):
                self._wake.wait(_IDLE_TICK_S)
            if self._is_stopping:
                return False
            commands, self._inbox = self._inbox, deque()
            slots, tokens, applied = self._inbox_slots, self._inbox_tokens, self._num_commands
            is_paused = self._is_paused
            forgetting, self._forgetting = self._forgetting, []
        outputs = [output for command in commands for output in self._apply(engine, command)]
        outputs += self._expire(engine)
        self._forget(engine, forgetting)
        started = time.perf_counter()
        if engine.has_work() and not is_paused:
            outputs += engine.step()
        self._deadlines.note(outputs)
        load = engine.load()
        with self._wake:
            was_busy = self._load.num_running or self._load.num_waiting
            self._load = load
            self._inbox_slots -= slots
            self._inbox_tokens -= tokens
        if outputs:
            self._post(self._hand_out, applied, outputs)
        if load.num_running or outputs or was_busy:
            self._on_step(time.perf_counter() - started, load)
        return True

    def _apply(self, engine: Engine, command: _Command) -> list[StepOutput]:
        if callable(command):
            command()
            return []
        if not command or isinstance(command[0], str):
            names = [name for name in command if isinstance(name, str)]
            engine.abort(names)
            self._deadlines.forget(names)
            return []
        request, prefixes, due = cast("tuple[Request, Sequence[Prefix], Due]", command)
        try:
            engine.add(request, prefixes)
            self._deadlines.watch(request.request_id, due)
        except Exception as error:
            log.exception("request_refused_by_engine", extra={"request_id": request.request_id})
            return [_failed(request.request_id, str(error))]
        return []

    def _forget(self, engine: Engine, waiting: list[asyncio.Future[None]]) -> None:
        if waiting and isinstance(engine, Remembering):
            engine.forget_prefixes()
        for done in waiting:
            self._post(_tell, done)

    def _expire(self, engine: Engine) -> list[StepOutput]:
        """Nothing more is computed for whose deadline has passed, be it in the middle of a prompt."""
        passed = self._deadlines.passed()
        if passed:
            engine.abort(passed)
        return [_ended(request_id, Outcome.EXPIRED, _LATE) for request_id in passed]

    def _end(self, error: Exception | None) -> None:
        if error is None:
            self.stopped.set_result(None)
        else:
            self.stopped.set_exception(error)

    def _post(self, call: Callable[..., object], *args: object) -> None:
        self._loop.call_soon_threadsafe(call, *args)


def _tell(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)


def _failed(request_id: str, why: str) -> StepOutput:
    error = ErrorInfo("server_error", f"this worker cannot serve the request: {why}")
    return _ended(request_id, Outcome.FAILED, error)


def _ended(request_id: str, outcome: Outcome, error: ErrorInfo) -> StepOutput:
    return StepOutput(request_id, [EndFrame(outcome, None, error)], 0, outcome)
