"""URLs of all modes: what they mean, what is refused, and that no password is shown."""

from __future__ import annotations

from typing import Any

import pytest

from shared.config import RedisSettings, load
from shared.errors import ConfigurationError
from shared.redis_client import connect
from shared.servers.address import Address, parse
from shared.servers.cluster import ClusterClient
from shared.servers.sentinel import SentinelClient

SEVERAL = (("h1", 1), ("h2", 26379))


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://", Address("single", (("127.0.0.1", 6379),))),
        ("redis://h:7/3", Address("single", (("h", 7),), database=3)),
        ("redis://[::1]:7", Address("single", (("::1", 7),))),
        ("redis://u:p%40%2F@h", Address("single", (("h", 6379),), username="u", password="p@/")),
        ("redis://:p@h", Address("single", (("h", 6379),), password="p")),
        ("unix:///run/r.sock?db=2", Address("single", path="/run/r.sock", database=2)),
        ("redis+sentinel://h1:1,h2/hr/4", Address("sentinel", SEVERAL, service="hr", database=4)),
        (
            "redis+sentinel://u:p@h1:1,h2/hr?sentinel_password=s",
            Address("sentinel", SEVERAL, service="hr", username="u", password="p", sentinel_password="s"),
        ),
        ("redis+cluster://h1:1,h2:26379", Address("cluster", SEVERAL)),
        (
            "rediss+cluster://h1:1,h2:26379?ssl_ca_certs=/ca&ssl_check_hostname=no",
            Address("cluster", SEVERAL, is_tls=True, tls={"ssl_ca_certs": "/ca", "ssl_check_hostname": False}),
        ),
    ],
)
def test_a_url_says_where_the_queue_is(url: str, expected: Address) -> None:
    assert parse(url) == expected


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("localhost:6379", "begins with redis://"),
        ("redis+other://h", "begins with redis://"),
        ("redis://h1,h2", "several hosts"),
        ("redis://h:port", "no valid port"),
        ("redis://h/one", "is a number"),
        ("redis+sentinel://h", "names the service"),
        ("redis+cluster://h/1", "one database"),
        ("redis://h?socket_timeout=1", "unknown in the query of the Redis URL: socket_timeout"),
        ("redis://h?ssl_ca_certs=/ca", "unknown in the query"),
        ("rediss://h?ssl_check_hostname=maybe", "true or false"),
        ("unix://", "names the socket's path"),
    ],
)
def test_a_url_that_cannot_be_meant_is_refused_without_its_password(url: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as refused:
        load(RedisSettings, redis_url=url.replace("://h", "://user:secret@h"))
    assert "secret" not in refused.value.message


def test_what_is_shown_has_no_credentials() -> None:
    shown = [
        parse(url).shown()
        for url in ("rediss://u:p@h/2", "redis+sentinel://u:p@h1:1,h2/hr?sentinel_password=p", "redis+cluster://:p@h:1")
    ]
    assert shown == ["rediss://h:6379/2", "redis+sentinel://h1:1,h2:26379/hr/0", "redis+cluster://h:1"]
    assert "secret" not in repr(parse("redis+sentinel://:secret@h/hr?sentinel_password=secret"))


async def test_every_mode_connects_with_its_credentials_and_certificates_and_no_retries() -> None:
    tls = {"redis_ca_file": "/ca", "redis_cert_file": "/cert", "redis_key_file": "/key"}
    hosts = ("rediss://u:p@h", "rediss+sentinel://u:p@h/hr", "rediss+cluster://u:p@h")
    clients: list[Any] = [connect(load(RedisSettings, redis_url=url, redis_timeout_s=3, **tls)) for url in hosts]
    pool = [client.connection_pool.connection_kwargs for client in clients[:2]]
    assert isinstance(clients[1], SentinelClient) and isinstance(clients[2], ClusterClient)
    for kwargs in (*pool, clients[2].connection_kwargs):
        wanted = {"username": "u", "password": "p", "socket_timeout": 3, "ssl_ca_certs": "/ca", "ssl_keyfile": "/key"}
        assert kwargs | wanted == kwargs
    retries = [kwargs["retry"].get_retries() for kwargs in pool] + [clients[2].retry.get_retries()]
    assert retries == [0, 0, 0]
