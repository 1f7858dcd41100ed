"""`headrace up`: start everything on this machine, show the first tokens, keep it alive, end it in order.

    data directory locked, port free -> server answers -> gateway and workers started -> ready -> supervised

Whatever ends it (a signal, a failed start, an error), what was started is stopped before `run` returns; if the
launcher itself is killed by force, the kernel ends the children (child.py).
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import httpx

from deploy import preflight, showcase, valkey
from deploy.logs import LogFollower, rotate
from deploy.plan import Commands, Plan, make_plan
from deploy.startup import report_troubles, unless_one_dies, wait_until_ready
from deploy.supervisor import Supervisor
from deploy.terminal import say, write
from shared.config import LauncherSettings
from shared.servers import address

SERVER_READY_S = 60.0
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Launcher:
    """One run of `headrace up`. `ready` is set once requests are served and the first answer was shown."""

    def __init__(
        self, settings: LauncherSettings, commands: Commands | None = None, *, show_answer: bool = True
    ) -> None:
        self._settings = settings
        self._commands = commands or Commands()
        self._show_answer = show_answer
        self._supervisor = Supervisor(say)
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self.ready = asyncio.Event()

    def request_stop(self) -> None:
        """First call: stop in order. Second: do not wait for requests to finish. Idempotent after that."""
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    async def run(self) -> None:
        """Returns after a requested stop. ConfigurationError: nothing was started. LaunchFailed: all was stopped."""
        settings = self._settings
        preflight.check_port(settings.host, settings.port)
        with preflight.DataDirectory(Path(settings.data_dir)) as data:
            plan = make_plan(settings, data, self._commands)
            try:
                await self._until_stop(self._serve(plan))
            finally:
                if self._stop.is_set():
                    say(f"stopping: running requests get {settings.drain_timeout_s:g} s (once more to stop at once)")
                await self._supervisor.stop(settings.drain_timeout_s, self._hurry)
                say("stopped")

    async def _serve(self, plan: Plan) -> None:
        started = time.monotonic()
        for spec in plan.processes:
            rotate(spec.log_path)
        followers = {spec.name: LogFollower(spec.log_path) for spec in plan.services}
        await self._start_server(plan)
        say(f"starting the gateway and {self._settings.workers} worker(s), model {self._settings.model}")
        for spec in plan.services:
            await self._supervisor.start(spec)
        ready = wait_until_ready(plan.ready_url, followers)
        await unless_one_dies(self._supervisor, ready, self._settings.ready_timeout_s)
        self._supervisor.supervise()
        say(f"ready after {time.monotonic() - started:.1f} s at {plan.base_url}/v1, logs in {plan.logs}")
        await self._introduce(plan)
        self.ready.set()
        say("running; Ctrl-C stops it")
        await report_troubles(followers)

    async def _start_server(self, plan: Plan) -> None:
        if plan.server is None:
            say(f"using the server at {without_password(plan.redis_url)}")
            return
        await self._supervisor.start(plan.server, is_server=True)
        await unless_one_dies(self._supervisor, valkey.wait_until_ready(plan.server_port), SERVER_READY_S)
        say(f"valkey is ready at {plan.redis_url}")

    async def _introduce(self, plan: Plan) -> None:
        async with httpx.AsyncClient(base_url=plan.base_url, timeout=10.0, trust_env=False) as client:
            model = await showcase.first_model(client)
            is_open = await showcase.is_open(client)
            name = model or self._settings.model
            for line in ["", *showcase.instructions(plan.base_url, name, is_open=is_open), ""]:
                say(line)
            if is_open:
                say("OPEN: there are no API keys, so whoever reaches this port is served (headrace keys new --help)\n")
            if model is None or not self._show_answer or not is_open:
                return
            say(f"> {showcase.QUESTION}")
            try:
                answer = await showcase.stream_answer(client, model, write)
            except (httpx.HTTPError, ValueError) as error:
                say(f"(no answer this time: {type(error).__name__}: {error})")
                return
            say(f"\n(first token after {answer.first_token_s * 1000:.0f} ms, all after {answer.total_s:.1f} s)\n")

    async def _until_stop(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` until it ends (its errors are raised here) or a stop is requested."""
        task, stop = asyncio.ensure_future(work), asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                await task
        finally:
            stop.cancel()
            task.cancel()
            await asyncio.gather(task, stop, return_exceptions=True)


def without_password(redis_url: str) -> str:
    return address.parse(redis_url).shown()


async def run_until_signalled(launcher: Launcher) -> None:
    """Run with SIGINT, SIGTERM and SIGHUP as requests to stop. Main thread only."""
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, launcher.request_stop)
    await launcher.run()
