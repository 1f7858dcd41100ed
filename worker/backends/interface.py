"""The narrow Engine: all that the worker service sees of a backend.

Backends are synchronous and belong to one thread (worker/engine_thread.py). They know no Redis and no asyncio.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

from shared.schemas import ModelCard, Prefix, Request, TokenizerBlob
from worker.engine.adapters import AdapterShelf
from worker.engine.outputs import EngineLoad, StepOutput


class Engine(Protocol):
    """Contract, held for every backend by tests/contract/test_engines.py:

    - each added request ends with exactly one output that has an `outcome`, unless it is aborted;
    - after `abort(id)` returns, no output names that id and its KV blocks are free;
    - a request's tokens depend on its prompt, parameters and seed only: not on the batch, on chunking,
      on preemption, nor on how much of it a `Prefix` already holds (where `resume_exact` is true);
    - `step` never raises for a request's sake: a request it cannot serve ends with outcome `failed`.
    """

    card: ModelCard
    tokenizer_blob: TokenizerBlob
    resume_exact: bool

    def add(self, request: Request, prefixes: Sequence[Prefix]) -> None:
        """Take a request. `prefixes` has one entry a choice; a choice with a finish_reason is not run again."""
        ...

    def abort(self, request_ids: Iterable[str]) -> None:
        """Drop requests. Unknown ids are ignored."""
        ...

    def step(self) -> list[StepOutput]:
        """One iteration of the running batch. Empty list: nothing was made (prefill chunk, or no work)."""
        ...

    def has_work(self) -> bool: ...

    def load(self) -> EngineLoad: ...

    def close(self) -> None: ...


@runtime_checkable
class Remembering(Protocol):
    """A backend that keeps computed prefixes and can drop them."""

    def forget_prefixes(self) -> None:
        """What no running sequence holds is computed anew when it is asked for again."""
        ...


@runtime_checkable
class AdapterEngine(Engine, Protocol):
    """An engine that may serve adapters of its model; None: not this one."""

    adapters: AdapterShelf | None
