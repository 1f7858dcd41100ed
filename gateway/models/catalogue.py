"""What a client may ask for: the models of the fleet, and the routes that operators lead to them.

Routes are read with the cards, every `model_poll_s`. A name that is a route is led by it, also where a model has the
same name; a model that is named from inside (a queue, a stored response) is found as it is.
"""

from __future__ import annotations

import logging

from gateway.models.choice import Candidate, Draws, chosen, draw_of, in_order
from gateway.models.fleet import Fleet
from shared.config import GatewaySettings
from shared.errors import Unavailable
from shared.observability import GatewayMetrics
from shared.redis_client import Scripts
from shared.routing.entries import name_of
from shared.routing.store import RouteStore
from shared.routing.table import RouteTable, table_of
from shared.schemas import ModelCard

# When a client may come back to a model whose first worker is awaited.
_REGISTER_S = 5.0
log = logging.getLogger(__name__)


class Catalogue(Fleet):
    """start, then read; stop."""

    def __init__(self, settings: GatewaySettings, scripts: Scripts, metrics: GatewayMetrics) -> None:
        super().__init__(settings, scripts, metrics)
        self._store = RouteStore(scripts)
        self._read: dict[bytes, bytes] = {}
        self._draws = Draws()
        self.routes = RouteTable()

    def names(self) -> list[str]:
        """Models and routes, but for routes that end at no model that was ever registered."""
        models = set(super().names())
        return sorted(models | {name for name in self.routes.routes if self._stands_for(name) is not None})

    def card(self, name: str) -> ModelCard:
        """What stands for a name where nothing is asked of a model: the one of a route with the largest share.

        Raises ModelNotFound, and Unavailable where its first worker is awaited.
        """
        self.check(name)
        card = self._stands_for(name)
        if card is None:
            raise _awaited(name)
        return card

    def check(self, name: str) -> None:
        """Raises ModelNotFound, Unavailable. A name that is only declared is one."""
        if name not in self.routes and self.known(name) is None:
            raise self.unknown(name)

    def candidates(self, name: str, key: str = "", *, made_before: str = "") -> list[Candidate]:
        """Who is to be tried for a name, in order (choice.py). Raises ModelNotFound, Unavailable.

        `key` decides instead of a draw. `made_before`: the revision that made what a conversation has so far, which
        goes on there while the name still leads to it.
        """
        self.check(name)
        ends = self.routes.ends(name)
        draw = draw_of(key) if key else self._draws.next(name) if len(ends) > 1 else 0.0
        same = [end for end in ends if made_before and end.model in (made_before, name_of(made_before))]
        end = same[0] if same else chosen(ends, draw)
        fallbacks = [chosen(self.routes.ends(fallback), draw).model for fallback in end.fallbacks]
        return in_order(end.model, fallbacks, self.trouble_of)

    def card_of(self, candidate: Candidate) -> ModelCard:
        """Raises Unavailable where the first worker of its model is awaited."""
        card = self.known(candidate.model)
        if card is None:
            raise _awaited(candidate.model)
        return card

    def _stands_for(self, name: str) -> ModelCard | None:
        by_share = sorted(self.routes.ends(name), key=lambda end: -end.share)
        return next((card for end in by_share if (card := self.known(end.model)) is not None), None)

    async def _refresh(self) -> None:
        await self._refresh_routes()
        await super()._refresh()

    async def _refresh_routes(self) -> None:
        stored = await self._store.raw()
        if stored == self._read:
            return
        self.routes, faults = table_of(stored)
        self._read = stored
        self._draws.keep(list(self.routes.routes))
        log.info("routes", extra={"num_routes": len(self.routes.routes)})
        for fault in faults:
            log.error("route_fault", extra={"fault": fault})


def _awaited(name: str) -> Unavailable:
    return Unavailable(f"no worker has registered the model '{name[:200]}' yet", retry_after_s=_REGISTER_S)
