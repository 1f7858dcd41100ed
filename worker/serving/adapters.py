"""The adapters of one worker: loaded at its start or by an operator's order, each served as a model of its own.

    order ──▶ loading ──▶ ready ──▶ unloading ──▶ unloaded          told in the worker's hash at each change
                 └──▶ failed (code, message)

Reading and copying weights is done beside the engine's steps. Unloading drains what this worker holds of the adapter
first; only then its weights are freed, between two steps.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable

import msgspec

from shared.config import ADAPTER_NAME
from shared.errors import AdapterRefused, ConfigurationError, HeadraceError
from shared.redis_client import AWAY
from shared.registry import AdapterState
from shared.request_queue import LeaseLost
from worker.engine.adapters import AdapterShelf
from worker.serving.host import Host
from worker.serving.registration import ServedModel

log = logging.getLogger(__name__)
_MAX_TOLD = 100


class ServedAdapters:
    """`base` is the served model that they adapt; `serve` starts one and returns the task that runs it."""

    def __init__(
        self, host: Host, shelf: AdapterShelf | None, base: ServedModel, blob: bytes,
        serve: Callable[[ServedModel], asyncio.Task[None]],
    ) -> None:  # fmt: skip
        self._host = host
        self._shelf = shelf
        self._base = base
        self._blob = blob
        self._serve = serve
        self._states: dict[str, AdapterState] = {}
        self._served: dict[str, tuple[ServedModel, asyncio.Task[None]]] = {}
        self._orders: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        base.after_registering = self._tell

    async def load_configured(self) -> None:
        """Before the worker registers for its model. Raises ConfigurationError."""
        for name, path in self._host.settings.adapter_paths.items():
            try:
                await self._load(AdapterState(name, path, "loading"))
            except AdapterRefused as error:
                raise ConfigurationError(f"adapter {name} ({path}): {error.message}") from error

    def obey(self, order: str, arguments: list[str]) -> None:
        """`load_adapter` (order id, name, path) and `unload_adapter` (order id, name). Once, however often it comes."""
        order_id, name, path, *_ = (*arguments, "", "", "")
        if order_id in self._orders:
            return
        self._orders.add(order_id)
        task = asyncio.create_task(self._obey(order, AdapterState(name, path, "loading", order=order_id)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _obey(self, order: str, state: AdapterState) -> None:
        try:
            await (self._load(state) if order == "load_adapter" else self._unload(state))
        except (HeadraceError, MemoryError, RuntimeError, ValueError) as error:  # what a device lacks is a RuntimeError
            code = error.code if isinstance(error, HeadraceError) else "adapter_refused"
            log.warning("adapter_order_failed", extra={"order": order, "adapter": state.name, "error": str(error)})
            await self._note(msgspec.structs.replace(state, state="failed", code=code, message=str(error)[:500]))

    async def _load(self, state: AdapterState) -> None:
        if self._shelf is None:
            raise AdapterRefused(
                "this worker's backend serves no adapters, or HEADRACE_MAX_ADAPTERS is 0", code="adapters_unsupported"
            )
        if not ADAPTER_NAME.fullmatch(state.name):
            raise AdapterRefused("a name has letters, digits, '.', '_' and '-', at most 128", param="name")
        if state.name not in self._served:
            await self._note(state)
        log.info("adapter_loading", extra={"adapter": state.name, "path": state.path})
        card = await asyncio.to_thread(self._shelf.load, state.name, state.path)
        model = ServedModel(self._host, card, self._blob)
        task = self._serve(model)
        self._served[state.name] = (model, task)
        registered = asyncio.create_task(model.is_registered.wait())
        await asyncio.wait((registered, task), return_when=asyncio.FIRST_COMPLETED)
        registered.cancel()
        await self._note(msgspec.structs.replace(state, state="ready", revision=card.revision))

    async def _unload(self, state: AdapterState) -> None:
        served = self._served.pop(state.name, None)
        if served is None or self._shelf is None:
            raise AdapterRefused(f"no adapter {state.name} is loaded here", param="name", code="adapter_not_found")
        model, task = served
        told = msgspec.structs.replace(state, revision=model.card.revision)
        await self._note(msgspec.structs.replace(told, state="unloading"))
        model.drain()
        await task
        await self._host.shares.thread.between_steps(functools.partial(self._shelf.unload, model.card.revision))
        await self._note(msgspec.structs.replace(told, state="unloaded"))

    async def _note(self, state: AdapterState) -> None:
        """A failed order leaves what is loaded under the name as it was, and is told beside it."""
        key = state.name if state.state != "failed" else f"{state.name} {state.order}"
        self._states.pop(key, None)
        self._states[key] = state
        while len(self._states) > _MAX_TOLD:
            self._states.pop(next(iter(self._states)))
        await self._tell()

    async def _tell(self) -> None:
        """Who loses its lease tells all of it again under its next id."""
        if self._base.worker_id:
            with contextlib.suppress(LeaseLost, *AWAY):
                await self._base.tell_adapters(msgspec.json.encode(list(self._states.values())))
