"""One child process: started in a group of its own, its output in a log file, ended by signal and deadline.

Children are started through child.py, so the kernel ends them when the launcher dies. The kernel ties that to the
thread that started the child: start children from the main thread only.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

CHILD = str(Path(__file__).with_name("child.py"))


@dataclass(frozen=True)
class ProcessSpec:
    """What to run. `argv[0]` is an absolute path; `environment` is added to the launcher's own.

    `death_signal` is what the kernel sends if the launcher dies. `inherited_fds` stay open in the child.
    """

    name: str
    argv: Sequence[str]
    log_path: Path
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    death_signal: signal.Signals = signal.SIGKILL
    inherited_fds: tuple[int, ...] = ()


class Process:
    """A started child. `wait` may be called by many; `stop` is idempotent."""

    def __init__(self, spec: ProcessSpec, process: asyncio.subprocess.Process) -> None:
        self.spec = spec
        self._process = process

    @classmethod
    async def start(cls, spec: ProcessSpec) -> Process:
        command = [sys.executable, "-I", "-S", CHILD, str(os.getpid()), str(int(spec.death_signal)), *spec.argv]
        with spec.log_path.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=asyncio.subprocess.STDOUT,
                env=inherited_environment(spec.environment),
                process_group=0,
                pass_fds=spec.inherited_fds,
            )
        return cls(spec, process)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    async def wait(self) -> int:
        return await self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        """To the child alone: it knows how to wind down what it started. No effect once it has ended."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL to the child and all it started. Only while it has not ended: its group id is its pid."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def stop(self, grace_s: float) -> bool:
        """SIGTERM, up to `grace_s` to end, then SIGKILL. False when it had to be killed."""
        self.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_s):
                await self.wait()
        except TimeoutError:
            self.kill()
            await self.wait()
            return False
        return True


def inherited_environment(added: Mapping[str, str]) -> dict[str, str]:
    """What a child sees: this process's variables, and `added` over them. Reads no setting (shared/config.py does)."""
    return {**os.environ, **added}


def describe_exit(returncode: int) -> str:
    """`exit code 3`, or `killed by SIGKILL`."""
    if returncode >= 0:
        return f"exit code {returncode}"
    try:
        return f"killed by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"killed by signal {-returncode}"
