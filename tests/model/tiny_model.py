"""Tiny random models as Hugging Face folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

VOCAB = 97
LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def config(**changes: Any) -> dict[str, Any]:
    settings = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
        "eos_token_id": 2,
    }
    return settings | changes


def write_model(folder: Path, *, seed: int = 0, shards: int = 1, **changes: Any) -> Path:
    """Weights large enough that attention is sharp: a wrong key or position changes the answer."""
    settings = config(**changes)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer()))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "t2"}}))
    weights = _weights(settings, torch.Generator().manual_seed(seed))
    if shards == 1:
        save_file(weights, folder / "model.safetensors")
        return folder
    index: dict[str, str] = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = {name: weights[name] for name in sorted(weights)[shard::shards]}
        save_file(part, folder / file)
        index |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return folder


def tokenizer() -> dict[str, Any]:
    return {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": {f"t{i}": i for i in range(VOCAB)}, "unk_token": "t0"},
    }


def _weights(settings: dict[str, Any], generator: torch.Generator) -> dict[str, torch.Tensor]:
    hidden, mlp = settings["hidden_size"], settings["intermediate_size"]
    head_dim = settings.get("head_dim") or hidden // settings["num_attention_heads"]
    query, key = settings["num_attention_heads"] * head_dim, settings["num_key_value_heads"] * head_dim

    def random(rows: int, columns: int, gain: float = 1.0) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator) * gain / columns**0.5

    def norm() -> torch.Tensor:
        return 1 + 0.2 * torch.randn(hidden, generator=generator)

    weights = {"model.embed_tokens.weight": random(settings["vocab_size"], hidden, 4.0), "model.norm.weight": norm()}
    if not settings["tie_word_embeddings"]:
        weights["lm_head.weight"] = random(settings["vocab_size"], hidden)
    for layer in range(settings["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        weights |= {
            f"{prefix}.input_layernorm.weight": norm(),
            f"{prefix}.self_attn.q_proj.weight": random(query, hidden, 2.0),
            f"{prefix}.self_attn.k_proj.weight": random(key, hidden, 2.0),
            f"{prefix}.self_attn.v_proj.weight": random(key, hidden, 3.0),
            f"{prefix}.self_attn.o_proj.weight": random(hidden, query, 3.0),
            f"{prefix}.post_attention_layernorm.weight": norm(),
            f"{prefix}.mlp.gate_proj.weight": random(mlp, hidden, 2.0),
            f"{prefix}.mlp.up_proj.weight": random(mlp, hidden, 2.0),
            f"{prefix}.mlp.down_proj.weight": random(hidden, mlp, 2.0),
        }
    return weights
