"""A dense forward of the Llama family, written from the papers: no pages, no batches, no cache.

Reads a Hugging Face folder by itself and shares no code with worker/model, so that an error there is not here.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
from safetensors.torch import load_file


class Reference:
    def __init__(self, folder: Path, dtype: torch.dtype = torch.float32) -> None:
        self.config = json.loads((folder / "config.json").read_text())
        self.weights: dict[str, torch.Tensor] = {}
        for file in sorted(folder.glob("*.safetensors")):
            self.weights |= {name: weight.to(dtype) for name, weight in load_file(file).items()}
        self.dtype = dtype
        heads = self.config["num_attention_heads"]
        self.head_dim = self.config.get("head_dim") or self.config["hidden_size"] // heads
        self.inverse_frequencies = self._inverse_frequencies()

    @torch.inference_mode()
    def logits(self, token_ids: list[int]) -> torch.Tensor:
        """[tokens, vocab]: row i scores what follows token i."""
        x = self.weights["model.embed_tokens.weight"][token_ids]
        angles = torch.arange(len(token_ids), dtype=self.dtype)[:, None] * self.inverse_frequencies[None]
        angles = torch.cat((angles, angles), -1)  # [tokens, head_dim]
        for layer in range(self.config["num_hidden_layers"]):
            prefix = f"model.layers.{layer}."
            x = x + self._attention(prefix, self._norm(x, prefix + "input_layernorm"), angles.cos(), angles.sin())
            x = x + self._mlp(prefix, self._norm(x, prefix + "post_attention_layernorm"))
        head = "lm_head.weight" if "lm_head.weight" in self.weights else "model.embed_tokens.weight"
        return self._norm(x, "model.norm") @ self.weights[head].T

    def greedy(self, prompt: list[int], num_tokens: int) -> list[int]:
        token_ids = list(prompt)
        for _ in range(num_tokens):
            token_ids.append(int(self.logits(token_ids)[-1].argmax()))
        return token_ids[len(prompt) :]

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return (
            x / torch.sqrt((x**2).mean(-1, keepdim=True) + self.config["rms_norm_eps"]) * self.weights[f"{name}.weight"]
        )

    def _mlp(self, prefix: str, x: torch.Tensor) -> torch.Tensor:
        gate, up, down = (self.weights[f"{prefix}mlp.{part}_proj.weight"] for part in ("gate", "up", "down"))
        gated = x @ gate.T
        return (gated * torch.sigmoid(gated) * (x @ up.T)) @ down.T

    def _attention(self, prefix: str, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        q, k, v = (self._heads(x, f"{prefix}self_attn.{part}_proj.weight") for part in "qkv")
        q, k = self._rotate(q, cos, sin), self._rotate(k, cos, sin)
        share = q.shape[0] // k.shape[0]
        k, v = k.repeat_interleave(share, 0), v.repeat_interleave(share, 0)
        future = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
        scores = (q @ k.transpose(1, 2) / math.sqrt(self.head_dim)).masked_fill(future, -torch.inf)
        output = (torch.softmax(scores, -1) @ v).transpose(0, 1).reshape(len(x), -1)
        return output @ self.weights[f"{prefix}self_attn.o_proj.weight"].T

    def _heads(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return (x @ self.weights[name].T).view(len(x), -1, self.head_dim).transpose(0, 1)  # [heads, tokens, head_dim]

    def _rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat((-second, first), -1) * sin

    def _inverse_frequencies(self) -> torch.Tensor:
        scaling = self.config.get("rope_scaling") or {}
        plain = 1 / self.config["rope_theta"] ** (torch.arange(0, self.head_dim, 2, dtype=self.dtype) / self.head_dim)
        if scaling.get("rope_type") != "llama3":
            return plain / (scaling["factor"] if scaling else 1)
        wavelengths = 2 * math.pi / plain
        context = scaling["original_max_position_embeddings"]
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        smooth = (context / wavelengths - low) / (high - low)
        between = (1 - smooth) * plain / scaling["factor"] + smooth * plain
        result = torch.where(wavelengths > context / low, plain / scaling["factor"], between)
        return torch.where(wavelengths < context / high, plain, result)
