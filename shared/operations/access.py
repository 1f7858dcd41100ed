"""Operators' way in: who may use `/operator/v1`, and the desk they are given.

With HEADRACE_OPERATOR_KEY, or an API key whose entry says `is_operator`; off where there is neither. The desk has a
connection of its own, so that looking at a large queue takes nothing from the requests' path.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from shared.config import GatewaySettings
from shared.errors import AuthenticationFailed, PermissionDenied, Unavailable
from shared.operations.desk import Desk
from shared.operations.scaling.figures import policy_of
from shared.redis_client import AWAY, Scripts, connect
from shared.request_queue import Bounds

_SCHEME = "bearer "
_NAME = re.compile(r"[\w.@+ -]{1,64}")


class Operators:
    """`identify`, then `desk`; `stop` at the end."""

    def __init__(self, settings: GatewaySettings, operator_of: Callable[[str], str | None] = lambda _: None) -> None:
        """`operator_of`: the tenant of an operator's API key, from an Authorization header."""
        self._operator_of = operator_of
        key = settings.operator_key
        self._digest = _digest(key.get_secret_value()) if key is not None else None
        self._scripts = Scripts(connect(settings))
        bounds = Bounds(settings.max_waiting, settings.max_waiting_tokens, settings.max_waiting_bytes)
        self._desk = Desk(self._scripts, settings, bounds, policy_of(settings))

    async def stop(self) -> None:
        await self._scripts.client.aclose()

    def identify(self, authorization: str, name: str, address: str) -> str:
        """Who it is, for the audit: the name is the caller's word, the address ours. Raises a refusal.

        Takes as long for a wrong key as for the right one.
        """
        tenant = self._operator_of(authorization)
        if tenant is not None:
            return f"{name if _NAME.fullmatch(name) else tenant} ({address})"
        if self._digest is None:
            raise PermissionDenied(
                "not open to this key: set HEADRACE_OPERATOR_KEY on the gateway, or use an operator's API key",
                code="operator_disabled",
            )
        given = authorization[len(_SCHEME) :].strip() if authorization.lower().startswith(_SCHEME) else ""
        if not hmac.compare_digest(_digest(given), self._digest):
            raise AuthenticationFailed(
                "not the operator's key: send it as 'Authorization: Bearer <key>'", code="invalid_operator_key"
            )
        return f"{name if _NAME.fullmatch(name) else 'operator'} ({address})"

    @asynccontextmanager
    async def desk(self) -> AsyncGenerator[Desk]:
        """Raises Unavailable where Redis cannot be asked."""
        try:
            yield self._desk
        except AWAY as error:
            raise Unavailable(f"the queue is not reachable: {error}") from error


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
