"""Bytes in a folder and in another store of fsspec's: whole or not there, read in lines."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from gateway.files.blobs import BlobGone, Blobs
from shared.errors import ConfigurationError, Unavailable


@pytest.fixture(params=["folder", "memory"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> Blobs:
    return Blobs(str(tmp_path / "deep" / "files") if request.param == "folder" else f"memory://{tmp_path.name}")


async def write(blobs: Blobs, blob_id: str, data: bytes) -> None:
    async with blobs.writing(blob_id) as blob:
        for start in range(0, len(data), 1000):
            await blob.write(data[start : start + 1000])


async def read(blobs: Blobs, blob_id: str) -> bytes:
    return b"".join([chunk async for chunk in blobs.read(blob_id)])


async def test_what_was_written_is_read_and_removed(blobs: Blobs) -> None:
    data = os.urandom(2_500_000)
    await write(blobs, "a", data)
    await write(blobs, "empty", b"")
    assert await read(blobs, "a") == data and await read(blobs, "empty") == b""
    for _ in range(2):
        await blobs.remove("a")
    with pytest.raises(BlobGone):
        await read(blobs, "a")


async def test_what_breaks_off_leaves_nothing(blobs: Blobs) -> None:
    with pytest.raises(KeyError):
        async with blobs.writing("a") as blob:
            await blob.write(b"x" * 2_000_000)
            raise KeyError
    with pytest.raises(BlobGone):
        await read(blobs, "a")
    assert await blobs.older_than(-60) == []


async def test_lines_are_numbered_and_long_ones_cut(blobs: Blobs) -> None:
    await write(blobs, "a", b"one\r\n\n  \ntwo \n" + b"y" * 3_000_000 + b"\nlast")
    lines = [line async for line in blobs.lines("a", 100)]
    assert [number for number, _ in lines] == [1, 4, 5, 6]
    assert [text for _, text in lines] == [b"one", b"two", b"y" * 101, b"last"]


async def test_what_is_old_is_found(tmp_path: Path) -> None:
    blobs = Blobs(str(tmp_path))
    await write(blobs, "old", b"x")
    await write(blobs, "new", b"x")
    then_s = time.time() - 100
    await asyncio.to_thread(os.utime, tmp_path / "old", (then_s, then_s))
    assert await blobs.older_than(50) == ["old"]


async def test_a_store_that_does_not_answer_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "files").write_text("a file where a folder should be")
    with pytest.raises(Unavailable):
        await write(Blobs(str(tmp_path / "files")), "a", b"x")


def test_a_url_that_nothing_can_open_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="FILE_STORE_URL"):
        Blobs("nosuch://bucket")
