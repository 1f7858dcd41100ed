"""Models of random weights, made on the device: nothing is downloaded, and nothing is read but shapes.

A weight is a function of its name and of the seed, so that a runner and the dense forward it is held to, in whatever
precision each, compute with the same model.
"""

from __future__ import annotations

import zlib
from typing import Any

import torch

from shared.schemas import TokenizerBlob
from worker.model.families.catalogue import family_of_settings
from worker.model.families.model_config import ModelConfig
from worker.model.families.settings import Settings

_TINY: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {**_TINY, "architectures": ["LlamaForCausalLM"], "num_attention_heads": 6, "tie_word_embeddings": False},
    "mistral": {**_TINY, "architectures": ["MistralForCausalLM"], "sliding_window": 40},
    "qwen2": {**_TINY, "architectures": ["Qwen2ForCausalLM"], "num_attention_heads": 7, "num_key_value_heads": 1},
    "qwen3": {**_TINY, "architectures": ["Qwen3ForCausalLM"], "head_dim": 64},
    "gemma3": {
        **_TINY,
        "architectures": ["Gemma3ForCausalLM"],
        "num_hidden_layers": 3,
        "sliding_window_pattern": 3,
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": 24,
        "query_pre_attn_scalar": 32,
    },
}
# The shape of Llama 3.2 1B: 1.24 billion weights, 2.5 GB in half precision.
LLAMA_1B: dict[str, Any] = {
    **_TINY,
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128_256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "rope_theta": 500_000.0,
    "max_position_embeddings": 8192,
}


def config_of(settings: dict[str, Any]) -> ModelConfig:
    """As config.json says it."""
    stated = Settings(settings)
    return family_of_settings(stated).read_settings(stated)


class RandomCheckpoint:
    """See `Checkpoint`. With a gain of 2 attention is sharp, so that a wrong key or position changes the answer; many
    layers want 1, or rounding errors grow from layer to layer."""

    name = "random"
    digest = ""
    stop_token_ids: tuple[int, ...] = ()
    tokenizer_blob = TokenizerBlob(tokenizer_json="{}")

    def __init__(self, config: ModelConfig, *, device: torch.device, seed: int = 0, gain: float = 2.0) -> None:
        self.config = config
        self._gain = gain
        self._device = device
        self._seed = seed

    def weight(self, name: str) -> torch.Tensor:
        """fp32."""
        generator = torch.Generator(self._device).manual_seed(zlib.crc32(name.encode()) ^ self._seed)
        shape = self._shape(name)
        drawn = torch.randn(shape, generator=generator, device=self._device)
        if name.endswith("norm.weight"):
            return 1 + 0.2 * drawn
        if len(shape) == 1:  # a bias
            return 0.5 * drawn
        gain = 4.0 if "embed_tokens" in name else 1.0 if "lm_head" in name else self._gain
        return drawn * (gain / shape[1] ** 0.5)

    def close(self) -> None: ...

    def num_bytes(self, dtype: torch.dtype) -> int:
        """Of all weights that a token's forward reads."""
        config, layers = self.config, self.config.num_layers
        parts = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
        shapes = [self._shape(f"{part}.weight") for part in parts]
        per_layer = sum(rows * columns for rows, columns in shapes)
        return (layers * per_layer + config.vocab_size * config.hidden_size) * dtype.itemsize

    def _shape(self, name: str) -> tuple[int, ...]:
        config = self.config
        part, kind = name.split(".")[-2:]
        hidden, mlp, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
        queries, keys = config.num_heads * head_dim, config.num_kv_heads * head_dim
        matrices = {
            "embed_tokens": (config.vocab_size, hidden),
            "lm_head": (config.vocab_size, hidden),
            "q_proj": (queries, hidden),
            "k_proj": (keys, hidden),
            "v_proj": (keys, hidden),
            "o_proj": (hidden, queries),
            "gate_proj": (mlp, hidden),
            "up_proj": (mlp, hidden),
            "down_proj": (hidden, mlp),
        }
        if part in matrices:
            return matrices[part] if kind == "weight" else matrices[part][:1]
        return (head_dim,) if part in ("q_norm", "k_norm") else (hidden,)
