"""Store URLs: what they mean, and that no password shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.servers.store_address import parse_store


def test_nothing_is_a_file_in_the_data_directory(tmp_path: Path) -> None:
    assert parse_store("", str(tmp_path)).path == tmp_path / "store.db"


def test_a_relative_file_is_made_absolute() -> None:
    assert parse_store("sqlite:///a/b.db", "").path == Path("a/b.db").absolute()


def test_a_server_is_shown_without_its_password() -> None:
    address = parse_store("postgresql://me:secret@db.example:5433/headrace?sslmode=verify-full", "")
    assert address.url == "postgresql+asyncpg://me:secret@db.example:5433/headrace?ssl=verify-full"
    assert address.shown == "postgresql://db.example:5433/headrace"
    assert "secret" not in repr(address)


@pytest.mark.parametrize(
    "url",
    [
        "mysql://a/b",
        "sqlite:///:memory:",
        "sqlite:///",
        "postgresql://host",
        "postgresql:///database",
        "postgresql://host:port/database",
        "postgresql://host/database?connect_timeout=3",
        "postgresql://host/database?sslmode=maybe",
    ],
)
def test_what_cannot_be_meant_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"must|knows"):
        parse_store(url, "")
