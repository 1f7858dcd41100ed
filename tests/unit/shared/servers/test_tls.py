"""Certificates: one context for all connections, of the given authority alone, made anew when a file was renewed."""

from __future__ import annotations

import os
import shutil
import ssl
from pathlib import Path

import pytest
from redis.asyncio.connection import RedisSSLContext

from shared.servers.tls import context_of
from tests.contract.redis_modes.tls_front import Certificate, make_certificate

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="no certificate without openssl")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("certificate"))


def asked(certificate: Certificate, **options: object) -> RedisSSLContext:
    files = {"ca_certs": certificate.file, "certfile": certificate.file, "keyfile": certificate.key}
    values: dict[str, object] = {"cert_reqs": "required", "check_hostname": True, **files, **options}
    return RedisSSLContext(**{name: str(v) if isinstance(v, Path) else v for name, v in values.items()})  # type: ignore[arg-type]


def test_connections_of_the_same_options_share_their_context(certificate: Certificate) -> None:
    assert context_of(asked(certificate)) is context_of(asked(certificate))
    assert context_of(asked(certificate)) is not context_of(asked(certificate, check_hostname=False))


def test_only_the_given_authority_is_believed(certificate: Certificate) -> None:
    context = context_of(asked(certificate))
    assert len(context.get_ca_certs()) == 1
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)


def test_without_one_those_of_the_system_are(certificate: Certificate) -> None:
    assert context_of(asked(certificate, ca_certs=None)).verify_mode is ssl.CERT_REQUIRED
    assert context_of(asked(certificate, cert_reqs="none")).verify_mode is ssl.CERT_NONE


def test_a_renewed_certificate_is_read_again(certificate: Certificate) -> None:
    before = context_of(asked(certificate))
    os.utime(certificate.file, ns=(1, 1))
    assert context_of(asked(certificate)) is not before


def test_a_file_that_is_not_there_is_said(certificate: Certificate, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nowhere"):
        context_of(asked(certificate, ca_certs=tmp_path / "nowhere.pem"))
