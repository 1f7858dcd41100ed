"""Bringing the schema to what this version needs, at the start of every gateway.

Several gateways may start at once: the whole of it is one transaction that others wait for (SQLite: a write
transaction; PostgreSQL: an advisory lock), and who comes later finds nothing to do. A schema newer than this version is
refused, as it stands for columns this version would not fill.
"""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import Connection, text

from shared.errors import ConfigurationError

# Any number that no other program on that PostgreSQL uses for the same purpose.
_LOCK = 0x4865_6164
_HERE = Path(__file__).parent


def upgrade(connection: Connection) -> None:
    """To be called inside a write transaction. Raises ConfigurationError for a schema of a newer version."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    try:
        command.upgrade(_config(connection), "head")
    except CommandError as error:
        raise ConfigurationError(f"the store (HEADRACE_STORE_URL) is of another version: {error}") from error


def _config(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(_HERE).replace("%", "%%"))
    config.set_main_option("version_locations", str(_HERE / "migrations").replace("%", "%%"))
    config.set_main_option("path_separator", "newline")
    config.attributes["connection"] = connection
    return config
