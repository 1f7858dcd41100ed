"""Who asks: from an Authorization header to a tenant, by the API keys of a file and of Redis.

Both are read again every `model_poll_s`. Without any key the service is open and everybody is `anonymous`, which
is said at start. It never becomes open later: a gateway that has seen keys, or may not have seen all there are,
refuses what it does not know. What cannot be read leaves the last good state.
"""

from __future__ import annotations

import asyncio
import logging
import os

from redis.exceptions import RedisError

from shared import keys
from shared.access.entries import ANONYMOUS, KeyEntry, Tenant
from shared.access.keyring import Keyring, read_key_file, ring_of
from shared.config import GatewaySettings
from shared.errors import AuthenticationFailed, ConfigurationError, Unavailable
from shared.redis_client import Scripts, end_tasks

log = logging.getLogger(__name__)
_SCHEME = "bearer "


class Authenticator:
    """start, then ask; stop."""

    def __init__(self, settings: GatewaySettings, scripts: Scripts) -> None:
        self._settings = settings
        self._scripts = scripts
        self._in_file: tuple[KeyEntry, ...] = ()
        self._in_redis: dict[bytes, bytes] = {}
        self._has_asked_redis = False
        self._are_keys_wanted = settings.require_keys or bool(settings.keys_file)
        self._file_version: tuple[int, int, int] | None = None
        self._faults: list[str] = []
        self._has_said_open = False
        self._ring = Keyring()

    async def start(self) -> None:
        """Raises ConfigurationError for a keys file that cannot be used."""
        await self._read_file()
        await self.refresh()
        self._poller = asyncio.create_task(self._poll())

    async def stop(self) -> None:
        await end_tasks(self._poller)

    @property
    def is_open(self) -> bool:
        """Everybody may ask: there are no keys, and that is known."""
        return self._has_asked_redis and not self._are_keys_wanted

    def tenant(self, authorization: str) -> Tenant:
        """Whose the header's key is. Raises AuthenticationFailed, or Unavailable while keys may exist unread."""
        if self.is_open:
            return ANONYMOUS
        key = _key_in(authorization)
        found = self._ring.find(key)
        if found is not None:
            return found
        self._require_all_keys()
        if not key:
            raise AuthenticationFailed("no API key: send it as 'Authorization: Bearer <key>'")
        raise AuthenticationFailed("the API key is not known here")

    def tenant_by_digest(self, sha256: str) -> Tenant:
        """As `tenant`, for work that a key's holder left here: by the key's SHA-256, '' for no key."""
        if self.is_open:
            return ANONYMOUS
        found = self._ring.find_digest(sha256)
        if found is not None:
            return found
        self._require_all_keys()
        raise AuthenticationFailed("the API key that this was asked with is not known any more")

    def _require_all_keys(self) -> None:
        if not self._has_asked_redis:
            raise Unavailable("the API keys could not be read yet: Redis is away")

    def operator_of(self, authorization: str) -> str | None:
        """The tenant of an operator's key; None for any other. Nobody is one without a key."""
        found = self._ring.find(_key_in(authorization))
        return found.name if found is not None and found.is_operator else None

    async def refresh(self) -> None:
        """Read both sources once. One that cannot be read stays as it was, and that is logged."""
        unread: list[str] = []
        try:
            await self._read_file()
        except ConfigurationError as error:
            unread.append(error.message)
        try:
            self._in_redis = await self._scripts.client.hgetall(keys.API_KEYS)
            self._has_asked_redis = True
        except (RedisError, OSError) as error:
            unread.append(f"hr:keys could not be read: {error}")
        self._build(unread)

    async def _read_file(self) -> None:
        """Read the file if it is another than at the last call."""
        path = self._settings.keys_file
        if not path:
            return
        try:
            status = await asyncio.to_thread(os.stat, path)
        except OSError as error:
            raise ConfigurationError(f"the keys file {path} cannot be used: {error}") from error
        version = (status.st_mtime_ns, status.st_size, status.st_ino)
        if version != self._file_version:
            self._in_file = await asyncio.to_thread(read_key_file, path)
            self._file_version = version

    def _build(self, unread: list[str]) -> None:
        ring, left_out = ring_of(self._in_file, self._in_redis)
        faults = [*unread, *left_out]
        if faults != self._faults:  # each fault is said once, not every period
            self._faults = faults
            for fault in faults:
                log.error("api_keys_fault", extra={"fault": fault})
        if len(ring) != len(self._ring):
            log.info("api_keys", extra={"num_keys": len(ring), "num_tenants": ring.num_tenants})
        self._ring = ring
        # Entries that cannot be used are keys too: with them alone the service is closed, not open.
        self._are_keys_wanted |= bool(self._in_file or self._in_redis)
        if self.is_open and not self._has_said_open:
            self._has_said_open = True
            log.warning("open_to_everyone", extra={"remedy": "headrace keys new --tenant NAME"})

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(self._settings.model_poll_s)
            await self.refresh()


def _key_in(authorization: str) -> str:
    """'' when there is none."""
    return authorization[len(_SCHEME) :].strip() if authorization.lower().startswith(_SCHEME) else ""
