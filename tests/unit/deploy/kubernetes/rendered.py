"""The overlays of deploy/kubernetes as kubectl or kustomize renders them, once each, and what is asked of them often.

Without either program nothing can be rendered: those tests are skipped, and the reason says so.
"""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from typing import Any

import pytest
import yaml

from tests.architecture.source_tree import ROOT

FOLDER = ROOT / "deploy" / "kubernetes"
OVERLAYS = sorted(path.name for path in (FOLDER / "overlays").iterdir())

WORKLOADS = ("Deployment", "StatefulSet")
Document = dict[str, Any]


@cache
def rendered(overlay: str) -> tuple[Document, ...]:
    folder = str(FOLDER / "overlays" / overlay)
    if shutil.which("kustomize"):
        command = ["kustomize", "build", folder]
    elif shutil.which("kubectl"):
        command = ["kubectl", "kustomize", folder]
    else:
        pytest.skip("NEITHER kubectl NOR kustomize IS INSTALLED: the Kubernetes manifests are not checked")
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    return tuple(yaml.safe_load_all(result.stdout))


def of_kind(overlay: str, *kinds: str) -> list[Document]:
    return [document for document in rendered(overlay) if document["kind"] in kinds]


def named(overlay: str, kind: str, name: str) -> Document:
    return next(each for each in of_kind(overlay, kind) if each["metadata"]["name"] == name)


def templates(overlay: str) -> dict[str, Document]:
    """Name of the workload -> its pods' template."""
    return {each["metadata"]["name"]: each["spec"]["template"] for each in of_kind(overlay, *WORKLOADS)}


def container(overlay: str, workload: str) -> Document:
    (only,) = templates(overlay)[workload]["spec"]["containers"]
    return only


def settings(overlay: str) -> dict[str, str]:
    (only,) = of_kind(overlay, "ConfigMap")
    return only["data"]


def picked(overlay: str, selector: Document) -> set[str]:
    """The workloads whose pods a label selector takes."""
    return {name for name, each in templates(overlay).items() if _takes(selector, each["metadata"]["labels"])}


def _takes(selector: Document, labels: dict[str, str]) -> bool:
    expressions = selector.get("matchExpressions", [])
    assert all(each["operator"] == "In" for each in expressions)
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items()) and all(
        labels.get(each["key"]) in each["values"] for each in expressions
    )
