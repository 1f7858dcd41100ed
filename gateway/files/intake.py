"""A multipart body read as it comes: its few fields, and one file that goes on while it arrives.

Never more than a chunk of the file is in memory, whatever the order of the parts. What is not a field we know, comes
twice or is too long is refused by name. Knows no HTTP framework: headers and an iterator of bytes in.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header

from shared.errors import BodyTooLarge, InvalidRequest, UnsupportedMediaType

MAX_FIELD_BYTES = 1024
MAX_FILENAME_CHARS = 255
FILE_PART = "file"
Sink = Callable[[bytes], Awaitable[None]]


@dataclass(slots=True)
class Upload:
    """`filename` None: no file came."""

    fields: dict[str, str] = field(default_factory=dict[str, str])
    filename: str | None = None
    num_bytes: int = 0


@dataclass(slots=True)
class _Part:
    """The part that is being read; `data` is what came of it and is not passed on yet."""

    headers: dict[str, bytes] = field(default_factory=dict[str, bytes])
    name: str = ""
    data: bytearray = field(default_factory=bytearray)


class Intake:
    """One body. `allowed`: the fields that may come beside the file."""

    def __init__(self, content_type: str, allowed: frozenset[str], max_file_bytes: int) -> None:
        kind, options = parse_options_header(content_type)
        if kind != b"multipart/form-data" or not options.get(b"boundary"):
            words = "the content-type must be multipart/form-data with a boundary"
            raise UnsupportedMediaType(words, param="content-type")
        self.upload = Upload()
        self._allowed = allowed
        self._max_file_bytes = max_file_bytes
        self._part = _Part()
        self._header = (bytearray(), bytearray())
        self._passing = bytearray()
        self._is_whole = False
        self._parser = MultipartParser(
            options[b"boundary"],
            {
                "on_part_begin": self._begin,
                "on_header_field": lambda data, start, end: self._header[0].extend(data[start:end]),
                "on_header_value": lambda data, start, end: self._header[1].extend(data[start:end]),
                "on_header_end": self._end_header,
                "on_headers_finished": self._end_headers,
                "on_part_data": self._add,
                "on_part_end": self._end,
                "on_end": self._finish,
            },
        )

    async def read(self, chunks: AsyncIterator[bytes], sink: Sink) -> Upload:
        """The file's bytes go to `sink`. Raises InvalidRequest, and BodyTooLarge as soon as the file is."""
        async for chunk in chunks:
            try:
                self._parser.write(chunk)
            except MultipartParseError as error:
                raise InvalidRequest(f"the multipart body is broken: {str(error)[:200]}") from error
            if self._passing:
                await sink(bytes(self._passing))
                self._passing.clear()
        if not self._is_whole:
            raise InvalidRequest("the multipart body ends before its last boundary")
        return self.upload

    def _begin(self) -> None:
        self._part = _Part()

    def _end_header(self) -> None:
        name, value = self._header
        self._part.headers[name.decode("latin-1").lower()] = bytes(value)
        self._header = (bytearray(), bytearray())

    def _end_headers(self) -> None:
        _, options = parse_options_header(self._part.headers.get("content-disposition", b""))
        name = options.get(b"name", b"").decode("utf-8", "replace")
        self._part.name = name
        if name == FILE_PART:
            if self.upload.filename is not None:
                raise InvalidRequest("file: must be given once", param=FILE_PART)
            if b"filename" not in options:
                raise InvalidRequest("file: must be a file, with a filename", param=FILE_PART)
            self.upload.filename = _safe_name(options[b"filename"])
        elif name not in self._allowed:
            raise InvalidRequest(f"{name[:100]}: is not a known field", param=name[:100], code="unknown_parameter")
        elif name in self.upload.fields:
            raise InvalidRequest(f"{name}: must be given once", param=name)

    def _add(self, data: bytes, start: int, end: int) -> None:
        if self._part.name != FILE_PART:
            self._part.data += data[start:end]
            if len(self._part.data) > MAX_FIELD_BYTES:
                raise InvalidRequest(
                    f"{self._part.name}: is longer than {MAX_FIELD_BYTES} bytes", param=self._part.name
                )
            return
        self.upload.num_bytes += end - start
        if self.upload.num_bytes > self._max_file_bytes:
            raise BodyTooLarge(f"file: is larger than {self._max_file_bytes} bytes", param=FILE_PART)
        self._passing += data[start:end]

    def _end(self) -> None:
        if self._part.name != FILE_PART:
            self.upload.fields[self._part.name] = self._part.data.decode("utf-8", "replace")

    def _finish(self) -> None:
        self._is_whole = True


def _safe_name(raw: bytes) -> str:
    """The last part of a path, without what no header or terminal should be given."""
    name = raw.decode("utf-8", "replace").replace("\\", "/").rpartition("/")[2]
    return "".join(char for char in name if char.isprintable())[:MAX_FILENAME_CHARS] or "file"
