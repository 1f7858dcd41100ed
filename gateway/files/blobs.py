"""The bytes of files, in a folder or in anything fsspec knows, by the id of the file they belong to.

fsspec is synchronous: every call here is made in a thread. Bytes are written under another name first and get their
own when they are whole, so what can be read is complete. Knows no tenants and no rows.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, BinaryIO, cast

import fsspec

from shared.errors import ConfigurationError, Unavailable

CHUNK_BYTES = 1 << 20
_PART = ".part"


class BlobGone(Exception):
    """There are no bytes under this id."""


class Blobs:
    """`url`: as fsspec takes it, `s3://bucket/prefix`; a path is a folder here, made when it is first needed."""

    def __init__(self, url: str) -> None:
        try:
            system, root = cast("tuple[Any, str]", fsspec.url_to_fs(url))
        except (ValueError, ImportError, OSError) as error:
            raise ConfigurationError(f"HEADRACE_FILE_STORE_URL cannot be used: {error}") from error
        self._system = system
        self._root = root.rstrip("/")

    @asynccontextmanager
    async def writing(self, blob_id: str) -> AsyncGenerator[BlobWriter]:
        """The bytes are there when the block ends, and not at all when it raises. Raises Unavailable."""
        writer = BlobWriter(self._system, self._path(blob_id))
        try:
            yield writer
            await _in_thread(writer.finish)
        except BaseException:
            await asyncio.shield(asyncio.to_thread(writer.give_up))
            raise

    async def read(self, blob_id: str) -> AsyncGenerator[bytes]:
        """In chunks. Raises BlobGone before the first, Unavailable."""
        handle = await _in_thread(self._open, blob_id)
        try:
            while chunk := cast(bytes, await _in_thread(handle.read, CHUNK_BYTES)):
                yield chunk
        finally:
            await asyncio.to_thread(handle.close)

    async def lines(self, blob_id: str, max_bytes: int) -> AsyncGenerator[tuple[int, bytes]]:
        """Lines by number, from 1, without the blank ones and their ends. Of one that is longer than `max_bytes` no
        more than `max_bytes` + 1 are given. Raises BlobGone, Unavailable."""
        number, carried = 1, b""
        async with contextlib.aclosing(self.read(blob_id)) as chunks:
            async for chunk in chunks:
                *whole, rest = chunk.split(b"\n")
                for line in whole:
                    carried += line[: max(0, max_bytes + 2 - len(carried))]
                    if text := carried.strip()[: max_bytes + 1]:
                        yield number, text
                    number, carried = number + 1, b""
                carried += rest[: max(0, max_bytes + 2 - len(carried))]
        if text := carried.strip()[: max_bytes + 1]:
            yield number, text

    async def remove(self, blob_id: str) -> None:
        """Removed, or not there. Raises Unavailable."""
        await _in_thread(self._remove, self._path(blob_id))

    async def older_than(self, age_s: float) -> list[str]:
        """Ids of bytes that were written so long ago, whole or not. Raises Unavailable."""
        return await _in_thread(self._older_than, age_s)

    def _path(self, blob_id: str) -> str:
        return f"{self._root}/{blob_id}"

    def _open(self, blob_id: str) -> BinaryIO:
        try:
            return cast("BinaryIO", self._system.open(self._path(blob_id), "rb"))
        except FileNotFoundError as error:
            raise BlobGone(blob_id) from error

    def _remove(self, path: str) -> None:
        for name in (path, path + _PART):
            with contextlib.suppress(FileNotFoundError):
                self._system.rm_file(name)

    def _older_than(self, age_s: float) -> list[str]:
        try:
            entries = cast("list[dict[str, Any]]", self._system.ls(self._root, detail=True, refresh=True))
        except FileNotFoundError:
            return []
        limit_s = time.time() - age_s
        return [_name(entry).removesuffix(_PART) for entry in entries if _written_s(entry) < limit_s]


class BlobWriter:
    """Collects up to a chunk before it goes to a thread."""

    def __init__(self, system: Any, path: str) -> None:
        self.num_bytes = 0
        self._system = system
        self._path = path
        self._handle: BinaryIO | None = None
        self._pending = bytearray()

    async def write(self, data: bytes) -> None:
        """Raises Unavailable."""
        self.num_bytes += len(data)
        self._pending += data
        if len(self._pending) >= CHUNK_BYTES:
            await _in_thread(self._flush)

    def finish(self) -> None:
        self._flush()
        assert self._handle is not None
        self._handle.close()
        self._system.mv(self._path + _PART, self._path)

    def give_up(self) -> None:
        with contextlib.suppress(Exception):
            if self._handle is not None:
                self._handle.close()
                self._system.rm_file(self._path + _PART)

    def _flush(self) -> None:
        if self._handle is None:
            self._system.makedirs(self._path.rpartition("/")[0], exist_ok=True)
            self._handle = cast("BinaryIO", self._system.open(self._path + _PART, "wb"))
        self._handle.write(bytes(self._pending))
        self._pending.clear()


def _name(entry: dict[str, Any]) -> str:
    return str(entry["name"]).rstrip("/").rpartition("/")[2]


def _written_s(entry: dict[str, Any]) -> float:
    """Seconds since 1970; of a store that does not tell, now: it is kept."""
    for key in ("mtime", "LastModified", "last_modified", "updated"):
        value = entry.get(key)
        if isinstance(value, int | float):
            return float(value)
        if isinstance(value, datetime):
            return value.timestamp()
    return time.time()


@contextlib.contextmanager
def _answered() -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise Unavailable(f"the file store does not answer: {type(error).__name__}") from error


async def _in_thread(call: Any, *args: Any) -> Any:
    with _answered():
        return await asyncio.to_thread(call, *args)
