"""A dense forward of a decoder, from its ModelConfig: one sequence, all at once, no pages, no cache, no batch.

Shares nothing with the runners but the description of the model, so that an error there is not here.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from worker.model.families.model_config import ModelConfig, Rope

Weight = Callable[[str], torch.Tensor]


def dense_logits(config: ModelConfig, weight: Weight, token_ids: list[int]) -> torch.Tensor:
    """[tokens, vocab], in the precision and on the device of what `weight` gives for a name."""
    embedding = weight("model.embed_tokens.weight")
    x = embedding[token_ids] * config.embedding_scale
    for layer in range(config.num_layers):
        named = _Named(weight, f"model.layers.{layer}.")
        attended = _attention(config, layer, named, _norm(config, x, named("input_layernorm.weight")))
        after = "post_attention_layernorm.weight"
        x = x + (_norm(config, attended, named(after)) if config.post_norms else attended)
        before = "pre_feedforward_layernorm.weight" if config.post_norms else after
        made = _mlp(config, named, _norm(config, x, named(before)))
        x = x + (_norm(config, made, named("post_feedforward_layernorm.weight")) if config.post_norms else made)
    head = embedding if config.tied_embeddings else weight("lm_head.weight")
    return _norm(config, x, weight("model.norm.weight")) @ head.T


class _Named:
    def __init__(self, weight: Weight, prefix: str) -> None:
        self._weight, self._prefix = weight, prefix

    def __call__(self, name: str) -> torch.Tensor:
        return self._weight(self._prefix + name)

    def linear(self, module: str, x: torch.Tensor, *, has_bias: bool) -> torch.Tensor:
        product = x @ self(f"{module}.weight").T
        return product + self(f"{module}.bias") if has_bias else product


def _norm(config: ModelConfig, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x / torch.sqrt((x**2).mean(-1, keepdim=True) + config.rms_norm_eps) * weight


def _mlp(config: ModelConfig, named: _Named, x: torch.Tensor) -> torch.Tensor:
    gate = named.linear("mlp.gate_proj", x, has_bias=config.mlp_bias)
    if config.activation == "silu":
        gate = gate * torch.sigmoid(gate)
    else:
        gate = 0.5 * gate * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (gate + 0.044715 * gate**3)))
    up = named.linear("mlp.up_proj", x, has_bias=config.mlp_bias)
    return named.linear("mlp.down_proj", gate * up, has_bias=config.mlp_bias)


def _attention(config: ModelConfig, layer: int, named: _Named, x: torch.Tensor) -> torch.Tensor:
    rope, window = config.ropes[config.layer_ropes[layer]], config.layer_windows[layer]

    def heads(part: str, *, is_turned: bool) -> torch.Tensor:
        """[heads, tokens, head_dim]"""
        projected = named.linear(f"self_attn.{part}_proj", x, has_bias=config.qkv_bias)
        split = projected.view(len(x), -1, config.head_dim)
        if is_turned and config.qk_norm:
            split = _norm(config, split, named(f"self_attn.{part}_norm.weight"))
        return _rotated(split.transpose(0, 1), rope) if is_turned else split.transpose(0, 1)

    q, k, v = heads("q", is_turned=True), heads("k", is_turned=True), heads("v", is_turned=False)
    k, v = (part.repeat_interleave(config.num_heads // config.num_kv_heads, 0) for part in (k, v))
    position = torch.arange(len(x), device=x.device)
    is_hidden = position[None] > position[:, None]
    if window is not None:
        is_hidden |= position[None] <= position[:, None] - window
    scores = (q @ k.transpose(1, 2) * config.attention_scale).masked_fill(is_hidden, -torch.inf)
    joined = (scores.softmax(-1) @ v).transpose(0, 1).flatten(1)
    return named.linear("self_attn.o_proj", joined, has_bias=config.output_bias)


def _rotated(x: torch.Tensor, rope: Rope) -> torch.Tensor:
    frequencies = torch.tensor(rope.frequencies, dtype=torch.float64, device=x.device)
    angles = torch.outer(torch.arange(x.shape[1], dtype=torch.float64, device=x.device), frequencies)
    cosine, sine = ((f(angles) * rope.magnitude).to(x.dtype).repeat(1, 2) for f in (torch.cos, torch.sin))
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat((-second, first), -1) * sine
