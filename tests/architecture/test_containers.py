"""The containers: Dockerfiles pass hadolint, and docker-compose.yml keeps what operations rely on."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.valkey import OPTIONS
from shared.config import LauncherSettings
from tests.architecture.source_tree import ROOT, read

DOCKERFILES = ["deploy/docker/gateway.Dockerfile", "deploy/docker/worker.Dockerfile"]
DURATION_S = re.compile(r"(\d+)s")


def compose() -> dict[str, Any]:
    return yaml.safe_load(read("docker-compose.yml"))


def services() -> list[tuple[str, dict[str, Any]]]:
    return list(compose()["services"].items())


@pytest.mark.parametrize("path", DOCKERFILES)
def test_hadolint_has_nothing_to_say(path: str) -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    result = subprocess.run([str(hadolint), path], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (0, "")


@pytest.mark.parametrize("path", DOCKERFILES)
def test_an_image_is_built_in_stages_and_runs_as_nobody(path: str) -> None:
    lines = read(path).splitlines()
    assert sum(line.startswith("FROM ${PYTHON_IMAGE}") for line in lines) == 2
    assert not any(line.startswith("# syntax=") for line in lines)
    assert "USER 10001" in lines[lines.index("FROM ${PYTHON_IMAGE}") :]


@pytest.mark.parametrize("path", DOCKERFILES)
def test_health_checks_and_commands_are_in_exec_form(path: str) -> None:
    commands = [line.strip() for line in read(path).splitlines() if line.strip().startswith("CMD ")]
    assert len(commands) == 2
    assert all(isinstance(json.loads(command.removeprefix("CMD ")), list) for command in commands)


@pytest.mark.parametrize(("name", "service"), services())
def test_a_service_is_hardened_and_stops_in_its_own_time(name: str, service: dict[str, Any]) -> None:
    assert service["init"] is True and service["read_only"] is True and service["tmpfs"]
    assert service["cap_drop"] == ["ALL"] and "privileged" not in service
    assert int(DURATION_S.fullmatch(service["stop_grace_period"])[1]) >= 30  # type: ignore[index]


@pytest.mark.parametrize(("name", "service"), services())
def test_ports_are_on_loopback_unless_told_otherwise(name: str, service: dict[str, Any]) -> None:
    assert all(re.match(r"(\$\{\w+:-)?127\.0\.0\.1\b", port) for port in service.get("ports", []))


def test_workers_can_be_scaled_and_outlast_their_drain() -> None:
    worker = compose()["services"]["worker"]
    assert "container_name" not in worker and "ports" not in worker
    drain_s = LauncherSettings.model_fields["drain_timeout_s"].default
    assert int(DURATION_S.fullmatch(worker["stop_grace_period"])[1]) > drain_s  # type: ignore[index]


@pytest.mark.parametrize("name", ["gateway", "worker"])
def test_services_wait_for_a_healthy_server(name: str) -> None:
    assert compose()["services"][name]["depends_on"]["valkey"]["condition"] == "service_healthy"
    assert compose()["services"]["valkey"]["healthcheck"]["test"][0] == "CMD"


def test_the_server_is_set_as_the_embedded_one_is_and_bounded() -> None:
    words = compose()["services"]["valkey"]["command"]
    for option, *values in OPTIONS:
        if option != "daemonize":
            at = words.index(f"--{option}")
            assert words[at + 1 : at + 1 + len(values)] == values
    assert "--maxmemory" in words


def test_every_variable_has_a_default_and_is_in_the_example() -> None:
    used = re.findall(r"\$\{(\w+)(:-)?", re.sub(r"(?m)^\s*#.*$", "", read("docker-compose.yml")))
    example = set(re.findall(r"(?m)^(\w+)=", read(".env.example")))
    assert all(default for _, default in used)
    assert {name for name, _ in used} == example
