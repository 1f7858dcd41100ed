"""Sentinel and Cluster on this machine: the embedded server several times over, with failovers that take a second.

As many processes as the mode needs to fail over: a master, a replica and three sentinels; three masters and their
replicas. Loopback only, on free ports; each process is killed by its own pid.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

import deploy
from deploy.valkey import HOST, server_argv, server_binary
from loadtest.valkey import free_port

START_S = 20.0
# What a busy machine keeps a server from answering without a failover that nobody ordered.
DOWN_MS = 1500
SLOTS = 16384
# Usual settings wait for the next second at several places, a master five more for other replicas.
FAST_SYNC = ("--repl-diskless-sync", "no", "--repl-diskless-load", "on-empty-db")
# The port by which a server is known to all others, for its own: the same, or that of a proxy before it.
Front = Callable[[int], int]


class Server:
    """One process of a deployment."""

    def __init__(self, directory: Path, port: int, argv: Sequence[str]) -> None:
        self.port = port
        with (directory / f"valkey-{port}.out").open("wb") as out:
            self.process = subprocess.Popen(argv, stdout=out, stderr=subprocess.STDOUT)
        wait_until(lambda: self.ask("PING").startswith(("PONG", "-NOAUTH")))

    def ask(self, *words: str | int) -> str:
        """The reply's first line or bulk text; '' when it does not answer, '-...' for an error."""
        try:
            with socket.create_connection((HOST, self.port), timeout=2) as connection:
                connection.sendall("\r\n".join([f"*{len(words)}", *(_bulk(str(w)) for w in words), ""]).encode())
                return _reply(connection)
        except OSError:
            return ""

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def _bulk(word: str) -> str:
    return f"${len(word.encode())}\r\n{word}"


def _reply(connection: socket.socket) -> str:
    with connection.makefile("rb") as lines:
        head = lines.readline().decode().rstrip("\r\n")
        if not head.startswith("$"):
            return head.removeprefix("+").removeprefix(":")
        return lines.read(int(head[1:])).decode() if head != "$-1" else ""


def wait_until(holds: Callable[[], bool]) -> None:
    give_up = time.monotonic() + START_S
    while not holds():
        if time.monotonic() > give_up:
            raise RuntimeError("the deployment does not come up")
        time.sleep(0.02)


def start_server(directory: Path, *options: str, port: int = 0) -> Server:
    """A server that finds its data again when it is started once more on its port."""
    port = port or free_port()
    data = directory / str(port)
    data.mkdir(exist_ok=True)
    return Server(directory, port, [*server_argv(server_binary(), port, data), *options])


def _itself(port: int) -> int:
    return port


class Deployment:
    """`servers` die with it; `url` is what a process is given, `worker_url` a worker, `admin_url` who may do all."""

    url: str
    servers: list[Server]
    num_replicas = 0  # of each master

    @property
    def worker_url(self) -> str:
        return self.url

    @property
    def admin_url(self) -> str:
        return self.url

    def __enter__(self) -> Deployment:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()

    def kill(self) -> None:
        for server in self.servers:
            server.kill()

    def kill_master(self, key: str) -> None:
        """The server that keeps this key now dies; another one takes its place, or it comes back.

        Who that is, is asked of the servers each time: on a busy machine there are failovers that nobody ordered.
        """
        raise NotImplementedError


class SingleDeployment(Deployment):
    """One server, which comes back with what it had written."""

    def __init__(self, directory: Path, *options: str) -> None:
        self._directory = directory
        self._options = options
        self.servers = [start_server(directory, *options)]
        self.url = f"redis://{HOST}:{self.servers[0].port}/0"

    def kill_master(self, key: str) -> None:
        self.servers[0].kill()
        self.servers = [start_server(self._directory, *self._options, port=self.servers[0].port)]


class AclDeployment(SingleDeployment):
    """One server with the users of deploy/redis/users.acl, and one more who may do everything."""

    def __init__(self, directory: Path) -> None:
        rules = (Path(deploy.__path__[0]) / "redis" / "users.acl").read_text()
        file = directory / "users.acl"
        file.write_text(rules.replace("_PASSWORD", "-secret") + "user admin on >ADMIN-secret ~* &* +@all\n")
        super().__init__(directory, "--aclfile", str(file))
        self.url = self.url_of("gateway")

    def url_of(self, user: str) -> str:
        return f"redis://{user}:{user.upper()}-secret@{HOST}:{self.servers[0].port}/0"

    @property
    def worker_url(self) -> str:
        return self.url_of("worker")

    @property
    def admin_url(self) -> str:
        return self.url_of("admin")


