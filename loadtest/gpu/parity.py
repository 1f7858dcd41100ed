"""Is it right: logits against a dense forward and against PyTorch's attention, bits against the batch, tokens chosen on
the device against those the sampler chooses.

An error is a root mean square over that of the reference's logits. In half precision ours may be half as large again as
that of PyTorch's attention, which rounds as often.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from loadtest.gpu.batches import Prompts
from loadtest.gpu.dense import dense_logits
from loadtest.gpu.paths import AnyRunner, Limits, build
from loadtest.gpu.weights import FAMILIES, RandomCheckpoint, config_of
from worker.model.cuda.choosing import PendingTokens
from worker.model.sampling.rows import NO_LOGPROBS, SamplingRows
from worker.model.sampling.sampler import sample

_FP32_LIMIT = 1e-3
_HALF_SLACK, _HALF_FLOOR = 1.5, 2e-3
LENGTHS = (300, 41, 17, 5, 2)  # a row of many splits; five sequences, so that a decode is padded


@dataclass(frozen=True, slots=True)
class Check:
    """`limit` None: reported, not judged."""

    name: str
    measured: float
    limit: float | None

    @property
    def is_ok(self) -> bool:
        return self.limit is None or self.measured <= self.limit  # a NaN is not


def families(device: torch.device, lengths: tuple[int, ...] = LENGTHS) -> list[Check]:
    """Every family, tiny: our kernels in fp32 and, on a GPU, in bfloat16, a prompt in chunks and then a decode."""
    checks: list[Check] = []
    for family, settings in FAMILIES.items():
        checkpoint = RandomCheckpoint(config_of(settings), device=device)
        prompts = Prompts(lengths, vocab_size=checkpoint.config.vocab_size, num_blocks=_blocks(lengths))
        dense = _dense(checkpoint, prompts, torch.float64, torch.float64)
        checks += _held_to_dense(family, checkpoint, device, prompts, dense)
    return checks


def one_model(checkpoint: RandomCheckpoint, device: torch.device, lengths: tuple[int, ...]) -> list[Check]:
    """A model of real size: the same, against a dense forward in fp32 on the same rounded weights."""
    prompts = Prompts(lengths, vocab_size=checkpoint.config.vocab_size, num_blocks=_blocks(lengths))
    checks: list[Check] = []
    for dtype in (torch.float32, torch.bfloat16):
        dense = _dense(checkpoint, prompts, dtype, torch.float32)
        checks += _judged("model", checkpoint, (device, dtype), prompts, dense)
    return checks


def invariance(
    checkpoint: RandomCheckpoint, place: tuple[torch.device, torch.dtype], lengths: tuple[int, ...] = LENGTHS
) -> list[Check]:
    """Prompts whose logits differ in any bit from those they have alone: in a batch, in chunks, as padded decodes."""
    prompts = Prompts(lengths, vocab_size=checkpoint.config.vocab_size, num_blocks=_blocks(lengths))
    checks: list[Check] = []
    is_promised = place[0].type == "cuda"  # on a CPU the products are PyTorch's
    for path in ("deterministic", "graphs"):
        runner = build(path, checkpoint, place, _limits(lengths))
        alone = [runner.logits(prompts.batch([(i, 0, n)]))[0].clone() for i, n in enumerate(lengths)]
        ways = {
            "in one batch": runner.logits(prompts.whole()),
            "in chunks of 7, then a padded decode": _in_chunks(runner, prompts, 7),
            "in chunks of 64, then a padded decode": _in_chunks(runner, prompts, 64),
        }
        for way, logits in ways.items():
            differing = sum(not torch.equal(mine, own) for mine, own in zip(logits, alone, strict=True))
            limit = 0 if path == "deterministic" and is_promised else None
            checks.append(Check(f"{path}, {way}: prompts that differ", differing, limit))
    return checks


def choices(device: torch.device, vocab_size: int, num_rows: int = 24) -> list[Check]:
    """Rows for which the device chooses another token than the sampler does."""
    random = np.random.default_rng(5)
    logits = torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(5)).mul_(3).to(device)
    sampling = SamplingRows(
        samples=np.arange(num_rows),
        positions=np.arange(num_rows),
        temperature=random.choice([0.0, 0.7, 1.0], num_rows).astype(np.float32),
        top_p=random.choice([1.0, 0.9], num_rows).astype(np.float32),
        top_k=random.choice([0, 40], num_rows),
        min_p=np.zeros(num_rows, np.float32),
        seed=random.integers(0, 2**63, num_rows).astype(np.uint64),
        choice=np.zeros(num_rows, np.int64),
        num_logprobs=np.full(num_rows, NO_LOGPROBS),
    )
    rows = np.arange(num_rows)
    on_device = PendingTokens(logits, rows, sampling).wait().token_ids
    on_host = sample(logits.cpu(), rows, sampling).token_ids
    return [Check("tokens chosen otherwise than on the host", int((on_device != on_host).sum()), 0)]


def _held_to_dense(
    name: str, checkpoint: RandomCheckpoint, device: torch.device, prompts: Prompts, dense: torch.Tensor
) -> list[Check]:
    checks = _judged(name, checkpoint, (device, torch.float32), prompts, dense)
    if device.type == "cuda":
        rounded = _dense(checkpoint, prompts, torch.bfloat16, torch.float64)
        checks += _judged(name, checkpoint, (device, torch.bfloat16), prompts, rounded)
    return checks


def _judged(
    name: str,
    checkpoint: RandomCheckpoint,
    place: tuple[torch.device, torch.dtype],
    prompts: Prompts,
    dense: torch.Tensor,
) -> list[Check]:
    limits = _limits([len(ids) for ids in prompts.token_ids])
    kind = str(place[1]).removeprefix("torch.")
    theirs = _error(_in_chunks(build("sdpa", checkpoint, place, limits), prompts, 64), dense)
    limit = _FP32_LIMIT if kind == "float32" else _HALF_SLACK * theirs + _HALF_FLOOR
    checks = [Check(f"{name} {kind}: error by PyTorch's attention", theirs, None)]
    for path in ("graphs", "deterministic"):
        logits = _in_chunks(build(path, checkpoint, place, limits), prompts, 64)
        checks.append(Check(f"{name} {kind}: error by our kernels, {path}", _error(logits, dense), limit))
    return checks


def _in_chunks(runner: AnyRunner, prompts: Prompts, size: int) -> torch.Tensor:
    """The logits of each prompt's last token, computed as a decode after the rest in chunks of all prompts together."""
    lengths = [len(ids) for ids in prompts.token_ids]
    for start in range(0, max(lengths) - 1, size):
        work = [(i, start, min(start + size, n - 1)) for i, n in enumerate(lengths) if start < n - 1]
        runner.execute(prompts.batch(work))
    return runner.logits(prompts.last_tokens())


def _dense(checkpoint: RandomCheckpoint, prompts: Prompts, rounded: torch.dtype, computed: torch.dtype) -> torch.Tensor:
    """[prompts, vocab]: of each prompt's last token."""

    def weight(name: str) -> torch.Tensor:
        return checkpoint.weight(name).to(rounded).to(computed)

    with torch.inference_mode():
        logits = [dense_logits(checkpoint.config, weight, ids.tolist())[-1] for ids in prompts.token_ids]
    return torch.stack(logits)


def _error(logits: torch.Tensor, reference: torch.Tensor) -> float:
    difference = logits.double() - reference.double()
    return float(difference.square().mean().sqrt() / reference.double().square().mean().sqrt())


def _limits(lengths: tuple[int, ...] | list[int]) -> Limits:
    return Limits(
        num_blocks=_blocks(lengths), context_length=1024, max_num_seqs=8, max_step_tokens=max(sum(lengths), 64)
    )


def _blocks(lengths: tuple[int, ...] | list[int]) -> int:
    return 2 + sum(-(-length // 16) for length in lengths)
