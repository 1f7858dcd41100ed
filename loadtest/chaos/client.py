"""One client of a drill: asks, reads its stream event by event, resumes where it can, and knows how it ended.

Plain asyncio streams: on this machine a client library would cost more than what it drives. A client never waits for
ever: silence longer than `PATIENCE_S` is an end of its own, `hung`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from loadtest.chaos.questions import Question
from loadtest.chaos.verdict import Damage, compare, num_words

PATIENCE_S = 90.0
PAUSE_S = 0.5
_BROKEN = (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError)


@dataclass(slots=True)
class Answer:
    """What came. `end` is finished, refused, unanswered, broken, left, hung, or error:<code>; '' while it runs.

    `pauses` are (began, ended, in monotonic seconds) longer than PAUSE_S, the wait for the first event among them; an
    answer in one piece has none.
    """

    question: Question
    is_streamed: bool = True
    request_id: str = ""
    gateway: int = -1
    end: str = ""
    texts: list[str] = field(default_factory=list[str])
    num_events: int = 0
    num_resumes: int = 0
    num_finished_choices: int = 0
    pauses: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    last_event_at: float = field(default_factory=time.monotonic)
    first_text_at: float = 0.0
    has_text: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.texts = [""] * self.question.n

    @property
    def is_accepted(self) -> bool:
        return bool(self.request_id)

    def damage(self) -> Damage:
        is_whole = self.end == "finished"
        total = Damage()
        for expected, got in zip(self.question.expected, self.texts, strict=True):
            total += compare(expected, got, is_whole=is_whole)
        return total

    def as_expected(self) -> Question:
        """The question with this answer as the one to expect."""
        assert self.end == "finished", f"an undisturbed run ended {self.end}"
        return replace(self.question, expected=tuple(self.texts))

    def num_tokens(self) -> int:
        """Exact for a finished answer (only the limit ends one); otherwise words, a token each where simulated."""
        if self.end == "finished":
            return self.question.n * self.question.max_tokens
        return sum(num_words(text) for text in self.texts)

    def is_flowing(self) -> bool:
        """Something came within PAUSE_S, or it ended well; of an answer in one piece nothing is known before."""
        if self.end:
            return self.end in ("finished", "left")
        return not self.is_streamed or time.monotonic() - self.last_event_at <= PAUSE_S

    def note_event(self) -> None:
        now = time.monotonic()
        if self.is_streamed and now - self.last_event_at > PAUSE_S:
            self.pauses.append((self.last_event_at, now))
        self.last_event_at = now


class HttpRefusal(Exception):
    """An answer that is no 200: its status and its error's code."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(f"{status} {code}")
        self.status = status
        self.code = code


async def ask(port: int, model: str, answer: Answer, headers: dict[str, str] | None = None) -> None:
    """POST, and read to the end of the stream or of the connection. Sets `answer.end`, `broken` among others."""
    body = orjson.dumps(answer.question.body(model, stream=answer.is_streamed))
    lines = {"content-type": "application/json", "content-length": str(len(body)), **(headers or {})}
    await _converse(port, "POST /v1/completions", lines, body, answer)


async def resume(port: int, answer: Answer) -> None:
    """Go on after the events that came."""
    answer.num_resumes += 1
    path = f"GET /v1/requests/{answer.request_id}/events?starting_after={answer.num_events}"
    await _converse(port, path, {}, b"", answer)


async def _converse(port: int, what: str, headers: dict[str, str], body: bytes, answer: Answer) -> None:
    answer.end = ""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        answer.end = _lost(answer)
        return
    try:
        head = "".join(f"{name}: {value}\r\n" for name, value in {"host": "drill", **headers}.items())
        writer.write(f"{what} HTTP/1.1\r\n{head}\r\n".encode() + body)
        await _read_answer(reader, answer)
    except TimeoutError:
        answer.end = "hung"
    except _BROKEN:
        answer.end = answer.end or _lost(answer)
    except HttpRefusal as refusal:
        answer.end = f"error:{refusal.code}" if answer.is_accepted else "refused"
    finally:
        writer.close()


def _lost(answer: Answer) -> str:
    return "broken" if answer.is_accepted and answer.is_streamed else "unanswered"


async def _read_answer(reader: asyncio.StreamReader, answer: Answer) -> None:
    async with asyncio.timeout(PATIENCE_S):
        status, headers = await _read_head(reader)
    if status != 200:
        raise HttpRefusal(status, await _error_code(reader, headers))
    answer.request_id = answer.request_id or headers.get("x-request-id", "")
    if not answer.is_streamed:
        _take_body(answer, orjson.loads(await _read_whole(reader, headers)))
        return
    async for payload in _events(reader, answer):
        if payload == b"[DONE]":
            answer.end = answer.end or ("finished" if _is_complete(answer) else "error:incomplete")
            return
        answer.num_events += 1
        answer.note_event()
        _take_event(answer, orjson.loads(payload))
    raise asyncio.IncompleteReadError(b"", None)


def _is_complete(answer: Answer) -> bool:
    return answer.num_finished_choices == answer.question.n


def _take_event(answer: Answer, event: dict[str, Any]) -> None:
    if "error" in event:
        answer.end = f"error:{event['error'].get('code')}"
        return
    for choice in event["choices"]:
        answer.texts[choice["index"]] += choice["text"]
        if choice["text"] and not answer.has_text.is_set():
            answer.first_text_at = time.monotonic()
            answer.has_text.set()
        answer.num_finished_choices += choice["finish_reason"] is not None


def _take_body(answer: Answer, body: dict[str, Any]) -> None:
    answer.note_event()
    _take_event(answer, body)
    answer.end = answer.end or ("finished" if _is_complete(answer) else "error:incomplete")


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    pairs = [line.partition(":") for line in lines[1:] if line]
    return int(lines[0].split()[1]), {name.lower(): value.strip() for name, _, value in pairs}


async def _error_code(reader: asyncio.StreamReader, headers: dict[str, str]) -> str:
    body = await _read_whole(reader, headers)
    try:
        return str(orjson.loads(body)["error"]["code"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return f"not ours: {body[:80]!r}"


async def _read_whole(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    async with asyncio.timeout(PATIENCE_S):
        return await reader.readexactly(int(headers.get("content-length", 0)))


async def _chunks(reader: asyncio.StreamReader) -> AsyncGenerator[bytes]:
    """The pieces of a chunked body; ends with it, and fails when the connection ends before it."""
    while True:
        async with asyncio.timeout(PATIENCE_S):
            size = int((await reader.readuntil(b"\r\n")).strip(), 16)
            data = await reader.readexactly(size + 2)
        if not size:
            return
        yield data[:-2]


async def _events(reader: asyncio.StreamReader, answer: Answer) -> AsyncGenerator[bytes]:
    """The data of each event; comments are passed over, and do not make it less silent."""
    buffer = b""
    async for chunk in _chunks(reader):
        buffer += chunk
        if time.monotonic() - answer.last_event_at > PATIENCE_S:
            raise TimeoutError
        while b"\n\n" in buffer:
            event, _, buffer = buffer.partition(b"\n\n")
            for line in event.split(b"\n"):
                if line.startswith(b"data: "):
                    yield line.removeprefix(b"data: ")
