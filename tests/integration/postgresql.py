"""A PostgreSQL server for tests, where its binaries are installed: on a free port, in a folder of its own."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
from pathlib import Path

import asyncpg

from loadtest.valkey import free_port

_DEBIAN = Path("/usr/lib/postgresql")


def binary(name: str) -> str | None:
    """Debian keeps them out of PATH, a folder a version."""
    return shutil.which(name) or next((str(path) for path in sorted(_DEBIAN.glob(f"*/bin/{name}"))), None)


def _other_user() -> str | None:
    """It refuses to run as root: who else may."""
    if os.geteuid() != 0:
        return None
    return next(entry.pw_name for entry in pwd.getpwall() if entry.pw_name in ("postgres", "nobody"))


class PostgreSQL:
    """Answers when this returns."""

    def __init__(self, directory: Path) -> None:
        initdb, postgres = binary("initdb"), binary("postgres")
        assert initdb and postgres
        self.port = free_port()
        self._num_databases = 0
        user = _other_user()
        data = directory / "data"
        if user is not None:
            for path in (directory, *directory.parents[:3]):
                path.chmod(path.stat().st_mode | 0o711)
            shutil.chown(directory, user)
        options = ["--auth=trust", "--username=headrace", "--no-sync", "--encoding=UTF8", "--locale=C"]
        subprocess.run([initdb, *options, str(data)], check=True, capture_output=True, user=user, cwd=directory)
        argv = [postgres, "-D", str(data), "-p", str(self.port), "-h", "127.0.0.1", "-k", "", "-F"]
        self._process = subprocess.Popen(
            argv, user=user, cwd=directory, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    async def new_database(self) -> str:
        """The URL of an empty one."""
        self._num_databases += 1
        name = f"store{self._num_databases}"
        connection = await self._connected()
        await connection.execute(f"CREATE DATABASE {name}")
        await connection.close()
        return f"postgresql://headrace@127.0.0.1:{self.port}/{name}"

    def stop(self) -> None:
        self._process.send_signal(signal.SIGINT)
        self._process.wait(20)

    async def _connected(self) -> asyncpg.Connection:
        for _ in range(1000):
            try:
                return await asyncpg.connect(user="headrace", host="127.0.0.1", port=self.port, database="postgres")
            except (OSError, asyncpg.PostgresError):
                assert self._process.poll() is None, "PostgreSQL has ended"
        raise AssertionError("PostgreSQL does not answer")
