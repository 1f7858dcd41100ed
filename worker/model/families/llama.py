"""Llama 2, 3, 3.1 and 3.2, SmolLM2, and what else took that shape; Mistral, which adds a window over all layers.

Llama 3.1's scaling of long wavelengths is a `rope_type` in config.json and a tensor of divisors in GGUF. A GGUF
file of Mistral calls itself llama.
"""

from __future__ import annotations

from worker.model.families import metadata, settings
from worker.model.families.family import Family
from worker.model.families.metadata import Metadata
from worker.model.families.model_config import ModelConfig
from worker.model.families.settings import Settings


def _llama_settings(stated: Settings) -> ModelConfig:
    return settings.read_config(
        stated, "llama", mlp_bias=bool(stated.get("mlp_bias", False)), **settings.biases(stated)
    )


def _mistral_settings(stated: Settings) -> ModelConfig:
    windows = settings.layer_windows(stated, stated.get("sliding_window"))
    return settings.read_config(stated, "mistral", layer_windows=windows)


def _llama_metadata(stated: Metadata) -> ModelConfig:
    windows = (stated.get_own("attention.sliding_window"),) * stated.size("block_count")
    return metadata.read_config(stated, "llama", layer_windows=windows)


LLAMA = Family(
    hugging_face=("LlamaForCausalLM",),
    gguf="llama",
    read_settings=_llama_settings,
    read_metadata=_llama_metadata,
    has_neighbour_pairs=True,
)
MISTRAL = Family(
    hugging_face=("MistralForCausalLM",),
    gguf=None,
    read_settings=_mistral_settings,
    read_metadata=_llama_metadata,
)
