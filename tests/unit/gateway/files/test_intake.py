"""Uploads as they come: however the bytes are cut, whatever the order of the parts, and what is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gateway.files.intake import Intake, Upload
from shared.errors import BodyTooLarge, HeadraceError, InvalidRequest, UnsupportedMediaType

KIND = "multipart/form-data; boundary=xyz"
ALLOWED = frozenset({"purpose"})


def part(name: str, value: bytes, filename: str | None = None) -> bytes:
    about = f'; filename="{filename}"' if filename is not None else ""
    return f'--xyz\r\nContent-Disposition: form-data; name="{name}"{about}\r\n\r\n'.encode() + value + b"\r\n"


FILE = bytes(range(256)) * 20 + b"\r\n--xy"
END = b"--xyz--\r\n"
WHOLE = part("purpose", b"batch") + part("file", FILE, "in.jsonl") + END


async def taken(body: bytes, size: int = 64, max_bytes: int = 10_000, kind: str = KIND) -> tuple[Upload, bytes]:
    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(body), size):
            yield body[start : start + size]

    got = bytearray()

    async def sink(data: bytes) -> None:
        got.extend(data)

    return await Intake(kind, ALLOWED, max_bytes).read(chunks(), sink), bytes(got)


@pytest.mark.parametrize("size", [1, 7, 64, 100_000])
async def test_a_file_arrives_whole_however_it_is_cut(size: int) -> None:
    upload, data = await taken(WHOLE, size)
    assert (upload.fields, upload.filename, upload.num_bytes) == ({"purpose": "batch"}, "in.jsonl", len(FILE))
    assert data == FILE


async def test_the_file_may_come_first() -> None:
    upload, data = await taken(part("file", FILE, "a") + part("purpose", b"batch") + END)
    assert upload.fields == {"purpose": "batch"} and data == FILE


async def test_a_filename_is_no_path() -> None:
    upload, _ = await taken(part("file", b"x", "../../etc\\pass\x1bwd") + END)
    assert upload.filename == "pass" + "wd"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (part("colour", b"red") + WHOLE, "colour"),
        (part("purpose", b"batch") + WHOLE, "purpose"),
        (part("file", b"x", "a") + WHOLE, "file"),
        (part("file", b"x") + END, "file"),
        (part("purpose", b"x" * 2000) + END, "purpose"),
        (WHOLE[:-4], None),
        (b"this is no form", None),
    ],
)
async def test_what_cannot_be_meant_is_refused_by_name(body: bytes, param: str | None) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await taken(body)
    assert caught.value.param == param


async def test_a_file_over_the_limit_is_refused_when_it_is() -> None:
    with pytest.raises(BodyTooLarge, match="100 bytes"):
        await taken(part("file", FILE, "a"), max_bytes=100)


@pytest.mark.parametrize("kind", ["", "application/json", "multipart/form-data"])
async def test_another_kind_of_body_is_not_read(kind: str) -> None:
    with pytest.raises(UnsupportedMediaType) as caught:
        await taken(WHOLE, kind=kind)
    assert isinstance(caught.value, HeadraceError)
