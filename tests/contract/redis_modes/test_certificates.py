"""TLS: the server must show a certificate of our authority, and is shown ours, by URL or by settings."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from loadtest.deployments import Deployment
from shared.config import RedisSettings
from shared.redis_client import AWAY, connect, inspect_server
from tests.contract.redis_modes.tls_deployments import SingleTls, TlsDeployment


@pytest.fixture
def tls(deployments: Callable[[str], Deployment]) -> SingleTls:
    deployment = deployments("tls")
    assert isinstance(deployment, SingleTls)
    return deployment


@pytest.fixture(params=["sentinel_tls", "cluster_tls"])
def many(request: pytest.FixtureRequest, deployments: Callable[[str], Deployment]) -> TlsDeployment:
    """Servers that name one another."""
    deployment = deployments(request.param)
    assert isinstance(deployment, TlsDeployment)
    return deployment


async def answers(settings: RedisSettings) -> bool:
    client = connect(settings)
    try:
        return await client.ping()
    finally:
        await client.aclose()


async def test_certificates_may_be_settings(tls: SingleTls) -> None:
    shown = tls.certificate
    files = {"redis_ca_file": shown.file, "redis_cert_file": shown.file, "redis_key_file": shown.key}
    assert await answers(
        RedisSettings.model_validate({"redis_url": tls.bare_url, **{n: str(f) for n, f in files.items()}})
    )


async def test_a_server_of_an_unknown_authority_is_not_spoken_to(tls: SingleTls) -> None:
    with pytest.raises(RedisConnectionError, match="CERTIFICATE_VERIFY_FAILED"):
        await answers(RedisSettings(redis_url=tls.bare_url))


async def test_a_server_under_another_name_is_not_spoken_to(tls: SingleTls) -> None:
    with pytest.raises(RedisConnectionError, match="certificate is not valid for 'localhost'"):
        await answers(RedisSettings(redis_url=tls.url.replace("127.0.0.1", "localhost")))


async def test_a_client_without_a_certificate_is_refused_by_the_server(tls: SingleTls) -> None:
    with pytest.raises(RedisConnectionError):
        await answers(RedisSettings(redis_url=tls.bare_url, redis_ca_file=str(tls.certificate.file)))


async def test_servers_that_name_one_another_are_spoken_to_over_tls(many: TlsDeployment) -> None:
    """The addresses they announce lead to their fronts: a handshake was seen before each master."""
    num_before = dict(many.fronts.num_tls)
    client = connect(RedisSettings(redis_url=many.url))
    assert await inspect_server(client) == []
    await client.aclose()
    of_masters = [server.port for server in many.servers if "role:master" in server.ask("INFO", "replication")]
    assert of_masters and all(many.fronts.num_tls[port] > num_before[port] for port in of_masters)


async def test_servers_of_an_unknown_authority_are_not_spoken_to(many: TlsDeployment) -> None:
    with pytest.raises(AWAY):
        await answers(RedisSettings(redis_url=many.bare_url))
