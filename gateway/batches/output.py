"""The two files of a batch that is over: what was answered with 200, and the rest, with a word why for each line.

Written under ids that belong to this lease, and theirs only once the batch's end names them: what a run that dies
half-way has written is bytes without a row (gateway/files/library.py).
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from gateway.batches.lines import parse_line, unanswered_line, usage_of
from gateway.batches.means import Means
from gateway.files.blobs import BlobWriter
from gateway.files.library import BATCH_OUTPUT
from gateway.store.batch_rows import StoredBatch
from gateway.store.batch_runs import BatchFiles
from gateway.store.file_rows import StoredFile

_PAGE = 200
_CANCELLED = ("batch_cancelled", "the batch was cancelled before this line was done")
_EXPIRED = ("batch_expired", "the completion window ended before this line was done")


@dataclass(slots=True)
class Written:
    files: BatchFiles = field(default_factory=BatchFiles)
    num_unanswered: int = 0


class Output:
    def __init__(self, means: Means, batch: StoredBatch, *, is_cancelled: bool) -> None:
        self._means = means
        self._batch = batch
        self._is_cancelled = is_cancelled
        self._writers: dict[str, BlobWriter] = {}
        self._usage: Counter[str] = Counter()

    async def write(self, done: Collection[int]) -> Written:
        """`done`: the lines that have answers. Raises BlobGone, Unavailable."""
        written = Written()
        async with contextlib.AsyncExitStack() as stack:
            await self._write_answers(stack)
            if len(done) < self._batch.num_lines:  # none: it was cancelled before it was looked at
                written.num_unanswered = await self._write_unanswered(stack, done)
        written.files = BatchFiles(self._file("output"), self._file("errors"), dict(self._usage))
        return written

    async def _write_answers(self, stack: contextlib.AsyncExitStack) -> None:
        last = 0
        while answers := await self._means.runs.answers(self._batch.id, last, _PAGE):
            for answer in answers:
                writer = await self._writer(stack, "output" if answer.is_ok else "errors")
                await writer.write(answer.text.encode() + b"\n")
                if answer.is_ok:
                    self._usage.update(usage_of(answer.text))
            last = answers[-1].line

    async def _write_unanswered(self, stack: contextlib.AsyncExitStack, done: Collection[int]) -> int:
        code, message = _CANCELLED if self._is_cancelled else _EXPIRED
        max_bytes = self._means.max_line_bytes
        num = 0
        async with contextlib.aclosing(self._means.blobs.lines(self._batch.input_file_id, max_bytes)) as lines:
            async for number, raw in lines:
                if number in done:
                    continue
                writer = await self._writer(stack, "errors")
                line = parse_line(number, raw, self._batch.endpoint, max_bytes)
                await writer.write(unanswered_line(self._batch.id, line, code, message).encode() + b"\n")
                num += 1
        return num

    async def _writer(self, stack: contextlib.AsyncExitStack, kind: str) -> BlobWriter:
        if kind not in self._writers:
            blob = self._means.blobs.writing(self._file_id(kind))
            self._writers[kind] = await stack.enter_async_context(blob)
        return self._writers[kind]

    def _file_id(self, kind: str) -> str:
        name = f"{self._batch.id}/{self._batch.fence}/{kind}"
        return f"file-{hashlib.sha256(name.encode()).hexdigest()[:32]}"

    def _file(self, kind: str) -> StoredFile | None:
        if kind not in self._writers:
            return None
        now_ms = time.time_ns() // 1_000_000
        ttl_ms = self._batch.output_ttl_s * 1000
        return StoredFile(
            id=self._file_id(kind),
            tenant=self._batch.tenant,
            filename=f"{self._batch.id}_{kind}.jsonl",
            purpose=BATCH_OUTPUT,
            num_bytes=self._writers[kind].num_bytes,
            created_at_ms=now_ms,
            expires_at_ms=now_ms + ttl_ms if ttl_ms else None,
        )
