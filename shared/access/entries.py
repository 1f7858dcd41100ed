"""API keys as they are stored: the hash of a key, whose it is, and what its tenant may do.

A key is high-entropy, so its SHA-256 is what is kept; the key itself is shown once, when it is made. An entry is
a `[[keys]]` table of a TOML file (or an element of `keys` in a JSON one), or a field of the Redis hash `hr:keys`
whose name is the SHA-256 and whose value is the entry's JSON without it. Knows no Redis and no HTTP.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Annotated

import msgspec

from shared.schemas import ServiceClass

_KEY_BYTES = 32
_PREFIX = "hr-"

Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$")]
Sha256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]
Limit = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)]
Weight = Annotated[float, msgspec.Meta(gt=0, le=10_000)]


class Tenant(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """Who asks, and within what: 0 and an empty list are no limit.

    `models` are names or revisions; `service_classes` are the ones a request may ask for.
    """

    name: Name = msgspec.field(name="tenant")
    weight: Weight = 1.0
    requests_per_min: Limit = 0
    tokens_per_min: Limit = 0
    max_concurrency: Limit = 0
    max_waiting: Limit = 0
    max_prompt_tokens: Limit = 0
    max_output_tokens: Limit = 0
    models: tuple[str, ...] = ()
    service_classes: tuple[ServiceClass, ...] = ()
    is_operator: bool = False

    @property
    def is_limited(self) -> bool:
        """Whether its requests are counted in Redis."""
        return bool(self.requests_per_min or self.tokens_per_min or self.max_concurrency)

    @property
    def shared(self) -> tuple[float, ...]:
        """What is counted by tenant, and so must be the same for all keys of one."""
        return self.weight, self.requests_per_min, self.tokens_per_min, self.max_concurrency, self.max_waiting

    def may_use(self, model: str) -> bool:
        """By name or revision (`name@digest`)."""
        return not self.models or model in self.models or model.rpartition("@")[0] in self.models


class KeyEntry(Tenant, frozen=True, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """One stored key: `sha256` is 64 lower-case hex digits."""

    sha256: Sha256


ANONYMOUS = Tenant(name="anonymous")


def new_key() -> str:
    """A key to hand out: 256 random bits."""
    return _PREFIX + secrets.token_urlsafe(_KEY_BYTES)


def sha256_of(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def entry_as_json(entry: KeyEntry) -> str:
    """The value stored in `hr:keys` under `entry.sha256`."""
    fields: dict[str, object] = msgspec.to_builtins(entry)
    del fields["sha256"]
    return msgspec.json.encode(fields).decode()


def entry_as_toml(entry: KeyEntry) -> str:
    """A `[[keys]]` table: its values are strings, numbers, booleans and lists, which JSON and TOML write alike."""
    fields: dict[str, object] = msgspec.to_builtins(entry)
    lines = [f"{name} = {msgspec.json.encode(value).decode()}" for name, value in fields.items()]
    return "\n".join(["[[keys]]", *lines])
