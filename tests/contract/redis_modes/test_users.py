"""The users of deploy/redis/users.acl on a real server: each can do all it needs, and no more."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import AuthenticationError, NoPermissionError, ResponseError

import deploy
from loadtest.deployments import AclDeployment, Deployment
from shared import keys
from shared.config import RedisSettings
from shared.redis_client import connect
from tests.contract.redis_modes.conftest import Mode, mode_of
from tests.integration.queue_actors import MODEL, tokens

USERS = {
    line.split()[1]: line.split()
    for line in (Path(deploy.__path__[0]) / "redis" / "users.acl").read_text("utf-8").splitlines()
}
FORBIDDEN = (
    "KEYS *", "FLUSHALL", "FLUSHDB", "CONFIG SET maxmemory 1", "CONFIG GET *", "CONFIG REWRITE",
    "SHUTDOWN NOSAVE", "REPLICAOF NO ONE", "ACL LIST", "SCRIPT FLUSH", "CLIENT KILL TYPE pubsub", "MONITOR",
    "FUNCTION FLUSH", "SAVE", "GET other", "SUBSCRIBE other",
)  # fmt: skip
OPS_FORBIDDEN = (f"SET hr:{{{MODEL}}}:counts 1", f"DEL hr:{{{MODEL}}}:r:r1", "HGETALL hr:keys", "EVAL return 0")
OPS_READS = (
    "HKEYS hr:models", f"HGETALL hr:{{{MODEL}}}:counts", f"HGETALL hr:{{{MODEL}}}:r:r1", f"HGETALL hr:{{{MODEL}}}:w:w1",
    f"XINFO GROUPS hr:{{{MODEL}}}:q:default:t", f"XPENDING hr:{{{MODEL}}}:q:default:t w - + 20", "TIME",
    f"ZRANGE hr:{{{MODEL}}}:lease 0 -1 WITHSCORES", f"ZRANGE hr:{{{MODEL}}}:own:w1 0 -1", "ZRANGE hr:gateways 0 -1",
    f"SMEMBERS hr:{{{MODEL}}}:g:r1", f"SMEMBERS hr:{{{MODEL}}}:att:g1", f"XREVRANGE hr:{{{MODEL}}}:events + - COUNT 20",
    f"XREVRANGE hr:{{{MODEL}}}:dead + - COUNT 10", f"XREVRANGE hr:{{{MODEL}}}:history + - COUNT 20", "INFO memory",
    "INFO persistence", f"PUBSUB NUMSUB hr:out:{{{MODEL}}}:g1", "CLIENT LIST TYPE pubsub", "SLOWLOG GET 5",
    f"MEMORY USAGE hr:{{{MODEL}}}:r:r1", f"ZRANGE hr:{{{MODEL}}}:deadlines 0 4",
    f"ZRANGE hr:{{{MODEL}}}:promises 0 -1 WITHSCORES", f"ZRANGE hr:{{{MODEL}}}:idle 0 -1",
    f"ZRANGE hr:{{{MODEL}}}:woken 0 -1", f"LLEN hr:{{{MODEL}}}:bell:w1",
)  # fmt: skip


@pytest.fixture
async def mode(deployments: Callable[[str], Deployment]) -> AsyncIterator[Mode]:
    """A server with users, and a request that runs."""
    async with mode_of(deployments("acl")) as mode:
        await mode.gateway.admit("r1", deadline_ms=60_000)
        await mode.worker.register("w1")
        await mode.worker.emit("w1", await mode.worker.take_one("w1"), tokens(7))
        yield mode


async def ask(mode: Mode, user: str, *commands: str) -> list[Any]:
    """The reply or the error of each command."""
    assert isinstance(mode.deployment, AclDeployment)
    client: Any = connect(RedisSettings(redis_url=mode.deployment.url_of(user)))
    client.response_callbacks.clear()
    replies: list[Any] = []
    for command in commands:
        try:
            replies.append(await client.execute_command(*command.split()))
        except ResponseError as error:
            replies.append(error)
    await client.aclose()
    return replies


@pytest.mark.parametrize("user", ["gateway", "worker", "ops"])
async def test_nobody_may_do_what_an_administrator_may(mode: Mode, user: str) -> None:
    replies = await ask(mode, user, *FORBIDDEN)
    assert [c for c, reply in zip(FORBIDDEN, replies, strict=True) if not isinstance(reply, NoPermissionError)] == []


async def test_ops_reads_all_but_bodies_and_journals_and_changes_nothing(mode: Mode) -> None:
    replies = await ask(mode, "ops", *OPS_READS)
    assert [(c, reply) for c, reply in zip(OPS_READS, replies, strict=True) if isinstance(reply, Exception)] == []
    texts = [f"{command} {keys.base(MODEL)}{kind}:r1" for command in ("GET", "STRLEN") for kind in ("b", "j")]
    refused = await ask(mode, "ops", *texts, *OPS_FORBIDDEN)
    assert [type(reply) for reply in refused] == [NoPermissionError] * len(refused)


async def test_a_worker_reads_no_api_keys_and_no_buckets(mode: Mode) -> None:
    refused = await ask(mode, "worker", "HGETALL hr:keys", "HGETALL hr:t:{t}:buckets", "SUBSCRIBE hr:out:x")
    assert [type(reply) for reply in refused] == [NoPermissionError] * 3


@pytest.mark.parametrize("user", ["gateway", "worker"])
def test_every_command_of_the_scripts_is_allowed(user: str) -> None:
    folder = resources.files("shared") / "lua"
    files = [path for at in (folder, folder / "include") for path in at.iterdir() if path.name.endswith(".lua")]
    calls = {call for path in files for call in re.findall(r"call\('(\w+)'(?:, '([A-Z]+)')?", path.read_text("utf-8"))}
    allowed = {word.removeprefix("+") for word in USERS[user]}
    needed = {name.lower() if name not in ("XGROUP", "XINFO") else f"{name}|{sub}".lower() for name, sub in calls}
    assert len(needed) > 30 and needed - allowed == set()


async def test_the_default_user_and_a_wrong_password_get_nowhere(mode: Mode) -> None:
    url = mode.deployment.url.replace("GATEWAY-secret", "wrong")
    for address in (url, re.sub("//.*@", "//", url)):
        client = connect(RedisSettings(redis_url=address))
        with pytest.raises(AuthenticationError):
            await client.ping()
        await client.aclose()
