"""What the manifests promise: they are valid, nothing runs with more rights than it needs, nothing ends too early."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import kubernetes_validate
import pytest

from tests.architecture.source_tree import ROOT, files
from tests.unit.deploy.kubernetes.rendered import (
    OVERLAYS,
    container,
    named,
    of_kind,
    picked,
    rendered,
    settings,
    templates,
)

OLDEST, NEWEST = "1.30", "1.36"
OTHERS = {"PodMonitor", "ScaledObject", "TriggerAuthentication"}  # of operators, in no schema of Kubernetes
LONGEST_QUARANTINE_S = 300
OURS = {"headrace-gateway", "headrace-worker"}
YAML = [str(path) for path in files() if path.suffix in (".yaml", ".yml")]

overlays = pytest.mark.parametrize("overlay", OVERLAYS)


def budget_s(probe: dict[str, Any]) -> int:
    return probe["periodSeconds"] * probe["failureThreshold"]


def test_yamllint_has_nothing_to_say() -> None:
    command = [sys.executable, "-m", "yamllint", "--strict", *YAML]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (0, "")


@overlays
@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_every_document_is_valid(overlay: str, version: str) -> None:
    for document in rendered(overlay):
        if document["kind"] not in OTHERS:
            kubernetes_validate.validate(document, version, strict=True)


@overlays
def test_pods_meet_the_restricted_standard_and_write_to_no_root(overlay: str) -> None:
    for template in templates(overlay).values():
        pod = template["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True and pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers"} & set(pod)
        for each in pod["containers"]:
            assert each["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert each["resources"]["limits"]["memory"] and not each["image"].endswith(":latest")


@overlays
def test_no_pod_gets_a_token_or_variables_of_services(overlay: str) -> None:
    accounts = {each["metadata"]["name"]: each for each in of_kind(overlay, "ServiceAccount")}
    for template in templates(overlay).values():
        pod = template["spec"]
        assert pod["automountServiceAccountToken"] is False and pod["enableServiceLinks"] is False
        assert accounts[pod["serviceAccountName"]]["automountServiceAccountToken"] is False


@overlays
def test_pods_outlast_their_drain(overlay: str) -> None:
    drain_s = float(settings(overlay)["HEADRACE_DRAIN_TIMEOUT_S"])
    for name in OURS:
        grace_s = templates(overlay)[name]["spec"]["terminationGracePeriodSeconds"]
        pause_s = container(overlay, name).get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        assert grace_s >= drain_s + pause_s + 10
        assert (pause_s > 0) == (name == "headrace-gateway")


@overlays
def test_the_start_probe_leaves_room_for_the_model(overlay: str) -> None:
    worker = container(overlay, "headrace-worker")
    start_s = budget_s(worker["startupProbe"])
    assert worker["startupProbe"]["httpGet"]["path"] == "/health/ready" and start_s > 2 * LONGEST_QUARANTINE_S
    assert named(overlay, "Deployment", "headrace-worker")["spec"]["progressDeadlineSeconds"] > start_s


@overlays
def test_liveness_asks_for_the_process_and_readiness_for_work(overlay: str) -> None:
    for name in OURS:
        each = container(overlay, name)
        assert each["livenessProbe"]["httpGet"]["path"] == "/health/live"
        assert each["readinessProbe"]["httpGet"]["path"] == "/health/ready"


@overlays
def test_nothing_goes_in_or_out_that_is_not_named(overlay: str) -> None:
    default = named(overlay, "NetworkPolicy", "headrace-default")["spec"]
    assert picked(overlay, default["podSelector"]) == set(templates(overlay))
    assert default["policyTypes"] == ["Ingress", "Egress"] and default["ingress"] == []
    assert {port["port"] for rule in default["egress"] for port in rule["ports"]} == {53}


@pytest.mark.parametrize("overlay", [name for name in OVERLAYS if name != "existing"])
def test_only_gateways_and_workers_reach_the_queue(overlay: str) -> None:
    policies = [each["spec"] for each in of_kind(overlay, "NetworkPolicy")]
    reaching = [
        rule
        for spec in policies
        if "headrace-valkey" in picked(overlay, spec["podSelector"])
        for rule in spec.get("ingress", [])
    ]
    assert len(reaching) == 1 and [set(peer) for peer in reaching[0]["from"]] == [{"podSelector"}]
    assert picked(overlay, reaching[0]["from"][0]["podSelector"]) == OURS


@overlays
def test_gateways_and_workers_are_spread_and_leave_one_at_a_time(overlay: str) -> None:
    budgets = {each["metadata"]["name"]: each["spec"] for each in of_kind(overlay, "PodDisruptionBudget")}
    for name in OURS:
        assert budgets[name]["maxUnavailable"] == 1 and picked(overlay, budgets[name]["selector"]) == {name}
        spread = templates(overlay)[name]["spec"]["topologySpreadConstraints"]
        assert [picked(overlay, each["labelSelector"]) for each in spread] == [{name}] * 2


@overlays
def test_no_secret_is_in_the_manifests(overlay: str) -> None:
    assert of_kind(overlay, "Secret") == []
    assert not any("@" in value or "PASSWORD" in key for key, value in settings(overlay).items())
    literal = [env["name"] for name in OURS for env in container(overlay, name)["env"] if "value" in env]
    assert literal == []
