"""`python -m tests.architecture.api_page` (`make api-page`): writes docs/api.md from what is served."""

from __future__ import annotations

from typing import cast

from fastapi import FastAPI

from gateway.app import create_app
from gateway.http.connection import Abortable
from gateway.reference.page import page
from shared.config import GatewaySettings
from tests.architecture.source_tree import ROOT

PATH = ROOT / "docs" / "api.md"


def document() -> dict[str, object]:
    """Of the gateway as it is put together, with default settings."""
    return cast("FastAPI", cast("Abortable", create_app(GatewaySettings.model_construct())).app).openapi()


def current_page() -> str:
    return page(document())


if __name__ == "__main__":
    PATH.write_text(current_page())
