from __future__ import annotations

import importlib.util
import subprocess
import sys
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from shared.config import WorkerSettings
from shared.errors import ConfigurationError
from shared.schemas import Prefix, Request, SamplingParams
from tests.unit.worker.engine.harness import LetterDecoder
from worker.backends.vllm_engine.choosing import KEY, TokenChooser
from worker.composition import build_engine
from worker.engine.request import Arrival, Vocabulary, open_request


class Direction(Enum):
    """As vLLM names them: a swap by this name, anything else is one way."""

    SWAP = 1
    ONE_WAY = 2


def change(**of: Any) -> SimpleNamespace:
    return SimpleNamespace(**({"removed": [], "added": [], "moved": []} | of))


def test_who_moves_in_vllms_batch_keeps_its_parameters() -> None:
    chooser = TokenChooser(3)
    for number in (1, 2, 3):
        params = SamplingParams(max_tokens=9, seed=1, temperature=0.0, logit_bias=((number, 50.0),))
        request = Request(request_id="r", model="m", prompt_ids=(0,), params=params)
        live = open_request(
            request,
            [Prefix()],
            arrival=Arrival(1, 0.0, None),
            eos_ids=(),
            vocabulary=Vocabulary(lambda _: LetterDecoder()),
        )
        chooser.sequences[str(number)] = live.scorer
    added = [(index, SimpleNamespace(extra_args={KEY: str(index + 1)}), None, []) for index in range(3)]
    chooser.update(change(added=added))
    for moves in ({}, {"moved": [(0, 1, Direction.SWAP)]}, {"removed": [0], "moved": [(2, 0, Direction.ONE_WAY)]}):
        if moves:
            chooser.update(change(**moves))
        size = 2 if "removed" in moves else 3
        chosen = chooser.apply(torch.zeros(size, 8)).argmax(-1).tolist()
        assert {key: one.token_id for key, one in chooser.chosen.items()} == {
            str(token_id): token_id for token_id in chosen
        }
    assert chosen == [3, 1]
    chooser.close()


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
