"""Where the SQL store is: one URL, read into parts. Pure; knows no database library.

    (empty)                                            store.db in the data directory
    sqlite:///relative.db   sqlite:////absolute.db     another file, of this host alone
    postgresql://user:password@host[:port]/database[?sslmode=verify-full]

A file cannot be shared between hosts: gateways on different hosts need PostgreSQL. What a URL asks that is not known
here is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

_SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """`path` is None for a server. `url` is what SQLAlchemy takes; it may hold a password, `shown` never does."""

    url: str = field(repr=False)
    shown: str
    path: Path | None = None


def parse_store(url: str, data_dir: str) -> StoreAddress:
    """Raises ValueError, in words without the URL: it may hold a password."""
    if not url:
        return _file(Path(data_dir) / "store.db")
    if url.startswith("sqlite:///"):
        path = url.removeprefix("sqlite:///")
        if not path or path == ":memory:" or "?" in path:
            raise ValueError("must name a file: sqlite:///relative.db or sqlite:////absolute.db")
        return _file(Path(path))
    if url.startswith(("postgresql://", "postgres://")):
        return _server(url)
    raise ValueError("must begin with sqlite:/// or postgresql://")


def _file(path: Path) -> StoreAddress:
    absolute = path.absolute()
    return StoreAddress(f"sqlite+aiosqlite:///{absolute}", f"sqlite:///{absolute}", absolute)


def _server(url: str) -> StoreAddress:
    parts = urlsplit(url)
    try:
        port = parts.port or 5432
    except ValueError:
        raise ValueError("the port must be a number up to 65535") from None
    if not parts.hostname or not parts.path.strip("/"):
        raise ValueError("must name host and database: postgresql://user:password@host/database")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if options.keys() - {"sslmode"} or options.get("sslmode", "prefer") not in _SSL_MODES:
        raise ValueError(f"knows one option, sslmode: {', '.join(_SSL_MODES)}")
    query = f"?ssl={options['sslmode']}" if options else ""
    return StoreAddress(
        f"postgresql+asyncpg://{parts.netloc}{parts.path}{query}",
        f"postgresql://{parts.hostname}:{port}{parts.path}",
    )
