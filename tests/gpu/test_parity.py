"""On a GPU: what `python -m loadtest gpu` checks of tiny models, and a model loaded as a worker loads it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the GPU path needs PyTorch")

from loadtest.gpu import parity  # noqa: E402
from loadtest.gpu.weights import FAMILIES, RandomCheckpoint, config_of  # noqa: E402
from tests.model.reference import Reference  # noqa: E402
from tests.model.stepper import Sequence, Stepper  # noqa: E402
from tests.model.tiny_model import VOCAB, write_model  # noqa: E402
from worker.model.cuda.choice import CudaOptions  # noqa: E402
from worker.model.loader import load_model  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="NO GPU: the GPU path has not been run"),
]


def test_every_family_agrees_with_a_dense_forward() -> None:
    assert [check for check in parity.families(torch.device("cuda")) if not check.is_ok] == []


def test_deterministic_logits_do_not_hang_on_the_batch() -> None:
    checkpoint = RandomCheckpoint(config_of(FAMILIES["llama"]), device=torch.device("cuda"))
    checks = parity.invariance(checkpoint, (torch.device("cuda"), torch.bfloat16))
    assert [check for check in checks if not check.is_ok] == []


def test_tokens_are_chosen_as_on_the_host() -> None:
    assert all(check.is_ok for check in parity.choices(torch.device("cuda"), 50_000))


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_loaded_model_gives_the_tokens_of_the_reference(tmp_path: Path, deterministic: bool) -> None:
    folder = write_model(tmp_path)
    options = CudaOptions(mode="triton", deterministic=deterministic, max_num_seqs=8, max_step_tokens=300)
    loaded = load_model(
        str(folder), name=None, device="cuda", threads=0, kv_cache_bytes=1 << 20, max_context=0, dtype="float32",
        cuda=options,
    )  # fmt: skip
    prompts = [np.random.default_rng(i).integers(0, VOCAB, length).tolist() for i, length in enumerate([3, 30, 60])]
    sequences = [Sequence(list(prompt), max_new=20) for prompt in prompts]
    Stepper(loaded.runner).run(sequences, max_chunk=16)
    reference = Reference(folder, torch.float64)
    for sequence in sequences:
        logits = reference.logits(sequence.token_ids[:-1])[sequence.num_prompt - 1 :]
        best = logits.topk(2).values
        is_close = best[:, 0] - best[:, 1] < 1e-3
        assert bool(((logits.argmax(-1) == torch.tensor(sequence.made)) | is_close).all())
