"""Finds calls of functions in the released text of one answer: text before and between them, and the calls.

    free text --opening, or at the start a bare one--> calls --closing, or what is no call--> free text

Every piece of text comes out once: as content, or inside a call. Held back is only what may still be a marker, and the
blanks before one; blanks beside calls are dropped. What looked like a call and is none is content, as it was written.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.openai.tools.deltas import Content, Delta
from gateway.openai.tools.families import CALL_ID, NAME_END, Family
from gateway.openai.tools.scanner import CallScanner

_BLANK = " \t\r\n"
_BETWEEN = _BLANK + ",;]"
_MAX_NAME_CHARS = 256


def held_back(text: str, marker: str) -> int:
    """How many characters at the end of `text` may be the beginning of `marker`."""
    longest = min(len(text), len(marker) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(marker[:size])), 0)


class CallParser:
    """Of one choice; `names` are the functions offered. The same deltas, put together, however the text is cut."""

    def __init__(self, family: Family, names: Sequence[str], max_calls: int) -> None:
        """What follows the last of `max_calls` is dropped."""
        self.num_calls = 0
        self._family = family
        self._names = frozenset(names)
        self._max_calls = max_calls
        self._buffer = ""
        self._step = self._free
        self._may_be_bare = bool(family.bare)
        self._is_beside_call = False
        self._raw = ""  # of a region of calls, since its beginning or its last call: what is content if it fails
        self._num_in_region = 0
        self._scanner: CallScanner | None = None
        self._out: list[Delta] = []

    def push(self, text: str) -> list[Delta]:
        self._buffer += text
        while self._buffer and self._step():
            pass
        return self._take()

    def finish(self) -> list[Delta]:
        """The answer ended: what was held back, and the end of a call that has none."""
        if self._scanner is not None:
            self._out += self._scanner.finish()
            self.num_calls += self._scanner.has_started
        left = self._raw + self._buffer
        self._raw = self._buffer = ""
        self._content(self._unfinished(left) if self._num_in_region else left)
        return self._take()

    def _unfinished(self, left: str) -> str:
        """What is left in a region that has calls: half a marker is nothing, half a call is content."""
        if self._family.closing:
            return left[left.find("{") :] if "{" in left else ""
        left = left.lstrip(_BETWEEN)
        return "" if self._family.opening.startswith(left) else left

    def _take(self) -> list[Delta]:
        out, self._out = self._out, []
        return out

    def _content(self, text: str) -> None:
        if self._is_beside_call:
            text = text.lstrip(_BLANK)
        if text:
            self._is_beside_call = False
            self._out.append(Content(text))

    def _free(self) -> bool:
        """Releases what can be no part of a call. True: there is more to look at."""
        text, opening = self._buffer, self._family.opening
        if self._may_be_bare and (inner := text.lstrip(_BLANK)):
            self._may_be_bare = False
            if inner[0] in self._family.bare:
                self._enter(len(text) - len(inner))
                return True
        at = text.find(opening) if opening else -1
        end = at if at >= 0 else len(text) - held_back(text, opening)
        end = len(text[:end].rstrip(_BLANK))
        self._content(text[:end])
        self._buffer = text[end:]
        if at < 0:
            return False
        self._enter(at + len(opening) - end)
        return True

    def _enter(self, size: int) -> None:
        """A region of calls begins after `size` characters of the buffer: an opening, and blanks."""
        self._raw, self._buffer = self._buffer[:size], self._buffer[size:]
        self._num_in_region = 0
        self._step = self._between

    def _leave(self) -> bool:
        """What is no call goes back to free text."""
        left = self._raw.lstrip(_BETWEEN) if self._num_in_region else self._raw
        self._raw = ""
        self._num_in_region = 0
        self._content(left)
        self._step = self._free
        return True

    def _between(self) -> bool:
        text, opening = self._buffer, self._family.opening
        if self._num_in_region and self._family.closing:
            return self._until_closing()
        if opening.startswith(text[: len(opening)]) and opening:
            if len(text) < len(opening):
                return False
            self._advance(len(opening))
        elif text[0] in _BETWEEN + "[":
            self._advance(1)
        elif text[0] == "{":
            self._scan(CallScanner(self.num_calls, self._names))
        elif opening and not self._family.closing:
            return self._named()
        else:
            return self._leave()
        return True

    def _until_closing(self) -> bool:
        """After a call up to its closing: blanks, a brace too many. Another call may follow without one."""
        text, closing = self._buffer, self._family.closing
        at, call = text.find(closing), text.find("{")
        if call >= 0 and (at < 0 or call < at):
            self._advance(call)
            self._scan(CallScanner(self.num_calls, self._names))
            return True
        if at < 0:
            self._advance(len(text) - held_back(text, closing))
            return False
        self._buffer = text[at + len(closing) :]
        self._raw = ""
        self._num_in_region = 0
        self._step = self._free
        return True

    def _named(self) -> bool:
        """`name[ARGS]{...}`"""
        text = self._buffer
        brace = text.find("{")
        if brace < 0:
            return len(text) > _MAX_NAME_CHARS and self._leave()
        name = text[:brace].removesuffix(NAME_END).partition(CALL_ID)[0].strip(_BLANK)
        if name not in self._names:
            return self._leave()
        self._advance(brace)
        self._scan(CallScanner(self.num_calls, self._names, name=name))
        return True

    def _advance(self, size: int) -> None:
        self._raw += self._buffer[:size]
        self._buffer = self._buffer[size:]

    def _scan(self, scanner: CallScanner) -> None:
        self._scanner = scanner
        self._step = self._call

    def _call(self) -> bool:
        scanner = self._scanner
        assert scanner is not None
        end, deltas = scanner.feed(self._buffer, 0)
        self._advance(end)
        self._out += deltas
        if scanner.has_started:
            self._raw = ""
        if not scanner.is_over:
            return False
        self._scanner = None
        if scanner.has_failed:
            return self._leave()
        self.num_calls += 1
        self._num_in_region += 1
        self._is_beside_call = True
        self._step = self._between if self.num_calls < self._max_calls else self._nothing
        return True

    def _nothing(self) -> bool:
        self._buffer = ""
        return False