class SentinelDeployment(Deployment):
    """A master, its replica, three sentinels with a quorum of two."""

    num_replicas = 1

    def __init__(self, directory: Path, front: Front = _itself) -> None:
        self.servers = []
        self._directory = directory
        try:
            self.master, self._master_known_at = self._start(front)
            self.replica, self._replica_known_at = self._start(front)
            # Told by command it connects at once, by option within a second.
            assert self.replica.ask("REPLICAOF", HOST, self._master_known_at) == "OK"
            wait_until(lambda: "master_link_status:up" in self.replica.ask("INFO", "replication"))
            ports = [free_port() for _ in range(3)]
            sentinels = [self._start_sentinel(directory, port, ports) for port in ports]
            wait_until(lambda: all(_knows_all(sentinel) for sentinel in sentinels))
        except BaseException:
            self.kill()
            raise
        hosts = ",".join(f"{HOST}:{front(sentinel.port)}" for sentinel in sentinels)
        self.url = f"redis+sentinel://{hosts}/headrace"

    def kill_master(self, key: str) -> None:
        wait_until(lambda: self._now("role:master") is not None and self._now("master_link_status:up") is not None)
        master = self._now("role:master")
        assert master is not None
        master.kill()

    def _now(self, fact: str) -> Server | None:
        """Which of the two says so, where only one does."""
        saying = [server for server in (self.master, self.replica) if fact in server.ask("INFO", "replication")]
        return saying[0] if len(saying) == 1 else None

    def _start(self, front: Front) -> tuple[Server, int]:
        """A server, and the port it is known by."""
        port = free_port()
        known_at = front(port)
        server = start_server(self._directory, "--replica-announce-port", str(known_at), *FAST_SYNC, port=port)
        self.servers.append(server)
        return server, known_at

    def _start_sentinel(self, directory: Path, port: int, ports: Sequence[int]) -> Server:
        """Told of the replica and of the others: finding them by themselves takes sentinels several seconds."""
        config = directory / f"sentinel-{port}.conf"
        lines = [
            f"bind {HOST}", f"port {port}", f"dir {directory}", f"sentinel myid {port:040x}",
            f"sentinel monitor headrace {HOST} {self._master_known_at} 2",
            f"sentinel down-after-milliseconds headrace {DOWN_MS}",
            "sentinel failover-timeout headrace 2000",
            f"sentinel known-replica headrace {HOST} {self._replica_known_at}",
            *(f"sentinel known-sentinel headrace {HOST} {other} {other:040x}" for other in ports if other != port),
        ]  # fmt: skip
        config.write_text("\n".join(lines) + "\n")
        server = Server(directory, port, [str(server_binary()), str(config), "--sentinel"])
        self.servers.append(server)
        return server


def _knows_all(sentinel: Server) -> bool:
    return "status=ok,address=" in (info := sentinel.ask("INFO", "sentinel")) and "slaves=1,sentinels=3" in info


class ClusterDeployment(Deployment):
    """Three masters with a third of the slots each, and a replica of each."""

    num_replicas = 1

    def __init__(self, directory: Path, front: Front = _itself) -> None:
        self.servers = []
        self._directory = directory
        self._known_at: dict[int, int] = {}
        try:
            self.masters = [self._start(front) for _ in range(3)]
            self.replicas = [self._start(front) for _ in range(3)]
            self._join()
        except BaseException:
            self.kill()
            raise
        hosts = ",".join(f"{HOST}:{self._known_at[master.port]}" for master in self.masters[:2])
        self.url = f"redis+cluster://{hosts}"

    def kill_master(self, key: str) -> None:
        slot = int(self.masters[1].ask("CLUSTER", "KEYSLOT", key))
        pair = (self.masters[slot * 3 // SLOTS], self.replicas[slot * 3 // SLOTS])
        wait_until(lambda: sum(_has_slots(server) for server in pair) == 1)
        next(server for server in pair if _has_slots(server)).kill()

    def _start(self, front: Front) -> Server:
        port = free_port()
        self._known_at[port] = front(port)
        server = start_server(
            self._directory, "--cluster-enabled", "yes", "--cluster-node-timeout", str(DOWN_MS),
            "--cluster-port", str(free_port()), "--cluster-replica-validity-factor", "0",
            "--cluster-announce-port", str(self._known_at[port]), *FAST_SYNC, port=port,
        )  # fmt: skip
        self.servers.append(server)
        return server

    def _join(self) -> None:
        """By hand, as `--cluster create` would: slots, a meeting, replicas, and then everybody knows everybody."""
        for number, master in enumerate(self.masters):
            first, last = -(-number * SLOTS // 3), -(-(number + 1) * SLOTS // 3) - 1
            assert master.ask("CLUSTER", "ADDSLOTSRANGE", first, last) == "OK"
            assert master.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1) == "OK"
        for server in self.servers[1:]:
            assert self.servers[0].ask("CLUSTER", "MEET", HOST, server.port, _bus_port(server)) == "OK"
        wait_until(lambda: all("cluster_known_nodes:6" in server.ask("CLUSTER", "INFO") for server in self.servers))
        for master, replica in zip(self.masters, self.replicas, strict=True):
            wait_until(lambda m=master, r=replica: r.ask("CLUSTER", "REPLICATE", m.ask("CLUSTER", "MYID")) == "OK")
        wait_until(lambda: all("cluster_state:ok" in server.ask("CLUSTER", "INFO") for server in self.servers))
        wait_until(lambda: all("link_status:up" in r.ask("INFO", "replication") for r in self.replicas))
        wait_until(lambda: all(s.ask("CLUSTER", "NODES").count("slave") == 3 for s in self.servers))


def _has_slots(server: Server) -> bool:
    """By its own account, whose line ends with the slots."""
    lines = server.ask("CLUSTER", "NODES").splitlines()
    return any("myself,master" in line and not line.endswith("connected") for line in lines)


def _bus_port(server: Server) -> int:
    return int(server.ask("CLUSTER", "NODES").partition("@")[2].split(" ", 1)[0].partition(",")[0])
