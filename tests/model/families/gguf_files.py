"""The package's models as GGUF files, written by the `gguf` package under names and in orders stated here anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType

PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
GEMMA_PARTS = PARTS | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
TOPS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
# Of a block whose bytes are random: where its fp16 scales are, and the deviation of its values where they are 1.
K_BLOCKS = {
    GGMLQuantizationType.Q4_K: ((0, 2), 200),
    GGMLQuantizationType.Q5_K: ((0, 2), 400),
    GGMLQuantizationType.Q6_K: ((208,), 1400),
}
SCALINGS = {
    "linear": gguf.RopeScalingType.LINEAR,
    "yarn": gguf.RopeScalingType.YARN,
}


class PublishedFile:
    """`model` is changed: it gets the values that its tensors have after quantization."""

    def __init__(self, model: Any, architecture: str, quantization: GGMLQuantizationType) -> None:
        self.model = model
        self.config = model.config
        self.architecture = architecture
        self.quantization = quantization
        self.random = np.random.default_rng(0)

    def write(self, path: Path) -> Path:
        writer = gguf.GGUFWriter(path, self.architecture)
        self._add_sizes(writer)
        self._add_rope(writer)
        add_vocabulary(writer, self.config.vocab_size)
        for name, parameter in self.model.named_parameters():
            self._add_tensor(writer, name, parameter)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def _add_sizes(self, writer: gguf.GGUFWriter) -> None:
        config = self.config
        writer.add_block_count(config.num_hidden_layers)
        writer.add_context_length(config.max_position_embeddings)
        writer.add_embedding_length(config.hidden_size)
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_head_count(config.num_attention_heads)
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        if self.architecture in ("qwen3", "gemma3"):
            writer.add_key_length(config.head_dim)
            writer.add_value_length(config.head_dim)
        if self.architecture == "gemma3":
            writer.add_sliding_window(config.sliding_window)
            writer.add_float32("gemma3.attention.scale", config.query_pre_attn_scalar**-0.5)

    def _add_rope(self, writer: gguf.GGUFWriter) -> None:
        rope = self.config.rope_parameters
        rope = rope.get("full_attention", rope)
        writer.add_rope_freq_base(rope["rope_theta"])
        if rope["rope_type"] == "llama3":
            plain = rope["rope_theta"] ** (-np.arange(0, self.config.head_dim, 2) / self.config.head_dim)
            scaled = self.model.model.rotary_emb.inv_freq.numpy()
            writer.add_tensor("rope_freqs.weight", (plain / scaled).astype(np.float32))
        elif rope["rope_type"] in SCALINGS:
            writer.add_rope_scaling_type(SCALINGS[rope["rope_type"]])
            writer.add_rope_scaling_factor(rope["factor"])
            writer.add_rope_scaling_orig_ctx_len(rope.get("original_max_position_embeddings", 0))

    def _add_tensor(self, writer: gguf.GGUFWriter, name: str, parameter: torch.nn.Parameter) -> None:
        module, kind = name.rsplit(".", 1)
        values = parameter.detach().float().numpy()
        if "norm" in module or kind == "bias":
            values = values + 1 if "norm" in module and self.architecture == "gemma3" else values
            writer.add_tensor(self._stored(module, kind), self._ordered(module, values))
            return
        packed = packed_blocks(values, self.quantization, self.random)
        parameter.data = torch.from_numpy(gguf.dequantize(packed, self.quantization).astype(np.float32))
        writer.add_tensor(self._stored(module, kind), self._ordered(module, packed), raw_dtype=self.quantization)

    def _stored(self, module: str, kind: str) -> str:
        if module in TOPS:
            return f"{TOPS[module]}.{kind}"
        _, _, layer, part = module.split(".", 3)
        return f"blk.{layer}.{(GEMMA_PARTS if self.architecture == 'gemma3' else PARTS)[part]}.{kind}"

    def _ordered(self, module: str, rows: np.ndarray) -> np.ndarray:
        """Of the llama architecture the rows of a rotated pair are neighbours."""
        heads = {"q_proj": self.config.num_attention_heads, "k_proj": self.config.num_key_value_heads}
        part = module.rsplit(".", 1)[-1]
        if self.architecture != "llama" or part not in heads:
            return rows
        half = len(rows) // heads[part] // 2
        order = [
            head + i + side * half for head in range(0, len(rows), 2 * half) for i in range(half) for side in (0, 1)
        ]
        return np.ascontiguousarray(rows[order])


def add_vocabulary(writer: gguf.GGUFWriter, size: int) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(["a", "b", "ab", *(f"t{i}" for i in range(3, size))])
    writer.add_token_types([1] * size)
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(2)


def packed_blocks(values: np.ndarray, kind: GGMLQuantizationType, random: np.random.Generator) -> np.ndarray:
    """`values` in the blocks of `kind`. Where the package cannot quantize, random blocks of about their size."""
    if kind not in K_BLOCKS:
        return gguf.quantize(values, kind)
    shape = gguf.quant_shape_to_byte_shape(values.shape, kind)
    blocks = random.integers(0, 256, shape, np.uint8).reshape(-1, gguf.GGML_QUANT_SIZES[kind][1])
    scales, unit = K_BLOCKS[kind]
    for start in scales:
        blocks[:, start : start + 2] = np.array([values.std() / unit], np.float16).view(np.uint8)
    return blocks.reshape(shape)
