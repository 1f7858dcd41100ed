"""The manifests agree with the rest: names with names, settings with shared/config.py, users and server with theirs."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from deploy.valkey import OPTIONS
from shared.access.keyring import Keyring, read_key_file
from shared.config import GatewaySettings, WorkerSettings, load
from shared.servers.address import parse
from tests.architecture.source_tree import read
from tests.unit.deploy.kubernetes.rendered import (
    FOLDER,
    OVERLAYS,
    container,
    named,
    of_kind,
    picked,
    rendered,
    settings,
    templates,
)

overlays = pytest.mark.parametrize("overlay", OVERLAYS)
with_valkey = pytest.mark.parametrize("overlay", [name for name in OVERLAYS if name != "existing"])


def walk(value: Any) -> list[dict[str, Any]]:
    """Every mapping in a document, at any depth."""
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    found: list[dict[str, Any]] = [value] if isinstance(value, dict) else []
    return found + [one for each in inner for one in walk(each)]


def examples() -> dict[str, dict[str, str]]:
    documents = yaml.safe_load_all((FOLDER / "secrets.example.yaml").read_text("utf-8"))
    return {each["metadata"]["name"]: each["stringData"] for each in documents}


@cache
def made() -> tuple[dict[str, dict[str, str]], str]:
    """What secrets.sh makes, and the API key it told."""
    command = ["sh", str(FOLDER / "secrets.sh")]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    secrets = {each["metadata"]["name"]: each["stringData"] for each in yaml.safe_load_all(run.stdout)}
    return secrets, run.stderr.split()[-1]


@overlays
def test_gateway_and_worker_start_with_the_settings_given(overlay: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {env["name"] for name in ("gateway", "worker") for env in container(overlay, f"headrace-{name}")["env"]}
    for name, value in settings(overlay).items():
        monkeypatch.setenv(name, value)
    for name in names & {"HEADRACE_OPERATOR_KEY", "HEADRACE_WORKER_NAME"}:
        monkeypatch.setenv(name, "a-name-of-some-length")
    gateway, worker = load(GatewaySettings), load(WorkerSettings)
    assert gateway.require_keys and worker.worker_metrics_host == gateway.host == "0.0.0.0"
    ports = {
        name: container(overlay, f"headrace-{name}")["ports"][0]["containerPort"] for name in ("gateway", "worker")
    }
    assert ports == {"gateway": gateway.port, "worker": worker.worker_metrics_port}
    assert worker.device == ("cuda" if overlay == "gpu" else "cpu")


@overlays
def test_mounts_are_where_the_settings_point(overlay: str) -> None:
    mounts = {each["mountPath"]: each for each in container(overlay, "headrace-gateway")["volumeMounts"]}
    assert {"/tmp", settings(overlay)["HEADRACE_DATA_DIR"]} <= set(mounts)
    folder, _, file = settings(overlay)["HEADRACE_KEYS_FILE"].rpartition("/")
    (volume,) = (
        each
        for each in templates(overlay)["headrace-gateway"]["spec"]["volumes"]
        if each["name"] == mounts[folder]["name"]
    )
    assert file in examples()[volume["secret"]["secretName"]]


@overlays
def test_every_secret_and_config_map_that_is_named_exists(overlay: str) -> None:
    known = examples()
    (config_map,) = of_kind(overlay, "ConfigMap")
    for place in (found for document in rendered(overlay) for found in walk(document)):
        if (secret := place.get("secretKeyRef")) is not None:
            assert secret["key"] in known[secret["name"]]
        if (secret := place.get("secret")) is not None:
            assert {each["key"] for each in secret.get("items", [])} <= set(known[secret["secretName"]])
        if (reference := place.get("configMapRef")) is not None:
            assert reference["name"] == config_map["metadata"]["name"]


@overlays
def test_every_port_and_selector_finds_its_pods(overlay: str) -> None:
    ports = {port["name"] for name in templates(overlay) for port in container(overlay, name)["ports"]}
    for service in of_kind(overlay, "Service"):
        (name,) = picked(overlay, {"matchLabels": service["spec"]["selector"]})
        assert service["spec"]["ports"][0]["targetPort"] == container(overlay, name)["ports"][0]["name"]
    for monitor in of_kind(overlay, "PodMonitor"):
        (name,) = picked(overlay, monitor["spec"]["selector"])
        assert monitor["spec"]["podMetricsEndpoints"][0]["port"] == container(overlay, name)["ports"][0]["name"]
    for policy in of_kind(overlay, "NetworkPolicy"):
        assert picked(overlay, policy["spec"]["podSelector"])
        used = {port["port"] for place in walk(policy) for port in place.get("ports", [])}
        assert {port for port in used if isinstance(port, str)} <= ports


@with_valkey
def test_the_server_is_set_as_the_embedded_one_is(overlay: str) -> None:
    words = container(overlay, "headrace-valkey")["args"]
    for option, *values in OPTIONS:
        if option != "daemonize":
            at = words.index(f"--{option}")
            assert words[at + 1 : at + 1 + len(values)] == values
    assert words[words.index("--aclfile") + 1] == "/etc/valkey/users.acl" and "--maxmemory" in words
    assert [claim["metadata"]["name"] for claim in claims(overlay)] == ["data"]


def claims(overlay: str) -> list[dict[str, Any]]:
    return named(overlay, "StatefulSet", "headrace-valkey")["spec"]["volumeClaimTemplates"]


@with_valkey
def test_the_secrets_made_open_the_server_that_is_there(overlay: str) -> None:
    secrets, _ = made()
    (service,) = (each for each in of_kind(overlay, "Service") if each["metadata"]["name"] == "headrace-valkey")
    users = {line.split()[1]: line.split() for line in secrets["headrace-valkey"]["users.acl"].splitlines()}
    for user in ("gateway", "worker"):
        url = secrets[f"headrace-{user}"]["redis-url"]
        parse(url)
        where = urlsplit(url)
        assert (where.username, where.hostname, where.port) == (user, service["metadata"]["name"], 6379)
        assert f">{where.password}" in users[user]
    assert f">{secrets['headrace-valkey']['ops-password']}" in users["ops"] and "off" in users["default"]


def test_the_secrets_made_are_all_that_are_named_and_have_no_placeholder() -> None:
    secrets, _ = made()
    assert {name: set(keys) for name, keys in secrets.items()} == {
        name: set(keys) for name, keys in examples().items() if name != "headrace-store"
    }
    assert not re.search(r"_PASSWORD|REPLACE_ME", str(secrets))
    rights = [re.sub(r">\S+", "", line) for line in read("deploy/redis/users.acl").splitlines()]
    assert [re.sub(r">\S+", "", line) for line in secrets["headrace-valkey"]["users.acl"].splitlines()] == rights


def test_the_key_that_is_told_opens_the_gateway(tmp_path: Any) -> None:
    secrets, key = made()
    (tmp_path / "keys.toml").write_text(secrets["headrace-api-keys"]["keys.toml"])
    tenant = Keyring(read_key_file(str(tmp_path / "keys.toml"))).find(key)
    assert tenant is not None and tenant.name == "default"


def test_examples_are_placeholders() -> None:
    assert all("REPLACE_ME" in value for keys in examples().values() for value in keys.values())


def test_one_gateway_has_a_file_and_several_a_database() -> None:
    alone, several = (named(overlay, "Deployment", "headrace-gateway")["spec"] for overlay in ("cpu", "existing"))
    assert (alone["replicas"], alone["strategy"]) == (1, {"type": "Recreate"})
    assert several["replicas"] > 1 and several["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    database = [env["name"] for env in container("existing", "headrace-gateway")["env"]]
    assert "HEADRACE_STORE_URL" in database
    claim = named("existing", "PersistentVolumeClaim", "headrace-gateway-data")
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]


def test_gpu_workers_have_one_each_and_are_replaced_in_place() -> None:
    assert container("gpu", "headrace-worker")["resources"]["limits"]["nvidia.com/gpu"] == "1"
    strategy = named("gpu", "Deployment", "headrace-worker")["spec"]["strategy"]["rollingUpdate"]
    assert strategy == {"maxUnavailable": 1, "maxSurge": 0}


def test_scaling_asks_the_gateway_and_leaves_the_number_alone() -> None:
    scaled = named("keda", "ScaledObject", "headrace-worker")["spec"]
    (trigger,) = scaled["triggers"]
    url = urlsplit(trigger["metadata"]["url"])
    bounds = {name: [str(scaled[f"{name[:3]}ReplicaCount"])] for name in ("min_workers", "max_workers")}
    assert (url.hostname, url.path) == ("headrace-gateway.headrace.svc", "/operator/v1/scaling")
    assert parse_qs(url.query) == bounds | {"model": [settings("keda")["HEADRACE_MODEL_NAME"]]}
    assert trigger["metadata"]["valueLocation"] in read("docs/scaling.md")
    assert "replicas" not in named("keda", "Deployment", scaled["scaleTargetRef"]["name"])["spec"]
    (token,) = named("keda", "TriggerAuthentication", trigger["authenticationRef"]["name"])["spec"]["secretTargetRef"]
    assert token["key"] in examples()[token["name"]]
