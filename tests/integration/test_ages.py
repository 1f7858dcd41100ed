"""The ages that page people, from a queue on the real server: who waits, who runs, who went back, who is silent."""

from __future__ import annotations

from shared.operations.ages import RETURNED, Ages, read_ages
from tests.integration.queue_actors import MODEL, Actors


async def ages(actors: Actors) -> Ages:
    """Once the server's clock, in milliseconds, has gone on."""
    began = await server_ms(actors)
    while await server_ms(actors) == began:
        pass
    return await read_ages(actors.scripts, MODEL)


async def server_ms(actors: Actors) -> int:
    seconds, micros = await actors.scripts.client.execute_command("TIME")  # type: ignore[attr-defined]
    return int(seconds) * 1000 + int(micros) // 1000


async def test_the_oldest_is_told_by_class_and_state(actors: Actors) -> None:
    await actors.admit("first")
    waiting = (await ages(actors)).oldest_s
    assert waiting["default", "waiting"] > 0 and waiting["default", "running"] == waiting["batch", "waiting"] == 0
    await actors.register("w1")
    delivery = await actors.take_one("w1")
    running = await ages(actors)
    assert running.oldest_s["default", "waiting"] == 0 < running.oldest_s["default", "running"]
    assert running.heartbeat_s < 60
    await actors.queue.release("first", delivery.owner, max_crashes=0)
    assert (await ages(actors)).oldest_s[RETURNED] > 0


def test_of_two_revisions_the_older_counts() -> None:
    both = Ages({("default", "waiting"): 5.0}, 1, 2.0).older(Ages({("default", "waiting"): 3.0, RETURNED: 1.0}, 2, 4.0))
    assert both == Ages({("default", "waiting"): 5.0, RETURNED: 1.0}, 3, 4.0)
