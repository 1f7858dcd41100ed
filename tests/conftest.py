"""`--seeds FROM:TO` runs a part of the long runs over random schedules: so one that was broken off is gone on with.
`--vllm-python PATH` names the interpreter that vLLM is installed for."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--vllm-python", metavar="PATH", help="of an environment with vLLM, for end-to-end tests of it")
    parser.addoption(
        "--seeds", metavar="FROM:TO", help="of tests that are cut by `first_seed`, those in this range only"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted: str | None = config.getoption("--seeds")
    if wanted is None:
        return
    first, _, last = wanted.partition(":")
    if not (first.isdecimal() and last.isdecimal()):
        raise pytest.UsageError(f"--seeds {wanted}: not two numbers with a colon between them")
    seeds = range(int(first), int(last))
    dropped = [item for item in items if _first_seed(item) not in (None, *seeds)]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item in items if item not in dropped]


def _first_seed(item: pytest.Item) -> int | None:
    """None: the test is not cut by seeds."""
    call = getattr(item, "callspec", None)
    return None if call is None else call.params.get("first_seed")
