"""`headrace up` with the stand-in services, settings from the environment. Arguments go to the worker."""

import asyncio
import sys
from pathlib import Path

from deploy.cli import refusals
from deploy.launcher import Launcher, run_until_signalled
from deploy.plan import Commands
from shared.config import LauncherSettings, load

HERE = Path(__file__).parent

with refusals():
    commands = Commands(
        gateway=(sys.executable, str(HERE / "gateway.py")),
        worker=(sys.executable, str(HERE / "worker.py"), *sys.argv[1:]),
    )
    asyncio.run(run_until_signalled(Launcher(load(LauncherSettings), commands)))
