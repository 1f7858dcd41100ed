"""The decoder-only transformer that every family of models here is: weights and one forward pass.

What a model has (biases, norms, windows, rotations) its ModelConfig says. Holds no sequence state: rows come with
their positions, and attention.py knows which sequence they belong to. Q, K and V are one product, gate and up
another. Only rows asked for go through the output projection.

    rows        tokens of the step          hidden      model width
    qkv_heads   heads + 2 * kv_heads        head_dim    width of a head
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
import torch.nn.functional as F

from shared.errors import ConfigurationError
from worker.model.checkpoints.checkpoint import Checkpoint
from worker.model.families.model_config import ModelConfig
from worker.model.layers import Linear, Operations, interleave_pairs, rotation_table
from worker.model.lora.low_rank import LowRankAdapter
from worker.model.lora.torch_rows import AdaptedRows, Place, TorchAdapter
from worker.model.runner import StepBatch

Plan = TypeVar("Plan")


class Attention(Protocol[Plan]):
    """Owns the KV pool of every layer. A plan is of one step and serves all of its layers."""

    def plan(self, batch: StepBatch) -> Plan: ...

    def attend(self, layer: int, qkv: torch.Tensor, plan: Plan) -> torch.Tensor:
        """Store the step's keys and values, then attend.

        `qkv` [rows, heads + 2 * kv_heads, head_dim], rotated. Returns [rows, heads * head_dim].
        """
        ...


@dataclass(slots=True)
class _Layer:
    attention_norm: torch.Tensor  # [hidden]
    qkv: Linear  # [rows, hidden] -> [rows, qkv_heads * head_dim]
    qk_norm: torch.Tensor | None  # [heads + kv_heads, head_dim]
    output: Linear  # [rows, heads * head_dim] -> [rows, hidden]
    post_attention_norm: torch.Tensor | None  # [hidden]
    mlp_norm: torch.Tensor  # [hidden]
    gate_up: Linear  # [rows, hidden] -> [rows, 2 * intermediate]
    down: Linear  # [rows, intermediate] -> [rows, hidden]
    post_mlp_norm: torch.Tensor | None  # [hidden]


_PYTORCH = Operations()


class DecoderModel:
    """Immutable once built; `forward` writes only into the KV pool it is given."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        context_length: int,
        device: torch.device,
        dtype: torch.dtype,
        progress: Callable[[str], None],
        operations: Operations = _PYTORCH,
    ) -> None:
        self.config = config = checkpoint.config
        self._operations = operations
        self.device, self.dtype = device, dtype
        read = _WeightReader(checkpoint, device, dtype, operations)
        self._embedding = read("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
        self._layers: list[_Layer] = []
        for i in range(config.num_layers):
            self._layers.append(_read_layer(read, f"model.layers.{i}", config))
            if (i + 1) % 10 == 0 or i + 1 == config.num_layers:
                progress(f"loaded {i + 1} of {config.num_layers} layers")
        self._norm = read("model.norm.weight", config.hidden_size)
        tied = config.tied_embeddings
        head = self._embedding if tied else read("lm_head.weight", config.vocab_size, config.hidden_size)
        self._head = operations.make_linear(head, None)
        self._rotations = [rotation_table(rope, context_length, dtype).to(device) for rope in config.ropes]

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        attention: Attention[Plan],
        plan: Plan,
        adapted: Sequence[AdaptedRows] = (),
    ) -> torch.Tensor:
        """`token_ids`, `positions` [rows] int64 or int32 -> [rows, hidden], before the last norm."""

        def multiply(place: Place, linear: Linear, x: torch.Tensor) -> torch.Tensor:
            product = linear(x)
            for rows in adapted:
                rows.add(i, place, product, x)
            return product

        config, eps, apply = self.config, self.config.rms_norm_eps, self._operations
        rotations = [table.index_select(0, positions).unsqueeze(1) for table in self._rotations]  # [rows, 1, pairs]
        hidden = F.embedding(token_ids, self._embedding)
        if config.embedding_scale != 1:
            hidden = hidden * config.embedding_scale
        for i, layer in enumerate(self._layers):
            qkv = multiply("qkv", layer.qkv, apply.rms_norm(hidden, layer.attention_norm, eps))
            qkv = qkv.view(hidden.shape[0], -1, config.head_dim)  # [rows, qkv_heads, head_dim]
            rotated = qkv[:, : config.num_heads + config.num_kv_heads]
            if layer.qk_norm is not None:
                torch.mul(apply.rms_norm(rotated, None, eps), layer.qk_norm, out=rotated)
            apply.rotate(rotated, rotations[config.layer_ropes[i]])
            output = multiply("output", layer.output, attention.attend(i, qkv, plan))
            hidden = self._normed(output, layer.post_attention_norm).add_(hidden)
            gate_up = multiply("gate_up", layer.gate_up, apply.rms_norm(hidden, layer.mlp_norm, eps))
            inner = apply.gated(gate_up, config.activation)
            hidden = self._normed(multiply("down", layer.down, inner), layer.post_mlp_norm).add_(hidden)
        return hidden

    def adapter(self, adapter: LowRankAdapter) -> TorchAdapter:
        """Where the model's own weights are, in their precision."""
        return TorchAdapter(adapter, self.config, self._operations.make_linear, self.device, self.dtype)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, hidden] -> [rows, vocab]. Half precisions are widened to fp32 here."""
        logits = self._head(self._normed(hidden, self._norm))
        return logits if logits.dtype == torch.float64 else logits.float()

    def _normed(self, x: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        return x if weight is None else self._operations.rms_norm(x, weight, self.config.rms_norm_eps)


class _WeightReader:
    """Reads weights by name onto a device, checking shapes."""

    def __init__(
        self, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype, operations: Operations
    ) -> None:
        self.make_linear = operations.make_linear
        self._checkpoint = checkpoint
        self._device = device
        self._dtype = dtype

    def __call__(self, name: str, *shape: int) -> torch.Tensor:
        weight = self._checkpoint.weight(name)
        if tuple(weight.shape) != shape:
            raise ConfigurationError(f"{name} has the shape {tuple(weight.shape)}, not {shape} as configured")
        return weight.to(device=self._device, dtype=self._dtype)


def _read_layer(read: _WeightReader, prefix: str, config: ModelConfig) -> _Layer:
    hidden, q_rows, mlp = config.hidden_size, config.num_heads * config.head_dim, config.intermediate_size
    has_post, mlp_bias = config.post_norms, config.mlp_bias
    mlp_norm = "pre_feedforward_layernorm" if has_post else "post_attention_layernorm"
    return _Layer(
        attention_norm=read(f"{prefix}.input_layernorm.weight", hidden),
        qkv=_read_qkv(read, f"{prefix}.self_attn", config),
        qk_norm=_read_qk_norm(read, f"{prefix}.self_attn", config),
        output=_read_linear(read, [f"{prefix}.self_attn.o_proj"], (hidden, q_rows), has_bias=config.output_bias),
        post_attention_norm=read(f"{prefix}.post_attention_layernorm.weight", hidden) if has_post else None,
        mlp_norm=read(f"{prefix}.{mlp_norm}.weight", hidden),
        gate_up=_read_linear(
            read, [f"{prefix}.mlp.gate_proj", f"{prefix}.mlp.up_proj"], (mlp, hidden), has_bias=mlp_bias
        ),
        down=_read_linear(read, [f"{prefix}.mlp.down_proj"], (hidden, mlp), has_bias=mlp_bias),
        post_mlp_norm=read(f"{prefix}.post_feedforward_layernorm.weight", hidden) if has_post else None,
    )


def _read_linear(read: _WeightReader, modules: list[str], shape: tuple[int, int], *, has_bias: bool) -> Linear:
    """The modules, each [out, in], as one product."""
    weights = [read(f"{module}.weight", *shape) for module in modules]
    bias = torch.cat([read(f"{module}.bias", shape[0]) for module in modules]) if has_bias else None
    return read.make_linear(weights[0] if len(weights) == 1 else torch.cat(weights), bias)


def _read_qkv(read: _WeightReader, prefix: str, config: ModelConfig) -> Linear:
    def joined(kind: str, *columns: int) -> torch.Tensor:
        parts: list[torch.Tensor] = []
        for part, heads in (("q", config.num_heads), ("k", config.num_kv_heads), ("v", config.num_kv_heads)):
            rows = read(f"{prefix}.{part}_proj.{kind}", heads * config.head_dim, *columns)
            parts.append(rows if part == "v" else interleave_pairs(rows, config.head_dim))
        return torch.cat(parts)

    return read.make_linear(joined("weight", config.hidden_size), joined("bias") if config.qkv_bias else None)


def _read_qk_norm(read: _WeightReader, prefix: str, config: ModelConfig) -> torch.Tensor | None:
    if not config.qk_norm:
        return None
    q, k = (interleave_pairs(read(f"{prefix}.{part}_norm.weight", config.head_dim), config.head_dim) for part in "qk")
    return torch.cat((q.expand(config.num_heads, -1), k.expand(config.num_kv_heads, -1)))
