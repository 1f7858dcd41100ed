"""Text of one choice as its tokens come, ended by stop strings.

    decoded    "The sea is calm. EN"          stop strings: "END"
    released   "The sea is calm. "            went out with earlier tokens
    held       "EN"                           may still become a stop string

Invariants: what is released never contains a stop string nor the beginning of one that later completes; text
is held only while it may still become one. The stop string that completes first wins; of several that complete
at the same character, the longest. So the text does not depend on where token boundaries fall. Knows characters
only: bytes and half characters are the decoder's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from shared.errors import StreamContradiction


class Decoder(Protocol):
    """Ids to whole characters; shared/tokenizer.py has it."""

    def push(self, token_id: int) -> str:
        """The text this token completes; "" inside a character."""
        ...

    def flush(self) -> str:
        """What is left at the end."""
        ...


class Detokenizer:
    __slots__ = ("_decoder", "_held", "_longest_partial", "_stops", "is_stopped")

    def __init__(self, decoder: Decoder, stops: Iterable[str]) -> None:
        self._decoder = decoder
        self._stops = tuple(stop for stop in stops if stop)
        self._longest_partial = max((len(stop) for stop in self._stops), default=1) - 1
        self._held = ""
        self.is_stopped = False

    def push(self, token_id: int, *, may_stop: bool = True) -> str:
        """The text that `token_id` releases. Sets `is_stopped` when a stop string completed.

        Stop strings are not looked for in the text of a token that may not stop: nothing of it is held.
        """
        text = self._held + self._decoder.push(token_id)
        if not self._stops or not may_stop:
            self._held = ""
            return text
        if self._is_cut(text):
            return self._take_held()
        released = len(text) - self._length_to_hold(text)
        self._held = text[released:]
        return text[:released]

    def flush(self) -> str:
        """The choice ended: the text still held."""
        text = self._held + self._decoder.flush()
        if not self._is_cut(text):
            self._held = text
        return self._take_held()

    def resume(self, replayed: str, journaled: str) -> None:
        """Go on from a journal: `replayed` was released while its ids were pushed here, `journaled` when they
        were made. What was decoded beyond the journal's text is held, and goes out with the next text.

        Raises StreamContradiction when the journal's text is not what its ids decode to.
        """
        decoded = replayed + self._held
        if not decoded.startswith(journaled):
            raise StreamContradiction("the journal's text is not what its tokens decode to")
        self._held = decoded[len(journaled) :]

    def take_owed(self) -> str:
        """After `resume` on ids that ended the choice: the text the journal lacks."""
        return self._take_held()

    def _take_held(self) -> str:
        text, self._held = self._held, ""
        return text

    def _is_cut(self, text: str) -> bool:
        """Whether a stop string is complete in `text`; then what stands before it is held."""
        found = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        if not found:
            return False
        self._held = text[: min(found)[1]]
        self.is_stopped = True
        return True

    def _length_to_hold(self, text: str) -> int:
        """Length of the longest tail of `text` that some stop string begins with."""
        for length in range(min(len(text), self._longest_partial), 0, -1):
            tail = text[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0
