"""API keys as they are stored and found: hashes, files, entries of Redis, and what keys of a tenant must agree in."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from shared.access.entries import KeyEntry, entry_as_json, entry_as_toml, new_key, sha256_of
from shared.access.keyring import Keyring, read_key_file, ring_of
from shared.errors import ConfigurationError
from shared.schemas import ServiceClass


def entry(key: str, tenant: str = "acme", **fields: object) -> KeyEntry:
    return msgspec.convert({"sha256": sha256_of(key), "tenant": tenant, **fields}, KeyEntry)


def test_a_key_is_found_by_its_hash_and_another_is_not() -> None:
    ring = Keyring([entry("one", "a"), entry("two", "b")])
    assert [tenant.name if tenant else None for tenant in map(ring.find, ("one", "two", "three", ""))] == [
        "a",
        "b",
        None,
        None,
    ]


def test_new_keys_differ_and_are_long_enough_to_be_hashed_once() -> None:
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100 and all(len(key) >= 43 for key in keys)


def test_a_key_of_any_characters_is_only_unknown() -> None:
    assert Keyring([entry("one")]).find("\udcff é \x00") is None


def test_an_entry_survives_both_ways_of_storing_it(tmp_path: Path) -> None:
    stored = entry(
        "k", weight=4.0, tokens_per_min=1000, models=["tiny", 'a"b'], service_classes=["flex"], is_operator=True
    )
    file = tmp_path / "keys.toml"
    file.write_text(entry_as_toml(stored))
    ring, faults = ring_of((), {stored.sha256.encode(): entry_as_json(stored).encode()})
    assert read_key_file(str(file)) == (stored,)
    assert ring.find("k") == stored and faults == [] and "sha256" not in entry_as_json(stored)


def test_a_json_file_does_as_well(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_text(f'{{"keys": [{{"sha256": "{sha256_of("k")}", "tenant": "acme"}}]}}')
    assert Keyring(read_key_file(str(file))).find("k") is not None


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[[keys]", "cannot be used"),
        ('[[keys]]\ntenant = "a"', "sha256"),
        (f'[[keys]]\nsha256 = "{"0" * 64}"', "tenant"),
        (f'[[keys]]\nsha256 = "{"0" * 64}"\ntenant = "a{{b"', "tenant"),
        (f'[[keys]]\nsha256 = "{"0" * 64}"\ntenant = "a"\nrequests_per_minute = 5', "requests_per_minute"),
        (f'[[keys]]\nsha256 = "{"0" * 64}"\ntenant = "a"\ntokens_per_min = -1', "tokens_per_min"),
        (f'[[keys]]\nsha256 = "{"0" * 64}"\ntenant = "a"\nweight = 0', "weight"),
        (f'[[keys]]\nsha256 = "{"0" * 64}"\ntenant = "a"\n' * 2, "twice"),
    ],
)
def test_a_file_with_a_fault_is_refused_by_name(tmp_path: Path, text: str, named: str) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=named):
        read_key_file(str(file))


def test_a_missing_file_is_a_refusal() -> None:
    with pytest.raises(ConfigurationError, match=r"none\.toml"):
        read_key_file("none.toml")


def test_a_bad_entry_in_redis_opens_nothing_and_the_others_stay() -> None:
    good = entry("good")
    ring, faults = ring_of((), {b"x": b"{}", b"y" * 64: b"no", good.sha256.encode(): entry_as_json(good).encode()})
    assert (len(ring), len(faults)) == (1, 2) and ring.find("good") == good


def test_keys_of_one_tenant_agree_in_what_is_counted_by_tenant() -> None:
    first, other = entry("one", requests_per_min=5), entry("two", requests_per_min=50, models=["tiny"])
    ring, faults = ring_of((first, other), {})
    assert ring.find("one") == first and ring.find("two") is None
    assert len(faults) == 1 and "requests_per_min" in faults[0]


def test_what_a_key_allows_is_asked_by_name_or_revision() -> None:
    tenant = entry("k", models=["tiny", "big@01"], service_classes=["flex"])
    assert [tenant.may_use(model) for model in ("tiny", "tiny@99", "big", "big@01", "other")] == [
        True,
        True,
        False,
        True,
        False,
    ]
    assert tenant.service_classes == (ServiceClass.FLEX,)
