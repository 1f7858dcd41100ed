"""Tiny models of each family as the transformers package makes and saves them, with random weights: the outside
opinion that our reading of a family is held to."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

from tests.model.tiny_model import LLAMA3_SCALING, VOCAB, tokenizer

SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "rope_theta": 10_000.0}


@dataclass(frozen=True)
class Published:
    """`kind` is the prefix of the package's class names."""

    kind: str
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def has_offset_norms(self) -> bool:
        return self.kind.startswith("Gemma3")

    def build(self, seed: int = 0) -> Any:
        """The package's model in float64, attention eager."""
        config_name = "Gemma3TextConfig" if self.has_offset_norms else f"{self.kind}Config"
        config = getattr(transformers, config_name)(**(SIZES | self.settings), attn_implementation="eager")
        model = getattr(transformers, f"{self.kind}ForCausalLM")(config).eval()
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in model.named_parameters():
            parameter.data = self._random(name, parameter, generator)
        return model

    def _random(self, name: str, parameter: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Large enough that attention is sharp: a wrong key or position changes the answer."""
        values = torch.randn(parameter.shape, generator=generator)
        if "norm" in name:
            return values * 0.2 + (0 if self.has_offset_norms else 1)
        if name.endswith("bias"):
            return values * 0.5
        return values * 2 / parameter.shape[-1] ** 0.5


PUBLISHED = {
    "smollm2": Published("Llama", {"tie_word_embeddings": True}),
    "llama 3.1": Published("Llama", {"rope_parameters": LLAMA3_SCALING | {"rope_theta": 500_000.0}}),
    "llama, biases, linear rope": Published(
        "Llama",
        {
            "attention_bias": True,
            "mlp_bias": True,
            "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10_000.0},
        },
    ),
    "mistral": Published("Mistral", {"sliding_window": 21, "head_dim": 16}),
    "mistral, no window": Published("Mistral", {"sliding_window": None}),
    "qwen2": Published("Qwen2", {"tie_word_embeddings": True, "rms_norm_eps": 1e-6}),
    "qwen2, yarn, windows above": Published(
        "Qwen2",
        {"rope_parameters": YARN, "use_sliding_window": True, "sliding_window": 18, "max_window_layers": 1},
    ),
    "qwen3": Published("Qwen3", {"head_dim": 16}),
    "gemma3": Published(
        "Gemma3",
        {
            "num_hidden_layers": 5,
            "head_dim": 16,
            "query_pre_attn_scalar": 24,
            "sliding_window": 19,
            "sliding_window_pattern": 3,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
            },
        },
    ),
}


def save(model: Any, folder: Path, **options: Any) -> Path:
    """As the package saves it, with a tokenizer beside it."""
    model.save_pretrained(folder, **options)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer()))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "t2"}))
    return folder


def reopened(folder: Path) -> Any:
    """The saved model as the package reads it, computing in fp32."""
    options = {"dtype": torch.float32, "attn_implementation": "eager"}
    return transformers.AutoModelForCausalLM.from_pretrained(folder, **options).eval()


@torch.inference_mode()
def logits(model: Any, token_ids: list[int]) -> torch.Tensor:
    """[tokens, vocab]."""
    return model(torch.tensor([token_ids])).logits[0]
