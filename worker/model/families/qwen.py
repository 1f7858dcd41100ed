"""Qwen2 and Qwen2.5 (biases on Q, K and V) and Qwen3 (a norm on each query and key head instead).

Both may be set to slide a window over their upper layers, which published models switch off. Their GGUF files
have no window at all.
"""

from __future__ import annotations

from worker.model.families import metadata, settings
from worker.model.families.family import Family
from worker.model.families.metadata import Metadata
from worker.model.families.model_config import ModelConfig
from worker.model.families.settings import Settings


def _qwen2_settings(stated: Settings) -> ModelConfig:
    return settings.read_config(stated, "qwen2", qkv_bias=True, layer_windows=_windows(stated))


def _qwen3_settings(stated: Settings) -> ModelConfig:
    return settings.read_config(
        stated, "qwen3", qk_norm=True, layer_windows=_windows(stated), **settings.biases(stated)
    )


def _windows(stated: Settings) -> tuple[int | None, ...]:
    window = stated.get("sliding_window", 4096) if stated.get("use_sliding_window", False) else None
    num_layers, first = stated["num_hidden_layers"], stated.get("max_window_layers", 28)
    kinds = ["sliding_attention" if layer >= first else "full_attention" for layer in range(num_layers)]
    return settings.layer_windows(stated, window, kinds)


def _qwen2_metadata(stated: Metadata) -> ModelConfig:
    return metadata.read_config(stated, "qwen2")


def _qwen3_metadata(stated: Metadata) -> ModelConfig:
    return metadata.read_config(stated, "qwen3")


QWEN2 = Family(
    hugging_face=("Qwen2ForCausalLM",),
    gguf="qwen2",
    read_settings=_qwen2_settings,
    read_metadata=_qwen2_metadata,
)
QWEN3 = Family(
    hugging_face=("Qwen3ForCausalLM",),
    gguf="qwen3",
    read_settings=_qwen3_settings,
    read_metadata=_qwen3_metadata,
)
