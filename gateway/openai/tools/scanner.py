"""One call written as a JSON object, read character by character: its name, and its arguments as they come.

    {"name": "f", "arguments": {...}, ...}     keys in any order; others are passed over

Arguments are told as they are written, once the name is known; a string in their place is what the string says. What
is no such object, or names a function that was not offered, has failed; once a call has been told it cannot fail,
only end early.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container

from gateway.openai.tools.deltas import CallArguments, CallEnd, CallStart, Delta

_BLANK = " \t\r\n"
_ARGUMENTS = ("arguments", "parameters")
_NO_JSON = "<"  # never in JSON outside a string: a closing marker that came too early


class CallScanner:
    """`has_started`: a CallStart was told. `is_over`: nothing further belongs to it; `has_failed`: it was no call."""

    def __init__(self, index: int, names: Container[str], *, name: str = "") -> None:
        """`name`: the function is known already, and what follows is its arguments alone."""
        self.is_over = False
        self.has_failed = False
        self.has_started = False
        self._index = index
        self._names = names
        self._state: Callable[[str], None] = self._before
        self._key = ""
        self._token: list[str] = []
        self._is_escaped = False
        self._is_in_string = False
        self._depth = 0
        self._arguments: list[str] = []
        self._has_arguments = False
        self._told: list[Delta] = []
        self._is_bare = bool(name)
        if name:
            self._key = _ARGUMENTS[0]
            self._state = self._value
            self._begin(name)

    def feed(self, text: str, start: int) -> tuple[int, list[Delta]]:
        """Up to where it is over, or the end of `text`. A character at which it fails or breaks off is not taken."""
        position = start
        while position < len(text) and not self.is_over:
            self._state(text[position])
            position += not (self.is_over and self._refused)
        return position, self._take()

    def finish(self) -> list[Delta]:
        """The answer ended here."""
        if not self.is_over:
            self._fail()
        return self._take()

    @property
    def _refused(self) -> bool:
        return self._state == self._nowhere

    def _take(self) -> list[Delta]:
        if self.has_started and self._arguments:
            at = next((at for at, delta in enumerate(self._told) if isinstance(delta, CallEnd)), len(self._told))
            self._told.insert(at, CallArguments(self._index, "".join(self._arguments)))
            self._arguments = []
        told, self._told = self._told, []
        return told

    def _nowhere(self, char: str) -> None:
        """Where what is no call leads."""

    def _fail(self) -> None:
        self.is_over = True
        self.has_failed = not self.has_started
        if self.has_started:
            self._told.append(CallEnd(self._index, self._has_arguments))
        self._state = self._nowhere

    def _end(self) -> None:
        if not self.has_started:
            self._fail()
            return
        self.is_over = True
        if not self._has_arguments:
            self._arguments.append("{}")
        self._told.append(CallEnd(self._index, is_complete=True))

    def _begin(self, name: str) -> None:
        if name not in self._names:
            self._fail()
            return
        self.has_started = True
        self._told.append(CallStart(self._index, name))

    def _before(self, char: str) -> None:
        if char == "{":
            self._state = self._before_key
        elif char not in _BLANK:
            self._fail()

    def _before_key(self, char: str) -> None:
        if char == '"':
            self._string(self._in_key)
        elif char == "}":
            self._end()
        elif char not in _BLANK:
            self._fail()

    def _string(self, then: Callable[[str], None]) -> None:
        self._token = ['"']
        self._is_escaped = False
        self._state = then

    def _in_key(self, char: str) -> None:
        if self._ends_string(char):
            self._key = self._spelled()
            self._state = self._colon

    def _colon(self, char: str) -> None:
        if char == ":":
            self._state = self._value
        elif char not in _BLANK:
            self._fail()

    def _value(self, char: str) -> None:
        if char in _BLANK:
            return
        wants_arguments = self._key in _ARGUMENTS and not self._has_arguments
        wants_name = self._key == "name" and not self.has_started
        if char == '"':
            self._string(self._in_name if wants_name else self._in_text)
        elif char == "{" or (char == "[" and not wants_arguments):
            self._depth, self._is_in_string, self._is_escaped = 0, False, False
            self._state = self._nested
            self._nested(char)
        elif char in "]}:,[" + _NO_JSON or wants_name:
            self._fail()
        else:
            self._token = [char]
            self._state = self._plain

    def _in_name(self, char: str) -> None:
        if self._ends_string(char):
            self._state = self._after
            self._begin(self._spelled())

    def _in_text(self, char: str) -> None:
        """A string that is no name: arguments as the text of JSON, or a value nobody asks for."""
        if self._ends_string(char):
            if self._key in _ARGUMENTS and not self._has_arguments:
                self._arguments.append(self._spelled())
            self._value_is_over()

    def _plain(self, char: str) -> None:
        """A number, or one of JSON's three words."""
        if char not in ",}" + _BLANK:
            self._token.append(char)
            return
        if self._key in _ARGUMENTS and "".join(self._token) != "null":
            self._fail()
            return
        self._state = self._after
        self._after(char)

    def _nested(self, char: str) -> None:
        if not self._is_in_string and char == _NO_JSON:
            self._fail()
            return
        if self._key in _ARGUMENTS and not self._has_arguments:
            self._arguments.append(char)
        if self._is_in_string:
            self._is_in_string = self._is_escaped or char != '"'
            self._is_escaped = char == "\\" and not self._is_escaped
        elif char == '"':
            self._is_in_string = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
            if not self._depth:
                self._value_is_over()

    def _value_is_over(self) -> None:
        self._has_arguments = self._has_arguments or self._key in _ARGUMENTS
        self._state = self._after
        if self._is_bare:
            self._end()

    def _after(self, char: str) -> None:
        if char == ",":
            self._state = self._before_key
        elif char == "}":
            self._end()
        elif char not in _BLANK:
            self._fail()

    def _ends_string(self, char: str) -> bool:
        self._token.append(char)
        if self._is_escaped:
            self._is_escaped = False
            return False
        self._is_escaped = char == "\\"
        return char == '"'

    def _spelled(self) -> str:
        try:
            return str(json.loads("".join(self._token), strict=False))
        except ValueError:
            return ""
