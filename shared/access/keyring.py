"""The keys known at one moment, read from a file and from `hr:keys`, and held as one immutable ring.

Invariants: a digest stands in a ring once; all keys of a tenant agree in what is counted by tenant. A fault in
the file refuses the whole file. A fault in Redis leaves that one key out: it then opens nothing.
"""

from __future__ import annotations

import hmac
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from shared.access.entries import KeyEntry, Tenant, sha256_of
from shared.errors import ConfigurationError


class _KeyFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    keys: tuple[KeyEntry, ...] = ()


class Keyring:
    """Immutable."""

    def __init__(self, entries: Iterable[KeyEntry] = ()) -> None:
        self._entries = tuple((entry.sha256.encode(), entry) for entry in entries)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def num_tenants(self) -> int:
        return len({entry.name for _, entry in self._entries})

    def find(self, key: str) -> Tenant | None:
        """Compares with every key, each in constant time: how long it takes tells nothing of which matched."""
        return self.find_digest(sha256_of(key))

    def find_digest(self, sha256: str) -> Tenant | None:
        """As `find`, by the SHA-256 of a key."""
        digest = sha256.encode()
        found: Tenant | None = None
        for known, entry in self._entries:
            if hmac.compare_digest(known, digest):
                found = entry
        return found


def read_key_file(path: str) -> tuple[KeyEntry, ...]:
    """The entries of a TOML file, or of a JSON one by its suffix. Raises ConfigurationError naming the fault."""
    try:
        raw = Path(path).read_bytes()
        entries = _decode_file(raw, is_json=path.endswith(".json"))
    except (OSError, msgspec.DecodeError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the keys file {path} cannot be used: {error}") from error
    _, faults = ring_of(entries, {})
    if faults:
        raise ConfigurationError(f"the keys file {path} cannot be used: {'; '.join(faults)}")
    return entries


def _decode_file(raw: bytes, *, is_json: bool) -> tuple[KeyEntry, ...]:
    if is_json:
        return msgspec.json.decode(raw, type=_KeyFile).keys
    return msgspec.convert(tomllib.loads(raw.decode()), _KeyFile).keys


def ring_of(in_file: Iterable[KeyEntry], in_redis: Mapping[bytes, bytes]) -> tuple[Keyring, list[str]]:
    """One ring of both sources, the file first, and what was left out of it, in words."""
    faults: list[str] = []
    entries: dict[str, KeyEntry] = {}
    tenants: dict[str, KeyEntry] = {}
    for entry in [*in_file, *_decode_hash(in_redis, faults)]:
        first = tenants.setdefault(entry.name, entry)
        if entry.sha256 in entries:
            faults.append(f"the key {entry.sha256[:12]}... stands there twice")
        elif entry.shared != first.shared:
            faults.append(
                f"the key {entry.sha256[:12]}... of tenant {entry.name} differs from its other keys in weight, "
                "requests_per_min, tokens_per_min, max_concurrency or max_waiting, which are counted by tenant"
            )
        else:
            entries[entry.sha256] = entry
    return Keyring(entries.values()), faults


def _decode_hash(raw: Mapping[bytes, bytes], faults: list[str]) -> list[KeyEntry]:
    entries: list[KeyEntry] = []
    for digest, value in sorted(raw.items()):
        try:
            fields = msgspec.json.decode(value, type=dict[str, object])
            entries.append(msgspec.convert(fields | {"sha256": digest.decode()}, KeyEntry))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            faults.append(f"the entry {digest[:12].decode(errors='replace')}... of hr:keys cannot be read: {error}")
    return entries
