"""API keys read again while a gateway runs: what opens, what closes, and what a fault leaves as it was."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from gateway.auth import Authenticator
from loadtest.valkey import Valkey
from shared import keys
from shared.access.entries import ANONYMOUS, KeyEntry, entry_as_json, entry_as_toml, sha256_of
from shared.config import GatewaySettings
from shared.errors import AuthenticationFailed, ConfigurationError, PermissionDenied, Unavailable
from shared.operations.access import Operators
from shared.redis_client import Scripts, connect

NOWHERE = "redis://127.0.0.1:1/0"


def entry(key: str, tenant: str = "acme", **fields: Any) -> KeyEntry:
    return KeyEntry(sha256=sha256_of(key), name=tenant, **fields)


async def store(scripts: Scripts, stored: KeyEntry) -> None:
    await scripts.client.hset(keys.API_KEYS, stored.sha256, entry_as_json(stored))


@contextlib.asynccontextmanager
async def authenticator_of(url: str, **settings: Any) -> AsyncGenerator[Authenticator]:
    """It does not read again by itself within a test, unless `model_poll_s` says so."""
    whole = GatewaySettings.model_validate({"redis_url": url, "redis_timeout_s": 0.5, "model_poll_s": 3600} | settings)
    scripts = Scripts(connect(whole))
    authenticator = Authenticator(whole, scripts)
    await authenticator.start()
    try:
        yield authenticator
    finally:
        await authenticator.stop()
        await scripts.client.aclose()


def who(authenticator: Authenticator, key: str) -> str:
    """The tenant's name, or the refusal's."""
    try:
        return authenticator.tenant(f"Bearer {key}").name
    except (AuthenticationFailed, Unavailable) as error:
        return type(error).__name__


async def until(authenticator: Authenticator, key: str, wanted: str) -> None:
    """The test's own timeout bounds the wait."""
    while True:
        if who(authenticator, key) == wanted:
            return
        await asyncio.sleep(0.01)


async def test_without_keys_everybody_is_anonymous_and_that_is_said(
    valkey: Valkey, scripts: Scripts, caplog: pytest.LogCaptureFixture
) -> None:
    async with authenticator_of(valkey.url) as authenticator:
        assert authenticator.tenant("") == authenticator.tenant("Bearer x") == ANONYMOUS
    assert [record.levelname for record in caplog.records if record.message == "open_to_everyone"] == ["WARNING"]


async def test_a_header_finds_its_tenant(valkey: Valkey, scripts: Scripts) -> None:
    await store(scripts, entry("one", weight=4.0))
    async with authenticator_of(valkey.url) as authenticator:
        assert authenticator.tenant("bearer  one").weight == 4.0
        for header in ("", "one", "Basic one", "Bearer", "Bearer two"):
            with pytest.raises(AuthenticationFailed):
                authenticator.tenant(header)


async def test_a_key_added_and_removed_in_redis_counts_soon_and_never_opens(valkey: Valkey, scripts: Scripts) -> None:
    async with authenticator_of(valkey.url, model_poll_s=0.01) as authenticator:
        assert who(authenticator, "one") == "anonymous"
        await store(scripts, entry("one"))
        await until(authenticator, "one", "acme")
        assert who(authenticator, "two") == "AuthenticationFailed"
        await scripts.client.execute_command("DEL", keys.API_KEYS)  # type: ignore[attr-defined]
        await until(authenticator, "one", "AuthenticationFailed")


async def test_a_file_is_read_again_when_it_changes_and_a_bad_one_is_not_taken(
    valkey: Valkey, scripts: Scripts, tmp_path: Path
) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(entry_as_toml(entry("one")))
    async with authenticator_of(valkey.url, keys_file=str(file)) as authenticator:
        assert who(authenticator, "one") == "acme"
        file.write_text(entry_as_toml(entry("two", "other")))
        await authenticator.refresh()
        assert (who(authenticator, "one"), who(authenticator, "two")) == ("AuthenticationFailed", "other")
        file.write_text("[[keys]]\n")
        await authenticator.refresh()
        file.unlink()
        await authenticator.refresh()
        assert who(authenticator, "two") == "other"


async def test_a_bad_file_refuses_the_start(valkey: Valkey, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="gone"):
        async with authenticator_of(valkey.url, keys_file=str(tmp_path / "gone.toml")):
            pass


async def test_a_key_of_redis_may_not_contradict_the_file(valkey: Valkey, scripts: Scripts, tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(entry_as_toml(entry("one", weight=2.0)))
    await store(scripts, entry("two", weight=9.0))
    await store(scripts, entry("three", weight=2.0))
    async with authenticator_of(valkey.url, keys_file=str(file)) as authenticator:
        asked = [who(authenticator, key) for key in ("one", "two", "three")]
    assert asked == ["acme", "AuthenticationFailed", "acme"]


async def test_an_entry_that_cannot_be_read_closes_and_does_not_open(valkey: Valkey, scripts: Scripts) -> None:
    await scripts.client.hset(keys.API_KEYS, "0" * 64, "{}")
    async with authenticator_of(valkey.url) as authenticator:
        assert who(authenticator, "any") == "AuthenticationFailed"


async def test_with_redis_away_nobody_passes_but_a_key_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(entry_as_toml(entry("one")))
    async with authenticator_of(NOWHERE) as authenticator:
        assert who(authenticator, "one") == "Unavailable"
    async with authenticator_of(NOWHERE, keys_file=str(file)) as authenticator:
        assert (who(authenticator, "one"), who(authenticator, "two")) == ("acme", "Unavailable")


async def test_keys_may_be_required_though_there_are_none(valkey: Valkey, scripts: Scripts) -> None:
    async with authenticator_of(valkey.url, require_keys=True) as authenticator:
        assert who(authenticator, "any") == "AuthenticationFailed"


async def test_only_an_operators_key_makes_an_operator(valkey: Valkey, scripts: Scripts) -> None:
    async with authenticator_of(valkey.url) as open_to_all:
        assert open_to_all.operator_of("Bearer any") is None
    await store(scripts, entry("one"))
    await store(scripts, entry("two", "ops", is_operator=True))
    async with authenticator_of(valkey.url) as authenticator:
        assert [authenticator.operator_of(f"Bearer {key}") for key in ("one", "two", "")] == [None, "ops", None]


async def test_an_operators_api_key_opens_the_operators_endpoints(valkey: Valkey, scripts: Scripts) -> None:
    await store(scripts, entry("two", "ops", is_operator=True))
    async with authenticator_of(valkey.url) as authenticator:
        operators = Operators(GatewaySettings(redis_url=valkey.url), authenticator.operator_of)
        assert operators.identify("Bearer two", "", "host") == "ops (host)"
        with pytest.raises(PermissionDenied):
            operators.identify("Bearer one", "", "host")
        await operators.stop()
