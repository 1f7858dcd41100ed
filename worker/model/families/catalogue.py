"""The families this build can run, found by the names that model files give them."""

from __future__ import annotations

from shared.errors import ConfigurationError
from worker.model.families.family import Family
from worker.model.families.gemma import GEMMA3
from worker.model.families.llama import LLAMA, MISTRAL
from worker.model.families.metadata import Metadata
from worker.model.families.qwen import QWEN2, QWEN3
from worker.model.families.settings import Settings

FAMILIES = (LLAMA, MISTRAL, QWEN2, QWEN3, GEMMA3)


def family_of_settings(settings: Settings) -> Family:
    """ConfigurationError names the architecture and what there is instead."""
    for family in FAMILIES:
        if settings.architecture in family.hugging_face:
            return family
    supported = ", ".join(name for family in FAMILIES for name in family.hugging_face)
    experts = " (a mixture of experts)" if settings.has_experts else ""
    raise ConfigurationError(
        f"model architecture {settings.architecture!r}{experts} is not supported; supported are {supported}"
    )


def family_of_metadata(metadata: Metadata) -> Family:
    for family in FAMILIES:
        if metadata.architecture == family.gguf:
            return family
    supported = ", ".join(family.gguf for family in FAMILIES if family.gguf)
    raise ConfigurationError(
        f"model architecture {metadata.architecture!r} is not supported; supported in GGUF are {supported}"
    )
