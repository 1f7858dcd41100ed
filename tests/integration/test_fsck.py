"""fsck, the oracle of the other tests, must see each kind of disagreement."""

from __future__ import annotations

import pytest

from shared import keys
from tests.integration.queue_actors import MODEL, Actors, tokens

BASE = keys.base(MODEL)


@pytest.fixture
async def busy(actors: Actors) -> Actors:
    """One running request, one waiting, one finished."""
    await actors.register("w1")
    for request_id in ("running", "finished", "waiting"):
        await actors.admit(request_id)
    first, second = await actors.take("w1", slots=2)
    await actors.emit("w1", first, tokens(7))
    await actors.finish("w1", second)
    assert await actors.problems() == []
    return actors


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (("HINCRBY", f"{BASE}counts", "waiting", "1"), "counts.waiting is 2"),
        (("HINCRBY", f"{BASE}counts", "running", "-1"), "counts.running is 0"),
        (("HINCRBY", f"{BASE}tenant:t", "running", "1"), "tenant:t has running 2"),
        (("HINCRBY", f"{BASE}tenant:t", "waiting:default", "1"), "tenant:t has waiting:default 2"),
        (("DEL", f"{BASE}b:waiting"), "waiting without its body"),
        (("DEL", f"{BASE}own:w1"), "not in own:w1"),
        (("DEL", f"{BASE}q:default:t"), "without its stream entry"),
        (("DEL", f"{BASE}flows:default"), "flows:default is []"),
        (("SET", f"{BASE}b:finished", "x"), "finished but keeps its body"),
        (("PERSIST", f"{BASE}r:finished"), "never expires"),
        (("EXPIRE", f"{BASE}r:waiting", "60"), "and yet it expires"),
        (("ZADD", f"{BASE}deadlines", "1", "finished"), "has a deadline"),
        (("SET", f"{BASE}j:finished", ""), "without its end frame"),
        (("HSET", f"{BASE}r:running", "state", "waiting"), "waiting but delivered to w1"),
        (("XGROUP", "CREATECONSUMER", f"{BASE}q:default:t", "w", "gone"), "has the consumer gone"),
        (("ZADD", f"{BASE}idle", "1", "gone"), "idle has gone, who is not registered"),
        (("ZADD", f"{BASE}woken", "1", "gone"), "woken has gone, who is not registered"),
    ],
)
async def test_damage_is_found(busy: Actors, damage: tuple[str, ...], words: str) -> None:
    await busy.scripts.client.execute_command(*damage)  # type: ignore[attr-defined]
    assert any(words in problem for problem in await busy.problems())


async def test_a_stream_that_goes_while_it_is_looked_at_is_no_error(
    busy: Actors, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = busy.scripts.client
    length = client.xlen

    async def last_look(key: str | bytes) -> int:
        found = await length(key)
        await client.execute_command("DEL", key)  # type: ignore[attr-defined]
        return found

    monkeypatch.setattr(client, "xlen", last_look)
    assert await busy.problems() == []
