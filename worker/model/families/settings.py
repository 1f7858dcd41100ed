"""What config.json of a Hugging Face folder says, read into a ModelConfig by the rules all families share.

A family adds its own traits (llama.py, qwen.py, gemma.py). Whatever would change the answer and is not computed
here is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shared.errors import ConfigurationError
from worker.model.families.model_config import Activation, ModelConfig
from worker.model.families.rope import make_rope

_ACTIVATIONS: dict[str, Activation] = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
_UNSUPPORTED = ("attn_logit_softcapping", "final_logit_softcapping", "use_bidirectional_attention")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


class Settings:
    """The file's values; null counts as absent."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self.architecture: str = (values.get("architectures") or ["(none)"])[0]

    def __getitem__(self, key: str) -> Any:
        value = self._values.get(key)
        if value is None:
            raise ConfigurationError(f"config.json lacks {key!r}")
        return value

    def get(self, key: str, default: Any = None) -> Any:
        value = self._values.get(key)
        return default if value is None else value

    def rope(self) -> dict[str, Any]:
        """Rotation as newer files state it (`rope_parameters`), from either spelling."""
        trained = self.get("original_max_position_embeddings")
        stated = {} if trained is None else {"original_max_position_embeddings": trained}
        return stated | (self.get("rope_parameters") or self.get("rope_scaling", {}))

    @property
    def has_experts(self) -> bool:
        return any(self.get(key, 0) for key in _EXPERTS)

    def refuse(self, what: str) -> ConfigurationError:
        return ConfigurationError(f"{self.architecture} with {what} is not supported")


def read_config(settings: Settings, family: str, **traits: Any) -> ModelConfig:
    """`traits` are the fields of ModelConfig that the family states itself."""
    _refuse_what_is_not_computed(settings)
    num_heads, num_layers = settings["num_attention_heads"], settings["num_hidden_layers"]
    head_dim = settings.get("head_dim", settings["hidden_size"] // num_heads)
    fields: dict[str, Any] = {
        "architecture": family,
        "vocab_size": settings["vocab_size"],
        "hidden_size": settings["hidden_size"],
        "intermediate_size": settings["intermediate_size"],
        "num_layers": num_layers,
        "num_heads": num_heads,
        "num_kv_heads": settings.get("num_key_value_heads", num_heads),
        "head_dim": head_dim,
        "rms_norm_eps": settings["rms_norm_eps"],
        "context_length": settings["max_position_embeddings"],
        "tied_embeddings": bool(settings.get("tie_word_embeddings", False)),
        "layer_ropes": (0,) * num_layers,
        "layer_windows": (None,) * num_layers,
        "attention_scale": head_dim**-0.5,
        "activation": _activation(settings),
    }
    if "ropes" not in traits:
        scaling = settings.rope()
        theta = scaling.get("rope_theta") or settings.get("rope_theta", 10_000.0)
        assumed = {"original_max_position_embeddings": fields["context_length"]}
        fields["ropes"] = (make_rope(head_dim, float(theta), assumed | scaling),)
        fields["context_length"] = _extended(fields["context_length"], scaling)
    return ModelConfig(**(fields | traits))


def layer_windows(settings: Settings, window: int | None, stated: list[str] | None = None) -> tuple[int | None, ...]:
    """A window a layer, from `layer_types` or, where the file has none, from `stated` (None: every layer)."""
    kinds = settings.get("layer_types", stated) or ["sliding_attention"] * settings["num_hidden_layers"]
    known = {"full_attention": None, "sliding_attention": window}
    if not set(kinds) <= set(known):
        raise settings.refuse(f"layer type {next(kind for kind in kinds if kind not in known)!r}")
    return tuple(known[kind] for kind in kinds)


def biases(settings: Settings) -> dict[str, bool]:
    """Of attention, as `attention_bias` states them."""
    has_bias = bool(settings.get("attention_bias", False))
    return {"qkv_bias": has_bias, "output_bias": has_bias}


def _refuse_what_is_not_computed(settings: Settings) -> None:
    for option in _UNSUPPORTED:
        if settings.get(option):
            raise settings.refuse(option)
    if settings.has_experts:
        raise settings.refuse("a mixture of experts")
    quantization = settings.get("quantization_config")
    if quantization:
        method = quantization.get("quant_method", "of no name")
        raise settings.refuse(f"quantization_config ({method}; safetensors may be F32, F16 or BF16, GGUF quantized)")


def _activation(settings: Settings) -> Activation:
    stated = settings.get("hidden_activation", settings.get("hidden_act", "silu"))
    if stated not in _ACTIVATIONS:
        raise settings.refuse(f"hidden_act {stated!r} (supported are {', '.join(_ACTIVATIONS)})")
    return _ACTIVATIONS[stated]


def _extended(context_length: int, scaling: Mapping[str, Any]) -> int:
    """A file that is given YaRN for longer texts often keeps the length that it was trained for."""
    trained = scaling.get("original_max_position_embeddings")
    if trained is None or scaling.get("rope_type", scaling.get("type")) != "yarn":
        return context_length
    return max(context_length, int(trained * scaling["factor"]))
