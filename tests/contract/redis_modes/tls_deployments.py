"""Every way to run Redis, over TLS: fronts stand before the servers, which announce their fronts' ports to all."""

from __future__ import annotations

from pathlib import Path

from loadtest.deployments import ClusterDeployment, Deployment, SentinelDeployment, SingleDeployment
from tests.contract.redis_modes.tls_front import HOST, Certificate, TlsFronts, make_certificate


class TlsDeployment(Deployment):
    """Clients must show a certificate. `bare_url` says nothing of certificates."""

    certificate: Certificate
    fronts: TlsFronts

    @property
    def bare_url(self) -> str:
        return self.url.partition("?")[0]

    def kill(self) -> None:
        super().kill()
        self.fronts.stop()

    def _prepare(self, directory: Path) -> None:
        self.certificate = make_certificate(directory)
        self.fronts = TlsFronts(self.certificate)

    def _front(self, port: int) -> int:
        return self.fronts.open(port, admits_plain=True)

    def _over_tls(self, url: str) -> str:
        return url.replace("redis", "rediss", 1) + self.certificate.query()


class SingleTls(TlsDeployment, SingleDeployment):
    """Nobody gets by without TLS: a single server speaks with no other."""

    def __init__(self, directory: Path) -> None:
        self._prepare(directory)
        SingleDeployment.__init__(self, directory)
        port = self.fronts.open(self.servers[0].port)
        self.url = self._over_tls(f"redis://{HOST}:{port}/0")


class SentinelTls(TlsDeployment, SentinelDeployment):
    def __init__(self, directory: Path) -> None:
        self._prepare(directory)
        SentinelDeployment.__init__(self, directory, self._front)
        self.url = self._over_tls(self.url)


class ClusterTls(TlsDeployment, ClusterDeployment):
    def __init__(self, directory: Path) -> None:
        self._prepare(directory)
        ClusterDeployment.__init__(self, directory, self._front)
        self.url = self._over_tls(self.url)
