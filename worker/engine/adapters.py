"""Adapters served beside a model: each is a model of its own, and has one of the runner's slots while it is loaded.

    name, path ──open──▶ checked, digest known ──install──▶ slot ──▶ card of a model (revision over base and adapter)

Loading touches a slot that no request computes with, so it may run in any thread beside the engine's steps; unloading
frees what a step may read, so it belongs to the engine's thread, when no request of it is left. What an adapter is
made of the source knows.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol

import msgspec

from shared.errors import AdapterRefused, ModelNotFound
from shared.schemas import ModelCard

NO_ADAPTER = -1


class OpenedAdapter(Protocol):
    """One that was read and fits the model. `digest` covers every byte that can change an answer."""

    @property
    def digest(self) -> str: ...

    def install(self, slot: int) -> None:
        """Into a free slot, from any thread. Takes long, and memory."""
        ...


class AdapterSource(Protocol):
    def open(self, path: str) -> OpenedAdapter:
        """Raises AdapterRefused, whose code says why."""
        ...

    def remove(self, slot: int) -> None:
        """On the engine's thread."""
        ...


@dataclass(frozen=True, slots=True)
class _Loaded:
    slot: int
    card: ModelCard


class AdapterShelf:
    """`max_adapters` slots, over the model of `base`. Invariant: a slot belongs to one revision or is free."""

    def __init__(self, base: ModelCard, source: AdapterSource, max_adapters: int) -> None:
        self._base = base
        self._source = source
        self._free = list(reversed(range(max_adapters)))
        self._max_adapters = max_adapters
        self._loaded: dict[str, _Loaded] = {}
        self._names: set[str] = set()
        self._lock = threading.Lock()

    def cards(self) -> list[ModelCard]:
        return [loaded.card for loaded in list(self._loaded.values())]

    def load(self, name: str, path: str) -> ModelCard:
        """The adapter's own card, when requests of it can be added. Any thread; seconds. Raises AdapterRefused."""
        slot = self._reserve(name)
        try:
            adapter = self._source.open(path)
            adapter.install(slot)
        except BaseException:
            self._give_back(name, slot)
            raise
        card = adapter_card(self._base, name, adapter.digest)
        self._loaded[card.revision] = _Loaded(slot, card)
        return card

    def unload(self, revision: str) -> None:
        """On the engine's thread, without a request of it. Raises ModelNotFound."""
        loaded = self._loaded.pop(revision, None)
        if loaded is None:
            raise ModelNotFound(f"no adapter {revision} is loaded here")
        self._source.remove(loaded.slot)
        self._give_back(loaded.card.name, loaded.slot)

    def slot_of(self, revision: str) -> int:
        """NO_ADAPTER for the model itself. Raises ModelNotFound: other weights would answer than were asked for."""
        if revision == self._base.revision:
            return NO_ADAPTER
        loaded = self._loaded.get(revision)
        if loaded is None:
            raise ModelNotFound(f"this worker serves no {revision} (any more)")
        return loaded.slot

    def _reserve(self, name: str) -> int:
        with self._lock:
            if name in self._names or name == self._base.name:
                raise AdapterRefused(
                    f"a model named {name} is served here already: unload it first, or take another name",
                    param="name",
                    code="adapter_name_taken",
                )
            if not self._free:
                raise AdapterRefused(
                    f"{self._max_adapters} adapters are loaded, as many as HEADRACE_MAX_ADAPTERS allows",
                    code="too_many_adapters",
                )
            self._names.add(name)
            return self._free.pop()

    def _give_back(self, name: str, slot: int) -> None:
        with self._lock:
            self._free.append(slot)
            self._names.discard(name)


def adapter_card(base: ModelCard, name: str, digest: str) -> ModelCard:
    """The base's but for its names: the same on every worker that has the same files, wherever they lie."""
    of_base = base.revision.rpartition("@")[2]
    joined = blake2b(f"{of_base} {digest}".encode(), digest_size=6).hexdigest()
    return msgspec.structs.replace(base, name=name, revision=f"{name}@{joined}", parent=base.name)


def digest_of(parts: Iterable[bytes]) -> str:
    total = blake2b(digest_size=32)
    for part in parts:
        total.update(blake2b(part).digest())
    return total.hexdigest()
