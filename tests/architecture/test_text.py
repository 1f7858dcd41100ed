"""Tracked text: nothing that ties the project to one machine, and links that lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.architecture.source_tree import ROOT, files, read

# Hosts of package registries and places of one machine, in pieces, so that this file does not contain them.
FORBIDDEN = re.compile(
    "|".join(
        (
            r"py" + r"pi\.org",
            r"python" + r"hosted\.org",
            r"npm" + r"js\.(org|com)",
            r"download\.py" + r"torch\.org",
            r"(deb|security)\.debian" + r"\.org",
            r"file:" + r"///",
            r"(?<![\w.$~-])/(root|home|work|Users)" + r"/\w",
        )
    )
)
SKIPPED = {"LICENSE"}
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def text_of(path: Path) -> str | None:
    try:
        return read(path)
    except UnicodeDecodeError:
        return None


def test_no_registry_host_and_no_machine_path_is_written_down() -> None:
    found = [
        f"{path}: {match.group()}"
        for path in files()
        if path.name not in SKIPPED
        for match in FORBIDDEN.finditer(text_of(path) or "")
    ]
    assert found == []


def anchors(markdown: str) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", markdown), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", [path for path in files() if path.suffix == ".md"], ids=str)
def test_links_lead_somewhere(path: Path) -> None:
    broken: list[str] = []
    for link in LINK.findall(FENCE.sub("", read(path))):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        file = (ROOT / path.parent / target).resolve() if target else ROOT / path
        if not file.exists() or (anchor and anchor not in anchors(file.read_text(encoding="utf-8"))):
            broken.append(link)
    assert broken == []
