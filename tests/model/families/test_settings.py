"""What config.json may say: older spellings mean the same, and what is not computed is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from shared.errors import ConfigurationError
from tests.model.tiny_model import config
from worker.model.families.catalogue import family_of_settings
from worker.model.families.model_config import ModelConfig
from worker.model.families.settings import Settings


def read(architecture: str, **changes: Any) -> ModelConfig:
    settings = Settings(config(architectures=[architecture], **changes))
    return family_of_settings(settings).read_settings(settings)


def test_older_spellings_of_rotation_mean_the_same() -> None:
    yarn = {"factor": 4.0, "original_max_position_embeddings": 512}
    older = read("Qwen2ForCausalLM", rope_theta=1e6, rope_scaling={"type": "yarn", **yarn})
    newer = read("Qwen2ForCausalLM", rope_parameters={"rope_type": "yarn", "rope_theta": 1e6, **yarn})
    assert older == newer and older.ropes[0].magnitude > 1


def test_yarn_extends_a_context_stated_as_trained() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    assert read("Qwen2ForCausalLM", rope_scaling=yarn).context_length == 2048
    assert read("Qwen2ForCausalLM", rope_scaling=yarn, max_position_embeddings=4096).context_length == 4096


def test_gemma3_as_first_published_means_the_same_as_now() -> None:
    sizes = {"num_hidden_layers": 7, "sliding_window": 64, "hidden_activation": "gelu_pytorch_tanh"}
    older = read(
        "Gemma3ForCausalLM",
        **sizes,
        rope_theta=1e6,
        rope_local_base_freq=1e4,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
    )
    kinds = ["sliding_attention"] * 5 + ["full_attention", "sliding_attention"]
    rope = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    assert older == read("Gemma3ForCausalLM", **sizes, layer_types=kinds, rope_parameters=rope)
    assert older.layer_windows == (64,) * 5 + (None, 64) and older.layer_ropes == (1,) * 5 + (0, 1)


def test_a_window_that_is_switched_off_is_none() -> None:
    assert read("Qwen3ForCausalLM", sliding_window=64, use_sliding_window=False).layer_windows == (None,) * 3
    assert read("MistralForCausalLM", sliding_window=None).layer_windows == (None,) * 3
    assert read("LlamaForCausalLM", sliding_window=64).layer_windows == (None,) * 3  # not a setting of Llama


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": ["MixtralForCausalLM"], "num_local_experts": 8}, "'MixtralForCausalLM' .a mixture of exp"),
        ({"architectures": ["Phi3ForCausalLM"]}, "supported are LlamaForCausalLM, MistralForCausalLM, Qwen2ForCau"),
        ({"architectures": ["Qwen3ForCausalLM"], "num_experts": 4}, "Qwen3ForCausalLM with a mixture of experts"),
        ({"hidden_act": "gelu"}, r"LlamaForCausalLM with hidden_act 'gelu' \(supported are silu, gelu_pytorch_tanh"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2}}, "'dynamic' .* supported are default, linear, llama"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "'longrope'"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "'yarn' lacks 'factor'"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "rotates a part of each head"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config .fp8; safetensors may be F32"),
        ({"architectures": ["Gemma3ForCausalLM"], "final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ({"architectures": ["Gemma3ForCausalLM"], "use_bidirectional_attention": True}, "bidirectional"),
        (
            {"architectures": ["Qwen3ForCausalLM"], "layer_types": ["full_attention", "linear_attention", "x"]},
            "layer type 'linear_attention'",
        ),
        ({"hidden_size": None}, "config.json lacks 'hidden_size'"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(changes: dict[str, Any], words: str) -> None:
    settings = Settings(config(**changes))
    with pytest.raises(ConfigurationError, match=words):
        family_of_settings(settings).read_settings(settings)
