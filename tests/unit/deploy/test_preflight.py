"""Refusals before anything is started."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from deploy.preflight import DataDirectory, check_port
from shared.errors import ConfigurationError


def test_a_free_port_passes_and_a_taken_one_is_named() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"port {port} .*HEADRACE_PORT.*--port {port + 1}"):
            check_port("127.0.0.1", port)
    check_port("127.0.0.1", port)


def test_an_address_that_is_not_ours_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="HEADRACE_HOST"):
        check_port("192.0.2.1", 8000)


def test_the_directory_is_locked_while_held_and_free_after(tmp_path: Path) -> None:
    with (
        DataDirectory(tmp_path / "data"),
        pytest.raises(ConfigurationError, match=f"pid {os.getpid()}.*--data-dir"),
        DataDirectory(tmp_path / "data"),
    ):
        pass
    with DataDirectory(tmp_path / "data") as again:
        assert again.valkey.is_dir() and again.logs.is_dir()


def test_others_cannot_read_the_directory(tmp_path: Path) -> None:
    with DataDirectory(tmp_path / "data") as data:
        assert data.path.stat().st_mode & 0o077 == 0


def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    with pytest.raises(ConfigurationError, match="HEADRACE_DATA_DIR"), DataDirectory(tmp_path / "data"):
        pass
