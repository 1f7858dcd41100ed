"""Drives a runner by hand: the block tables and arrays of a step, made as plainly as the drawing in runner.py."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np

from worker.engine.adapters import NO_ADAPTER
from worker.model.runner import Runner, StepBatch
from worker.model.sampling.rows import NO_LOGPROBS, SamplingRows


@dataclass(eq=False)
class Sequence:
    """`token_ids` grows by what the runner makes; `blocks` may be given, as after a prefix hit."""

    token_ids: list[int]
    max_new: int = 0
    temperature: float = 0.0
    seed: int = 0
    num_computed: int = 0
    blocks: list[int] = field(default_factory=list)
    num_prompt: int = 0
    adapter: int = NO_ADAPTER

    def __post_init__(self) -> None:
        self.num_prompt = len(self.token_ids)

    @property
    def made(self) -> list[int]:
        return self.token_ids[self.num_prompt :]

    @property
    def is_done(self) -> bool:
        return len(self.made) >= self.max_new


def sampling_of(sampled: list[Sequence]) -> SamplingRows | None:
    """None when all of them are greedy."""
    drawn = np.array([i for i, sequence in enumerate(sampled) if sequence.temperature > 0], np.int64)
    if not len(drawn):
        return None
    owners = [sampled[i] for i in drawn]
    return SamplingRows(
        samples=drawn,
        positions=np.array([len(sequence.token_ids) for sequence in owners], np.int64),
        temperature=np.array([sequence.temperature for sequence in owners], np.float32),
        top_p=np.ones(len(owners), np.float32),
        top_k=np.zeros(len(owners), np.int64),
        min_p=np.zeros(len(owners), np.float32),
        seed=np.array([sequence.seed for sequence in owners], np.uint64),
        choice=np.zeros(len(owners), np.int64),
        num_logprobs=np.full(len(owners), NO_LOGPROBS, np.int64),
    )


def seqs_of(batch: StepBatch) -> list[int]:
    """Which sequence each sample is of."""
    return (np.searchsorted(batch.query_start, batch.sample_rows, side="right") - 1).tolist()


class Stepper:
    """Free blocks are handed out in a random order, so that tables are not runs."""

    def __init__(self, runner: Runner, seed: int = 0) -> None:
        self.runner = runner
        self.random = random.Random(seed)
        self.free = list(range(1, runner.num_blocks))
        self.random.shuffle(self.free)

    def batch(self, work: list[tuple[Sequence, int]]) -> StepBatch:
        """Each sequence and how many of its uncomputed tokens to run; those then complete make a token."""
        adapters = np.array([sequence.adapter for sequence, _ in work], np.int64)
        size = self.runner.block_size
        token_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        query_start = [0]
        for sequence, count in work:
            stop = sequence.num_computed + count
            while len(sequence.blocks) * size < stop:
                sequence.blocks.append(self.free.pop())
            for position in range(sequence.num_computed, stop):
                token_ids.append(sequence.token_ids[position])
                positions.append(position)
                slots.append(sequence.blocks[position // size] * size + position % size)
            query_start.append(len(token_ids))
        seq_lens = [sequence.num_computed + count for sequence, count in work]
        tables = np.zeros((len(work), max(len(sequence.blocks) for sequence, _ in work) + 2), np.int64)
        for row, (sequence, _) in enumerate(work):
            tables[row, : len(sequence.blocks)] = sequence.blocks
        sampled = [i for i, (sequence, _) in enumerate(work) if seq_lens[i] == len(sequence.token_ids)]
        chosen = [work[i][0] for i in sampled]
        return StepBatch(
            token_ids=np.array(token_ids),
            positions=np.array(positions),
            slot_mapping=np.array(slots),
            query_start=np.array(query_start),
            seq_lens=np.array(seq_lens),
            block_tables=tables,
            sample_rows=np.array([query_start[i + 1] - 1 for i in sampled], np.int64),
            sampling=sampling_of(chosen),
            adapters=adapters if (adapters != NO_ADAPTER).any() else None,
        )

    def step(self, work: list[tuple[Sequence, int]]) -> None:
        batch = self.batch(work)
        made = self.runner.execute(batch).token_ids
        for sequence, count in work:
            sequence.num_computed += count
        for seq, token_id in zip(seqs_of(batch), made, strict=True):
            work[seq][0].token_ids.append(int(token_id))

    def run(self, sequences: list[Sequence], *, max_chunk: int, arrival: float = 1.0) -> None:
        """Until all are done: waiting ones join with probability `arrival`, chunks are of random size."""
        waiting, running = list(sequences), []
        while waiting or running:
            while waiting and (not running or self.random.random() < arrival):
                running.append(waiting.pop(0))
            self.random.shuffle(running)
            work = []
            for sequence in running:
                left = len(sequence.token_ids) - sequence.num_computed
                work.append((sequence, min(left, self.random.randint(1, max_chunk))))
            self.step(work)
            for sequence in [sequence for sequence in running if sequence.is_done]:
                running.remove(sequence)
                self.free.extend(sequence.blocks)
                self.random.shuffle(self.free)
