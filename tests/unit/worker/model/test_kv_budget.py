from __future__ import annotations

import logging
from typing import Any

import pytest

from shared.errors import ConfigurationError
from worker.model import kv_budget
from worker.model.cpu.choice import Placement
from worker.model.kv_budget import reservable_blocks, usable_blocks
from worker.model.memory import FreeMemory

MIB = 1 << 20


def place(*, device: str = "cpu", kv_cache_bytes: int = 0, **settings: Any) -> Placement:
    settings = {"context_length": 320} | settings
    return Placement(device=device, dtype="float32", threads=1, kv_cache_bytes=kv_cache_bytes, **settings)


@pytest.fixture
def set_free(monkeypatch: pytest.MonkeyPatch) -> Any:
    def set_to(mib: int | None) -> None:
        found = None if mib is None else FreeMemory(mib * MIB, "the system")
        monkeypatch.setattr(kv_budget, "free_memory", lambda _device: found)

    return set_to


@pytest.mark.parametrize(
    ("settings", "free_mib", "blocks"),
    [
        ({}, 1000, 500),  # half of it
        ({}, 100_000, 1024),  # at most
        ({}, None, 1024),
        ({"kv_cache_share": 0.25}, 100_000, 25_000),
        ({"device": "cuda:0"}, 1000, 850),
        ({"device": "cuda:0", "kv_cache_share": 0.5}, 1000, 500),
        ({"kv_cache_bytes": 30 * MIB, "kv_cache_share": 0.5}, 1000, 30),  # wins
        ({"kv_cache_bytes": 30 * MIB}, 20, 30),  # whatever is free
    ],
)
def test_how_many_blocks_of_a_mebibyte(
    set_free: Any, settings: dict[str, Any], free_mib: int | None, blocks: int
) -> None:
    set_free(free_mib)
    assert usable_blocks(place(**settings), MIB) == reservable_blocks(place(**settings), MIB) == blocks


def test_what_loading_took_is_not_given_to_the_cache(set_free: Any) -> None:
    set_free(1000)
    reserved = reservable_blocks(place(), MIB)
    set_free(600)
    assert (reserved, usable_blocks(place(), MIB, most=reserved)) == (500, 300)
    set_free(2000)  # somebody else ended meanwhile
    assert usable_blocks(place(), MIB, most=reserved) == 500


def test_one_line_says_how_many_and_why(set_free: Any, caplog: pytest.LogCaptureFixture) -> None:
    set_free(1000)
    with caplog.at_level(logging.INFO):
        usable_blocks(place(), MIB)
    [record] = caplog.records
    assert (record.levelname, record.msg) == ("INFO", "kv_cache")
    assert (record.__dict__["mib"], record.__dict__["blocks"], record.__dict__["tokens"]) == (500, 499, 7984)
    assert record.__dict__["why"] == "50% of 1000 MiB that the system has left"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"context_length": 9000}, "requests have at most 7984 tokens, not the 9000 that the model allows"),
        ({"kv_cache_bytes": 3000 * MIB}, "3000 MiB asked for, more than the 1000 MiB that the system has left"),
    ],
)
def test_what_an_operator_should_know_is_a_warning(
    set_free: Any, caplog: pytest.LogCaptureFixture, settings: dict[str, Any], words: str
) -> None:
    set_free(1000)
    usable_blocks(place(**settings), MIB)
    [record] = caplog.records
    assert record.levelname == "WARNING" and words in record.__dict__["why"]


def test_no_room_for_a_block_is_refused(set_free: Any) -> None:
    set_free(3)
    for ask in (usable_blocks, reservable_blocks):
        with pytest.raises(ConfigurationError, match="does not hold one block"):
            ask(place(), MIB)


def test_a_share_of_what_nobody_knows_is_refused(set_free: Any) -> None:
    set_free(None)
    with pytest.raises(ConfigurationError, match="does not say what is free"):
        usable_blocks(place(kv_cache_share=0.5), MIB)
