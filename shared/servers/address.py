"""Where the queue is: one URL for each way to run Redis, read into parts. Pure; knows no client library.

    redis://[user:password@]host[:port][/database]            one server
    unix://[user:password@]/path/to/socket[?db=0]             one server, by its socket
    redis+sentinel://[user:password@]host[:port],.../service[/database]
    redis+cluster://[user:password@]host[:port],...

`rediss`, `rediss+sentinel` and `rediss+cluster` are the same over TLS. Parts are percent-decoded. What a URL asks
that is not known here is refused: timeouts and retries are ours.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

Mode = Literal["single", "sentinel", "cluster"]
_MODES: dict[str, Mode] = {"": "single", "sentinel": "sentinel", "cluster": "cluster"}
_PORTS = {"single": 6379, "sentinel": 26379, "cluster": 6379}
_TLS_OPTIONS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_check_hostname", "ssl_cert_reqs")
_SENTINEL_OPTIONS = ("sentinel_username", "sentinel_password")
_FLAGS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass(frozen=True, slots=True)
class Address:
    """`hosts` are the server, the sentinels, or some nodes of the cluster; empty for a socket (`path`)."""

    mode: Mode
    hosts: tuple[tuple[str, int], ...] = ()
    path: str = ""
    service: str = ""
    database: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    sentinel_username: str | None = None
    sentinel_password: str | None = field(default=None, repr=False)
    is_tls: bool = False
    tls: dict[str, str | bool] = field(default_factory=dict[str, "str | bool"])

    def shown(self) -> str:
        """For logs: no credentials."""
        if self.path:
            return f"unix://{self.path}"
        scheme = ("rediss" if self.is_tls else "redis") + ("" if self.mode == "single" else f"+{self.mode}")
        hosts = ",".join(f"{host}:{port}" for host, port in self.hosts)
        service = f"/{self.service}" if self.service else ""
        return f"{scheme}://{hosts}{service}" + ("" if self.mode == "cluster" else f"/{self.database}")


def parse(url: str) -> Address:
    """Raises ValueError, in words without the URL: it holds a password."""
    scheme, _, rest = url.partition("://")
    query = dict(parse_qsl(urlsplit(url).query, keep_blank_values=True))
    if scheme == "unix":
        return _socket(urlsplit(url), query)
    transport, plus, kind = scheme.partition("+")
    if transport not in ("redis", "rediss") or kind not in _MODES or (plus and not kind):
        raise ValueError(
            "a Redis URL begins with redis://, rediss://, unix://, redis+sentinel:// or redis+cluster://"
            " (rediss+sentinel://, rediss+cluster:// with TLS)"
        )
    mode, is_tls = _MODES[kind], transport == "rediss"
    _refuse_unknown(query, (*(_TLS_OPTIONS if is_tls else ()), *(_SENTINEL_OPTIONS if mode == "sentinel" else ())))
    authority, _, path = rest.partition("?")[0].partition("/")
    credentials, _, hosts = authority.rpartition("@")
    service, database = _path(mode, path)
    return Address(
        mode=mode,
        hosts=tuple(_host(part, _PORTS[mode]) for part in hosts.split(",")) if mode != "single" else _one(hosts),
        service=service,
        database=database,
        username=_part(credentials.partition(":")[0]),
        password=_part(credentials.partition(":")[2]),
        sentinel_username=query.get("sentinel_username"),
        sentinel_password=query.get("sentinel_password"),
        is_tls=is_tls,
        tls=_tls(query),
    )


def _socket(parts: SplitResult, query: dict[str, str]) -> Address:
    _refuse_unknown(query, ("db",))
    if not parts.path:
        raise ValueError("a unix:// URL names the socket's path: unix:///run/redis.sock")
    username, password = _part(parts.username or ""), _part(parts.password or "")
    database = _database(query.get("db", ""))
    return Address("single", path=unquote(parts.path), database=database, username=username, password=password)


def _path(mode: Mode, path: str) -> tuple[str, int]:
    """The service and the number of the database."""
    parts = [unquote(part) for part in path.split("/") if part]
    if mode == "cluster" and parts not in ([], ["0"]):
        raise ValueError("a cluster has one database, 0")
    if mode == "sentinel":
        if not parts:
            raise ValueError("a redis+sentinel:// URL names the service behind its hosts: .../mymaster")
        service, *parts = parts
    else:
        service = ""
    if len(parts) > 1:
        raise ValueError("a Redis URL ends with the number of one database")
    return service, _database(parts[0] if parts else "")


def _database(number: str) -> int:
    if number and not number.isdecimal():
        raise ValueError("the database of a Redis URL is a number")
    return int(number or "0")


def _one(hosts: str) -> tuple[tuple[str, int], ...]:
    if "," in hosts:
        raise ValueError("several hosts need redis+sentinel:// or redis+cluster://")
    return (_host(hosts, _PORTS["single"]),)


def _host(part: str, usual_port: int) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{part}")
        port = parts.port
    except ValueError as error:
        raise ValueError("a host of the Redis URL has no valid port") from error
    if part and not parts.hostname:
        raise ValueError("a host of the Redis URL is empty")
    return unquote(parts.hostname or "127.0.0.1"), port or usual_port


def _part(text: str) -> str | None:
    return unquote(text) or None


def _tls(query: dict[str, str]) -> dict[str, str | bool]:
    options: dict[str, str | bool] = {name: query[name] for name in _TLS_OPTIONS if name in query}
    check = query.get("ssl_check_hostname")
    if check is not None:
        if check.lower() not in _FLAGS:
            raise ValueError("ssl_check_hostname of a Redis URL is true or false")
        options["ssl_check_hostname"] = _FLAGS[check.lower()]
    if query.get("ssl_cert_reqs", "required") not in ("required", "none"):
        raise ValueError("ssl_cert_reqs of a Redis URL is required or none")
    if query.get("ssl_cert_reqs") == "none":
        options.setdefault("ssl_check_hostname", False)
    return options


def _refuse_unknown(query: dict[str, str], known: tuple[str, ...]) -> None:
    unknown = sorted(query.keys() - set(known))
    if unknown:
        raise ValueError(f"unknown in the query of the Redis URL: {', '.join(unknown)}")
