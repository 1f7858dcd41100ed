"""What a GGUF file says of its model, read into a ModelConfig by the rules all families share.

Biases, norms and tied embeddings are told by which tensors there are, as llama.cpp tells them. Keys under the
architecture's name are given without it: `own("block_count")` reads `qwen2.block_count`.
Source: the GGUF specification.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any, cast

from shared.errors import ConfigurationError
from worker.model.families.model_config import ModelConfig, Rope
from worker.model.families.rope import make_rope


class Metadata:
    """`fields` are the file's key-value pairs. `rope_divisors`, where there are any, slow each rotated pair: how
    GGUF states Llama 3's scaling."""

    def __init__(
        self, fields: Mapping[str, Any], tensor_names: Set[str], rope_divisors: Sequence[float] | None = None
    ) -> None:
        self._fields = fields
        self.tensor_names = tensor_names
        self.rope_divisors = rope_divisors
        self.architecture: str = fields.get("general.architecture", "(none)")

    def __getitem__(self, key: str) -> Any:
        if key not in self._fields:
            raise ConfigurationError(f"the GGUF file lacks the field {key!r}")
        return self._fields[key]

    def get(self, key: str, default: Any = None) -> Any:
        return self._fields.get(key, default)

    def own(self, key: str) -> Any:
        return self[f"{self.architecture}.{key}"]

    def get_own(self, key: str, default: Any = None) -> Any:
        return self.get(f"{self.architecture}.{key}", default)

    def size(self, key: str, default: int | None = None) -> int:
        """A size that may be stated a layer; all must be the same."""
        stated = self.own(key) if default is None else self.get_own(key, default)
        sizes = cast("list[int]", stated if isinstance(stated, list) else [stated])
        if len(set(sizes)) != 1:
            raise self.refuse(f"{key} that differs from layer to layer")
        return int(sizes[0])

    def refuse(self, what: str) -> ConfigurationError:
        return ConfigurationError(f"{self.architecture} with {what} is not supported")


def read_config(metadata: Metadata, family: str, **traits: Any) -> ModelConfig:
    """`traits` are the fields of ModelConfig that the family states itself."""
    _refuse_what_is_not_computed(metadata)
    num_heads, hidden_size = metadata.size("attention.head_count"), metadata.size("embedding_length")
    num_layers = metadata.size("block_count")
    head_dim = metadata.size("attention.key_length", hidden_size // num_heads)
    if metadata.size("rope.dimension_count", head_dim) != head_dim:
        raise metadata.refuse("rotation of a part of each head")
    names = metadata.tensor_names
    fields: dict[str, Any] = {
        "architecture": family,
        "vocab_size": len(metadata["tokenizer.ggml.tokens"]),
        "hidden_size": hidden_size,
        "intermediate_size": metadata.size("feed_forward_length"),
        "num_layers": num_layers,
        "num_heads": num_heads,
        "num_kv_heads": metadata.size("attention.head_count_kv", num_heads),
        "head_dim": head_dim,
        "rms_norm_eps": float(metadata.own("attention.layer_norm_rms_epsilon")),
        "context_length": metadata.size("context_length"),
        "tied_embeddings": "output.weight" not in names,
        "ropes": (stated_rope(metadata, head_dim, 10_000.0),),
        "layer_ropes": (0,) * num_layers,
        "layer_windows": (None,) * num_layers,
        "attention_scale": float(metadata.get_own("attention.scale", head_dim**-0.5)),
        "qkv_bias": "blk.0.attn_q.bias" in names,
        "output_bias": "blk.0.attn_output.bias" in names,
        "mlp_bias": "blk.0.ffn_down.bias" in names,
        "qk_norm": "blk.0.attn_q_norm.weight" in names,
        "post_norms": "blk.0.post_attention_norm.weight" in names,
    }
    return ModelConfig(**(fields | traits))


def stated_rope(metadata: Metadata, head_dim: int, default_theta: float) -> Rope:
    kind = metadata.get_own("rope.scaling.type", "none")
    scaling: dict[str, Any] = {"rope_type": "default" if kind == "none" else kind}
    if kind in ("linear", "yarn"):
        scaling["factor"] = metadata.own("rope.scaling.factor")
    if kind == "yarn":
        scaling |= _yarn(metadata)
    rope = make_rope(head_dim, float(metadata.get_own("rope.freq_base", default_theta)), scaling)
    if metadata.rope_divisors is None:
        return rope
    slowed = zip(rope.frequencies, metadata.rope_divisors, strict=True)
    return Rope(tuple(frequency / divisor for frequency, divisor in slowed), rope.magnitude)


def _yarn(metadata: Metadata) -> dict[str, Any]:
    if metadata.get_own("rope.scaling.yarn_log_multiplier", 0):
        raise metadata.refuse("rope.scaling.yarn_log_multiplier")
    return {
        "original_max_position_embeddings": metadata.own("rope.scaling.original_context_length"),
        "beta_fast": metadata.get_own("rope.scaling.yarn_beta_fast"),
        "beta_slow": metadata.get_own("rope.scaling.yarn_beta_slow"),
    }


def _refuse_what_is_not_computed(metadata: Metadata) -> None:
    if metadata.get_own("expert_count", 0):
        raise metadata.refuse("a mixture of experts")
    for option in ("attn_logit_softcapping", "final_logit_softcapping"):
        if metadata.get_own(option, 0):
            raise metadata.refuse(option)
