"""What a runner must know of a model besides its weights: sizes, flags, rotation, windows. Plain data, no torch.

Readers of model files make a ModelConfig, every runner computes by it; a runner that lacks a feature finds out
here. What a family does to its weights once (Gemma's norms stored less one) is no flag: `Checkpoint.weight`
hands out weights ready to use.

One decoder layer, with what `post_norms` adds in brackets:

    x = embedding[token] * embedding_scale
    x = x + [post_attention_norm](output(attention(rotate(qk_norm(qkv(norm(x)))))))
    x = x + [post_mlp_norm](down(activation(gate(y)) * up(y)))      y = norm(x)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions. Pair i of a head (its elements i and i + head_dim / 2) turns by position * frequencies[i],
    and both of its elements are multiplied by `magnitude` (YaRN; 1 elsewhere)."""

    frequencies: tuple[float, ...]  # [head_dim / 2], radians a position
    magnitude: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """`layer_windows`: a token of that layer sees at most so many tokens, itself included; None is all.
    `layer_ropes` says which of `ropes` a layer rotates by. Attention scores are multiplied by `attention_scale`."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    context_length: int
    tied_embeddings: bool
    ropes: tuple[Rope, ...]
    layer_ropes: tuple[int, ...]  # [num_layers]
    layer_windows: tuple[int | None, ...]  # [num_layers]
    attention_scale: float
    activation: Activation = "silu"
    embedding_scale: float = 1.0
    qkv_bias: bool = False
    output_bias: bool = False  # of attention's output projection
    mlp_bias: bool = False
    qk_norm: bool = False  # RMS norm of each query and key head, before rotation
    post_norms: bool = False
