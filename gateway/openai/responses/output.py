"""What an answer is made of, in Responses' words: its items as they grow, and an event for each step of each.

    message        item added, part added, text deltas, text done, part done, item done
    reasoning      the same with reasoning text
    function_call  item added, argument deltas, arguments done, item done

One item is open at a time. Ids follow from the request and the item's place, so every gateway gives the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gateway.openai.tools.deltas import CallArguments, CallEnd, CallStart, Content, Delta, Reasoning, call_id

Event = dict[str, Any]
Item = dict[str, Any]
Logprobs = list[dict[str, Any]]


class Output:
    """`items` are those that are done, in order."""

    def __init__(self, request_id: str) -> None:
        self.items: list[Item] = []
        self._request_id = request_id
        self._open: _Text | _Call | None = None

    @property
    def has_open(self) -> bool:
        return self._open is not None

    def take(self, deltas: Iterable[Delta], logprobs: Logprobs) -> list[Event]:
        """Events of what was released; `logprobs` of its tokens go with the first text."""
        events: list[Event] = []
        for delta in deltas:
            events += self._events(delta, logprobs)
            if isinstance(delta, Content):
                logprobs = []
        return events

    def finish(self, status: str, logprobs: Logprobs) -> list[Event]:
        """The answer ended: `status` is that of the item it ended in. An answer of nothing is an empty message."""
        events = [] if self.items or self._open else self._opened(self._text("message"))
        if isinstance(self._open, _Text):
            self._open.logprobs += logprobs
        return events + self._closed(status)

    def _events(self, delta: Delta, logprobs: Logprobs) -> list[Event]:
        match delta:
            case Content(text):
                return [*self._into("message"), self._open_text().delta(text, logprobs)]
            case Reasoning(text):
                return [*self._into("reasoning"), self._open_text().delta(text, [])]
            case CallStart(index, name):
                closed = self._closed("completed")
                return closed + self._opened(_Call(self._place("fc_"), call_id(self._request_id, 0, index), name))
            case CallArguments(_, text):
                assert isinstance(self._open, _Call)
                return [self._open.delta(text)]
            case CallEnd(_, is_complete):
                return self._closed("completed" if is_complete else "incomplete")

    def _into(self, kind: str) -> list[Event]:
        """Nothing while an item of this kind is open."""
        if isinstance(self._open, _Text) and self._open.kind == kind:
            return []
        return self._closed("completed") + self._opened(self._text(kind))

    def _open_text(self) -> _Text:
        assert isinstance(self._open, _Text)
        return self._open

    def _opened(self, item: _Text | _Call) -> list[Event]:
        self._open = item
        return item.added()

    def _closed(self, status: str) -> list[Event]:
        if self._open is None:
            return []
        item, self._open = self._open, None
        self.items.append(item.item(status))
        return item.done(status)

    def _text(self, kind: str) -> _Text:
        return _Text(kind, self._place("msg_" if kind == "message" else "rs_"))

    def _place(self, prefix: str) -> dict[str, Any]:
        index = len(self.items)
        return {"item_id": f"{prefix}{self._request_id}o{index:04d}", "output_index": index}


class _Text:
    """A message with one part of text, or the reasoning before it."""

    def __init__(self, kind: str, place: dict[str, Any]) -> None:
        self.kind = kind
        self.logprobs: Logprobs = []
        self._place = place
        self._part_place = {**place, "content_index": 0}
        self._name = "response.output_text" if kind == "message" else "response.reasoning_text"
        self._texts: list[str] = []

    def added(self) -> list[Event]:
        item = self._item("in_progress", [])
        return [
            {"type": "response.output_item.added", "output_index": self._place["output_index"], "item": item},
            {"type": "response.content_part.added", **self._part_place, "part": self._part("", [])},
        ]

    def delta(self, text: str, logprobs: Logprobs) -> Event:
        self._texts.append(text)
        event: Event = {"type": f"{self._name}.delta", **self._part_place, "delta": text}
        if self.kind != "message":
            return event
        self.logprobs += logprobs
        return event | {"logprobs": logprobs}

    def done(self, status: str) -> list[Event]:
        text = "".join(self._texts)
        told: Event = {"type": f"{self._name}.done", **self._part_place, "text": text}
        if self.kind == "message":
            told["logprobs"] = self.logprobs
        part = {"type": "response.content_part.done", **self._part_place, "part": self._part(text, self.logprobs)}
        place = self._place["output_index"]
        item = {"type": "response.output_item.done", "output_index": place, "item": self.item(status)}
        return [told, part, item]

    def item(self, status: str) -> Item:
        return self._item(status, [self._part("".join(self._texts), self.logprobs)])

    def _item(self, status: str, content: list[Item]) -> Item:
        about: Item = {"role": "assistant"} if self.kind == "message" else {"summary": []}
        return {"type": self.kind, "id": self._place["item_id"], "status": status, **about, "content": content}

    def _part(self, text: str, logprobs: Logprobs) -> Item:
        if self.kind == "message":
            return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}
        return {"type": "reasoning_text", "text": text}


class _Call:
    def __init__(self, place: dict[str, Any], call: str, name: str) -> None:
        self._place = place
        self._call = call
        self._name = name
        self._arguments: list[str] = []

    def added(self) -> list[Event]:
        item = self._item("in_progress", "")
        return [{"type": "response.output_item.added", "output_index": self._place["output_index"], "item": item}]

    def delta(self, text: str) -> Event:
        self._arguments.append(text)
        return {"type": "response.function_call_arguments.delta", **self._place, "delta": text}

    def done(self, status: str) -> list[Event]:
        name = "response.function_call_arguments.done"
        item = {"type": "response.output_item.done", "output_index": self._place["output_index"]}
        told = {"type": name, **self._place, "name": self._name, "arguments": "".join(self._arguments)}
        return [told, item | {"item": self.item(status)}]

    def item(self, status: str) -> Item:
        return self._item(status, "".join(self._arguments))

    def _item(self, status: str, arguments: str) -> Item:
        about = {"type": "function_call", "id": self._place["item_id"], "call_id": self._call, "name": self._name}
        return {**about, "arguments": arguments, "status": status}
