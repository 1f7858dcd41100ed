"""All routes together: each name with the models it ends at. Pure.

    chat -> {small: 90, canary: 10}, canary -> {big@02: 1}     chat ends at small (0.9) and big@02 (0.1)

A target that is another route is followed; one that is the route's own name is the model of that name. Invariants: the
shares of a name add up to 1; no name leads back to itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from shared.errors import InvalidRequest
from shared.request_queue import Bounds
from shared.routing.entries import MAX_ROUTES, Route, name_of, route_of
from shared.schemas import ServiceClass

MAX_DEPTH = 8
MAX_ENDS = 64


@dataclass(frozen=True, slots=True)
class End:
    """A model name or revision a route ends at, its share of the requests, and the fallbacks on the way to it."""

    model: str
    share: float = 1.0
    fallbacks: tuple[str, ...] = ()


class RouteTable:
    """Immutable."""

    def __init__(self, routes: Mapping[str, Route] | None = None) -> None:
        """Raises InvalidRequest for names that lead back to themselves, or too deep."""
        self._routes = dict(routes or {})
        self._ends = {name: self._ends_of(name, ()) for name in self._routes}

    def __contains__(self, name: str) -> bool:
        return name in self._routes

    @property
    def routes(self) -> Mapping[str, Route]:
        return self._routes

    def ends(self, name: str) -> tuple[End, ...]:
        """In the order they were given. A name without a route ends at its own model."""
        return self._ends.get(name) or (End(name),)

    def bounds(self, model: str, bounds: Bounds) -> Bounds:
        """Of a revision's queue: its own entry's before its name's, before `bounds`."""
        for route in self._entries(model):
            bounds = replace(
                bounds,
                max_waiting=route.max_waiting or bounds.max_waiting,
                max_waiting_tokens=route.max_waiting_tokens or bounds.max_waiting_tokens,
                max_waiting_bytes=route.max_waiting_bytes or bounds.max_waiting_bytes,
            )
        return bounds

    def class_weight(self, model: str, service_class: ServiceClass, weight: float) -> float:
        """As `bounds`, of a class."""
        for route in self._entries(model):
            weight = route.class_weights.get(service_class, weight)
        return weight

    def _entries(self, model: str) -> list[Route]:
        """The more particular last."""
        return [self._routes[name] for name in dict.fromkeys((name_of(model), model)) if name in self._routes]

    def _ends_of(self, name: str, before: tuple[str, ...]) -> tuple[End, ...]:
        route = self._routes.get(name)
        if route is None or not route.targets:
            return (End(name, 1.0, route.fallbacks if route else ()),)
        way = (*before, name)
        if len(way) > MAX_DEPTH:
            words = f"targets: '{way[0]}' leads through more than {MAX_DEPTH} routes"
            raise InvalidRequest(words, param="targets")
        total = sum(route.targets.values())
        ends: list[End] = []
        for target, weight in route.targets.items():
            if target in before:
                raise InvalidRequest(f"targets: a cycle: {' -> '.join((*way, target))}", param="targets")
            found = (End(target),) if target == name else self._ends_of(target, way)
            share = weight / total
            ends += [End(end.model, end.share * share, (*route.fallbacks, *end.fallbacks)) for end in found]
        if len(ends) > MAX_ENDS:
            raise InvalidRequest(f"targets: '{name}' ends at more than {MAX_ENDS} models", param="targets")
        return tuple(ends)


def changed(table: RouteTable, name: str, route: Route) -> RouteTable:
    """With this route. Raises InvalidRequest where it would close a cycle, or there are too many."""
    if name not in table and len(table.routes) >= MAX_ROUTES:
        raise InvalidRequest(f"name: there are {MAX_ROUTES} routes, which is the limit", param="name")
    return RouteTable({**table.routes, name: route})


def table_of(stored: Mapping[bytes, bytes]) -> tuple[RouteTable, list[str]]:
    """Of `hr:routes`, and what was left out of it, in words: an entry with a fault is no route."""
    routes, faults = dict[str, Route](), list[str]()
    for raw_name, fields in sorted(stored.items())[:MAX_ROUTES]:
        name = raw_name.decode(errors="replace")
        try:
            routes[name] = route_of(name, fields)
        except InvalidRequest as error:
            faults.append(f"route '{name[:100]}': {error.message}")
    try:
        return RouteTable(routes), faults
    except InvalidRequest:  # somebody wrote a cycle past us, or two did at once: all but what closes it
        return _without_cycles(routes, faults)


def _without_cycles(routes: Mapping[str, Route], faults: list[str]) -> tuple[RouteTable, list[str]]:
    table = RouteTable()
    for name, route in routes.items():
        try:
            table = changed(table, name, route)
        except InvalidRequest as error:
            faults.append(f"route '{name[:100]}': {error.message}")
    return table, faults
