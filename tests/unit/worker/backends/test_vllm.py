from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shared.config import WorkerSettings
from shared.errors import ConfigurationError
from worker.composition import build_engine


def refusal(**settings: Any) -> str:
    with pytest.raises(ConfigurationError) as refused:
        build_engine(WorkerSettings.model_validate({"backend": "vllm", "model": "/", **settings}))
    return refused.value.message


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"speculation": "prompt_lookup"}, "HEADRACE_SPECULATION"),
        ({"deterministic": True}, "HEADRACE_DETERMINISTIC"),
        ({"kv_cache_share": 0.5}, "HEADRACE_VLLM_MEMORY_SHARE"),
        ({"device": "cuda:1"}, "CUDA_VISIBLE_DEVICES"),
        ({"scheduling_policy": "shortest"}, "HEADRACE_SCHEDULING_POLICY=shortest"),
        ({"max_num_seqs": 32, "max_step_tokens": 16}, "HEADRACE_MAX_STEP_TOKENS (16)"),
        ({"model": "smollm2"}, "HEADRACE_MODEL=smollm2"),
    ],
)
def test_what_vllm_has_nothing_like_is_refused_by_name(settings: dict[str, Any], named: str) -> None:
    assert named in refusal(**settings)


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed")
def test_without_vllm_the_message_says_what_to_install() -> None:
    assert "make setup-vllm" in refusal()


def test_vllm_is_not_imported_before_it_is_chosen() -> None:
    code = "import sys, worker.service, worker.backends.vllm; sys.exit('vllm' in sys.modules)"
    root = Path(__file__).parents[4]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0
