"""The Llama family (Llama 2 and 3, SmolLM2, Mistral without a window): weights and one forward pass.

Holds no sequence state: rows come with their positions, and attention.py knows which sequence they belong to.
Q, K and V are one product, gate and up another. Only rows asked for go through the output projection.

    rows        tokens of the step          hidden      model width
    qkv_heads   heads + 2 * kv_heads        head_dim    width of a head
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from shared.errors import ConfigurationError
from worker.model.attention import AttentionPlan, PagedAttention
from worker.model.checkpoint import Checkpoint, ModelConfig
from worker.model.layers import interleave_pairs, make_linear, rms_norm, rotate, rotation_table

Linear = Callable[[torch.Tensor], torch.Tensor]


@dataclass(slots=True)
class _Layer:
    attention_norm: torch.Tensor  # [hidden]
    qkv: Linear  # [rows, hidden] -> [rows, qkv_heads * head_dim]
    output: Linear  # [rows, heads * head_dim] -> [rows, hidden]
    mlp_norm: torch.Tensor  # [hidden]
    gate_up: Linear  # [rows, hidden] -> [rows, 2 * intermediate]
    down: Linear  # [rows, intermediate] -> [rows, hidden]


class LlamaModel:
    """Immutable once built; `forward` writes only into the KV pool it is given."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        context_length: int,
        device: torch.device,
        dtype: torch.dtype,
        progress: Callable[[str], None],
    ) -> None:
        self.config = config = checkpoint.config
        read = _WeightReader(checkpoint, device, dtype)
        self._embedding = read("model.embed_tokens", config.vocab_size, config.hidden_size)
        self._layers: list[_Layer] = []
        for i in range(config.num_layers):
            self._layers.append(_read_layer(read, f"model.layers.{i}", config))
            if (i + 1) % 10 == 0 or i + 1 == config.num_layers:
                progress(f"loaded {i + 1} of {config.num_layers} layers")
        self._norm = read("model.norm", config.hidden_size)
        tied = config.tied_embeddings
        head = self._embedding if tied else read("lm_head", config.vocab_size, config.hidden_size)
        self._head = make_linear(head)
        self._rotation = rotation_table(config.rope_frequencies, context_length, dtype).to(device)

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, attention: PagedAttention, plan: AttentionPlan
    ) -> torch.Tensor:
        """`token_ids`, `positions` [rows] int64 -> [rows, hidden], before the last norm."""
        config = self.config
        rotated_heads = config.num_heads + config.num_kv_heads
        rotation = self._rotation.index_select(0, positions).unsqueeze(1)  # [rows, 1, head_dim / 2] complex
        hidden = F.embedding(token_ids, self._embedding)
        for i, layer in enumerate(self._layers):
            qkv = layer.qkv(rms_norm(hidden, layer.attention_norm, config.rms_norm_eps))
            qkv = qkv.view(hidden.shape[0], -1, config.head_dim)  # [rows, qkv_heads, head_dim]
            rotate(qkv[:, :rotated_heads], rotation)
            hidden = layer.output(attention.attend(i, qkv, plan)).add_(hidden)
            gate, up = layer.gate_up(rms_norm(hidden, layer.mlp_norm, config.rms_norm_eps)).chunk(2, -1)
            hidden = layer.down(F.silu(gate).mul_(up)).add_(hidden)
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, hidden] -> [rows, vocab]. Half precisions are widened to fp32 here."""
        logits = self._head(rms_norm(hidden, self._norm, self.config.rms_norm_eps))
        return logits if logits.dtype == torch.float64 else logits.float()


class _WeightReader:
    """Reads weights by module name onto a device, checking shapes."""

    def __init__(self, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> None:
        self._checkpoint = checkpoint
        self._device = device
        self._dtype = dtype

    def __call__(self, module: str, *shape: int) -> torch.Tensor:
        weight = self._checkpoint.weight(f"{module}.weight")
        if tuple(weight.shape) != shape:
            raise ConfigurationError(f"{module} has the shape {tuple(weight.shape)}, not {shape} as configured")
        return weight.to(device=self._device, dtype=self._dtype)


def _read_layer(read: _WeightReader, prefix: str, config: ModelConfig) -> _Layer:
    hidden, width = config.hidden_size, config.head_dim
    q_rows, kv_rows = config.num_heads * width, config.num_kv_heads * width
    q = interleave_pairs(read(f"{prefix}.self_attn.q_proj", q_rows, hidden), width)
    k = interleave_pairs(read(f"{prefix}.self_attn.k_proj", kv_rows, hidden), width)
    v = read(f"{prefix}.self_attn.v_proj", kv_rows, hidden)
    gate = read(f"{prefix}.mlp.gate_proj", config.intermediate_size, hidden)
    up = read(f"{prefix}.mlp.up_proj", config.intermediate_size, hidden)
    return _Layer(
        attention_norm=read(f"{prefix}.input_layernorm", hidden),
        qkv=make_linear(torch.cat((q, k, v))),
        output=make_linear(read(f"{prefix}.self_attn.o_proj", hidden, q_rows)),
        mlp_norm=read(f"{prefix}.post_attention_layernorm", hidden),
        gate_up=make_linear(torch.cat((gate, up))),
        down=make_linear(read(f"{prefix}.mlp.down_proj", hidden, config.intermediate_size)),
    )
