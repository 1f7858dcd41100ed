"""TLS: the server must show a certificate of our authority, and is shown ours, by URL or by settings."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from loadtest.deployments import Deployment
from shared.config import RedisSettings
from shared.redis_client import connect
from tests.contract.redis_modes.conftest import TlsDeployment


@pytest.fixture
def tls(deployments: Callable[[str], Deployment]) -> TlsDeployment:
    deployment = deployments("tls")
    assert isinstance(deployment, TlsDeployment)
    return deployment


async def answers(settings: RedisSettings) -> bool:
    client = connect(settings)
    try:
        return await client.ping()
    finally:
        await client.aclose()


async def test_certificates_may_be_settings(tls: TlsDeployment) -> None:
    files = {"redis_ca_file": tls.certificate, "redis_cert_file": tls.certificate, "redis_key_file": tls.key}
    assert await answers(
        RedisSettings.model_validate({"redis_url": tls.bare_url, **{n: str(f) for n, f in files.items()}})
    )


async def test_a_server_of_an_unknown_authority_is_not_spoken_to(tls: TlsDeployment) -> None:
    with pytest.raises(RedisConnectionError, match="CERTIFICATE_VERIFY_FAILED"):
        await answers(RedisSettings(redis_url=tls.bare_url))


async def test_a_server_under_another_name_is_not_spoken_to(tls: TlsDeployment) -> None:
    with pytest.raises(RedisConnectionError, match="certificate is not valid for 'localhost'"):
        await answers(RedisSettings(redis_url=tls.url.replace("127.0.0.1", "localhost")))


async def test_a_client_without_a_certificate_is_refused_by_the_server(tls: TlsDeployment) -> None:
    with pytest.raises(RedisConnectionError):
        await answers(RedisSettings(redis_url=tls.bare_url, redis_ca_file=str(tls.certificate)))
