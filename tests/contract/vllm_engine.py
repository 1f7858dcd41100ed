"""vLLM's engine on a tiny random model, with the simulated model's tokenizer. One core for each set of sizes, kept for
the session: it takes seconds to start."""

from __future__ import annotations

import functools
import importlib.util
import json
import tempfile
from pathlib import Path

import pytest

from worker.backends.interface import Engine
from worker.backends.simulated_text import EOS_TOKEN, SimulatedText

# The CPU build's attention takes multiples of 32.
BLOCK_SIZE_OF_VLLM = 32
MAX_CONTEXT = 4096


def make_vllm(kv_cache_tokens: int, max_num_seqs: int, max_step_tokens: int) -> Engine:
    """A new engine over a core that others had before."""
    from worker.backends.vllm import compose_vllm, read_card

    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not importable here: make test-vllm PYTHON_VLLM=/path/to/its/python")
    core = open_core(kv_cache_tokens, min(max_num_seqs, max_step_tokens), max_step_tokens)
    core.forget_everything()
    card, blob = read_card(core, str(tiny_folder()), name="tiny")
    return compose_vllm(core, card, blob)


@functools.cache
def open_core(kv_cache_tokens: int, max_num_seqs: int, max_step_tokens: int):
    from worker.backends.vllm_engine.core import CoreConfig, build_core

    config = CoreConfig(
        model_path=str(tiny_folder()),
        max_context=min(MAX_CONTEXT, kv_cache_tokens),
        max_num_seqs=max_num_seqs,
        max_step_tokens=max_step_tokens,
        block_size=BLOCK_SIZE_OF_VLLM,
        num_blocks=kv_cache_tokens // BLOCK_SIZE_OF_VLLM,
        enforce_eager=True,
    )
    core = build_core(config, progress=lambda _words: None)
    core.close = lambda: None  # it is for the engines after this one too
    return core


@functools.cache
def tiny_folder() -> Path:
    from tests.model.tiny_model import write_model

    text = SimulatedText()
    folder = write_model(
        Path(tempfile.mkdtemp(prefix="headrace-tiny-")),
        model_type="llama",
        dtype="float32",
        vocab_size=text.vocab_size,
        hidden_size=64,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=MAX_CONTEXT,
        eos_token_id=text.eos_id,
    )
    (folder / "tokenizer.json").write_text(text.blob().tokenizer_json)
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": EOS_TOKEN}))
    return folder
