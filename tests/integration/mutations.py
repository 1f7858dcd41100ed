"""The frame of the mutation tests: a defence is taken out of a script, and its schedule must fail."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from shared.redis_client import Scripts
from tests.integration.faults import MutatedScripts
from tests.integration.queue_actors import actors_on


@dataclass(frozen=True)
class Defence:
    """Taken out: `old` in the script becomes `new`. The schedule is given what `fails_without` casts."""

    schedule: Callable[[Any], Awaitable[None]]
    script: str
    old: str
    new: str = ""


def each_of(defences: Sequence[Defence]) -> pytest.MarkDecorator:
    """The test is run with each as its `defence`."""
    return pytest.mark.parametrize("defence", defences, ids=lambda d: f"{d.script}-{d.schedule.__name__}")


async def fails_without(
    defence: Defence,
    scripts: Scripts,
    cast: Callable[[Scripts], Any] = actors_on,
    mutate: type[MutatedScripts] = MutatedScripts,
) -> None:
    mutated = mutate(scripts.client, defence.script, defence.old, defence.new)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        await defence.schedule(cast(mutated))
