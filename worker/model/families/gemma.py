"""Gemma 3, text only: norms before and after each half of a layer, norms on query and key heads, scaled embeddings,
tanh GELU, and five layers with a window and a rotation of their own to each layer that sees all.

Hugging Face stores norm weights less one. GGUF leaves unsaid what llama.cpp knows by heart: the local rotation's
base, the period of six, and that the model of 62 layers scales its scores otherwise.
"""

from __future__ import annotations

from typing import Any, cast

from worker.model.families import metadata, settings
from worker.model.families.family import Family
from worker.model.families.metadata import Metadata, stated_rope
from worker.model.families.model_config import ModelConfig, Rope
from worker.model.families.rope import make_rope
from worker.model.families.settings import Settings

_GLOBAL_THETA, _LOCAL_THETA = 1_000_000.0, 10_000.0
_PERIOD = 6
_NUM_LAYERS_27B = 62


def _read_settings(stated: Settings) -> ModelConfig:
    num_layers, head_dim = stated["num_hidden_layers"], stated.get("head_dim", 256)
    period = stated.get("sliding_window_pattern", _PERIOD)
    kinds = ["full_attention" if is_global else "sliding_attention" for is_global in _globals(num_layers, period)]
    windows = settings.layer_windows(stated, stated.get("sliding_window", 4096), kinds)
    return settings.read_config(
        stated,
        "gemma3",
        **settings.biases(stated),
        **_shape(windows, _stated_ropes(stated, head_dim), stated["hidden_size"]),
        head_dim=head_dim,
        attention_scale=stated.get("query_pre_attn_scalar", 256) ** -0.5,
        tied_embeddings=bool(stated.get("tie_word_embeddings", True)),
    )


def _stated_ropes(stated: Settings, head_dim: int) -> tuple[Rope, Rope]:
    """In one mapping a kind of layer, or, in older files, as two bases and a scaling of the global one."""
    rope = stated.rope()
    whole = rope.get("full_attention") or {"rope_theta": stated.get("rope_theta", _GLOBAL_THETA), **rope}
    local = rope.get("sliding_attention") or {"rope_theta": stated.get("rope_local_base_freq", _LOCAL_THETA)}
    return (
        make_rope(head_dim, float(whole.get("rope_theta", _GLOBAL_THETA)), whole),
        make_rope(head_dim, float(local.get("rope_theta", _LOCAL_THETA)), local),
    )


def _read_metadata(stated: Metadata) -> ModelConfig:
    num_layers, hidden_size = stated.size("block_count"), stated.size("embedding_length")
    num_heads = stated.size("attention.head_count")
    head_dim = stated.size("attention.key_length", hidden_size // num_heads)
    windows = _windows(stated, num_layers)
    local_theta = float(stated.get_own("rope.freq_base_swa", _LOCAL_THETA))
    ropes = stated_rope(stated, head_dim, _GLOBAL_THETA), make_rope(head_dim, local_theta, {})
    scaled_width = hidden_size // num_heads if num_layers == _NUM_LAYERS_27B else head_dim
    return metadata.read_config(
        stated,
        "gemma3",
        **_shape(windows, ropes, hidden_size),
        attention_scale=float(stated.get_own("attention.scale", scaled_width**-0.5)),
    )


def _windows(stated: Metadata, num_layers: int) -> tuple[int | None, ...]:
    """The pattern is a period, or says of each layer whether it has the window."""
    window, pattern = stated.size("attention.sliding_window"), stated.get_own("attention.sliding_window_pattern")
    if isinstance(pattern, list):
        return tuple(window if has_window else None for has_window in cast("list[bool]", pattern)[:num_layers])
    return tuple(None if is_global else window for is_global in _globals(num_layers, pattern or _PERIOD))


def _globals(num_layers: int, period: int) -> list[bool]:
    """Which layers see everything: the last of each period."""
    return [(layer + 1) % period == 0 for layer in range(num_layers)]


def _shape(windows: tuple[int | None, ...], ropes: tuple[Rope, Rope], hidden_size: int) -> dict[str, Any]:
    return {
        "layer_windows": windows,
        "ropes": ropes,
        "layer_ropes": tuple(0 if window is None else 1 for window in windows),
        "activation": "gelu_tanh",
        "embedding_scale": hidden_size**0.5,
        "qk_norm": True,
        "post_norms": True,
    }


GEMMA3 = Family(
    hugging_face=("Gemma3ForCausalLM",),
    gguf="gemma3",
    read_settings=_read_settings,
    read_metadata=_read_metadata,
    norm_offset=1.0,
)
