"""What `VllmEngine` sees of vLLM, made of lists: blocks, slots, a budget a step, preemption, cached prefixes, and
logits that hang on the tokens before. It calls the chooser as vLLM does, so the engine is held to the suite without
vLLM."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from types import SimpleNamespace

import numpy as np
import torch

from shared.schemas import TokenLogprobs
from worker.backends.vllm_engine.choosing import KEY, TokenChooser
from worker.backends.vllm_engine.core import Entry, Made, Standing

BLOCK_SIZE = 16


@dataclass(eq=False)
class Held:
    entry: Entry
    ids: list[int]
    arrival: int
    computed: int = 0
    preemptions: int = 0
    cached: int = 0
    blocks: int = 0

    @property
    def place(self) -> tuple[int, int]:
        return self.entry.priority, self.arrival


class StandIn:
    block_size, num_groups, dtype = BLOCK_SIZE, 1, "float32"

    def __init__(self, kv_cache_tokens: int, max_num_seqs: int, max_step_tokens: int, vocab_size: int) -> None:
        self.chooser = TokenChooser(max_num_seqs)
        self.num_blocks = kv_cache_tokens // BLOCK_SIZE
        self.max_num_seqs, self.max_step_tokens, self.vocab_size = max_num_seqs, max_step_tokens, vocab_size
        self.context_length = kv_cache_tokens
        self.held: dict[str, Held] = {}
        self.running: list[Held] = []
        self.batch: list[Held] = []
        self.known: set[tuple[str | None, tuple[int, ...]]] = set()
        self.arrivals = 0

    @property
    def num_free_blocks(self) -> int:
        return self.num_blocks - sum(held.blocks for held in self.running)

    @property
    def waiting(self) -> list[Held]:
        return sorted((held for held in self.held.values() if held not in self.running), key=lambda held: held.place)

    def num_running_and_waiting(self) -> tuple[int, int]:
        return len(self.running), len(self.held) - len(self.running)

    def standing(self, key: str) -> Standing | None:
        held = self.held.get(key)
        return held and Standing(held.blocks, held.computed, held.preemptions)

    def add(self, entry: Entry) -> None:
        self.arrivals += 1
        self.held[entry.key] = Held(entry, list(entry.token_ids), self.arrivals)

    def abort(self, keys: list[str]) -> None:
        for key in keys:
            held = self.held.pop(key, None)
            if held in self.running:
                self.running.remove(held)

    def forget_prefixes(self) -> None:
        self.known.clear()

    def close(self) -> None:
        self.chooser.close()

    def step(self) -> list[Made]:
        given = self._schedule()
        self.chooser.update(self._change(list(given)))
        rows = [logits_after(held.ids[: held.computed + count], self.vocab_size) for held, count in given.items()]
        if not rows:
            return []
        chosen = self.chooser.apply(torch.from_numpy(np.stack(rows))).argmax(-1).tolist()
        made = [self._advance(held, given[held], token_id) for held, token_id in zip(given, chosen, strict=True)]
        return [one for one in made if one is not None]

    def _schedule(self) -> dict[Held, int]:
        given: dict[Held, int] = {}
        for held in sorted(self.running, key=lambda held: held.place):
            if held in self.running:
                self._give(held, given)
        for held in self.waiting:
            if len(self.running) == self.max_num_seqs or (held.preemptions and self.num_free_blocks < 2):
                break
            if self._blocks(len(held.ids)) > self.num_free_blocks or sum(given.values()) == self.max_step_tokens:
                break
            self.running.append(held)
            if held.entry.prompt_logprobs is None:
                held.computed = self._num_known(held)
            held.cached = held.computed if not held.preemptions else held.cached
            self._give(held, given)
        return given

    def _give(self, held: Held, given: dict[Held, int]) -> None:
        count = min(len(held.ids) - held.computed, self.max_step_tokens - sum(given.values()))
        while count and self._blocks(held.computed + count) - held.blocks > self.num_free_blocks:
            victim = max(self.running, key=lambda other: other.place)
            self.running.remove(victim)
            victim.computed, victim.blocks, victim.preemptions = 0, 0, victim.preemptions + 1
            given.pop(victim, None)
            if victim is held:
                return
        if count:
            held.blocks = max(held.blocks, self._blocks(held.computed + count))
            given[held] = count

    def _advance(self, held: Held, count: int, token_id: int) -> Made | None:
        held.computed += count
        if held.computed < len(held.ids):
            return None
        entry, is_first = held.entry, len(held.ids) == len(held.entry.token_ids)
        for end in range(BLOCK_SIZE, len(held.ids) + 1, BLOCK_SIZE):
            self.known.add((entry.salt, tuple(held.ids[:end])))
        scores = scores_of(entry, self.vocab_size) if is_first and entry.prompt_logprobs is not None else None
        held.ids.append(token_id)
        is_over = len(held.ids) - len(entry.token_ids) == entry.max_tokens
        if is_over:
            self.abort([entry.key])
        return Made(entry.key, held.cached, scores, is_over)

    def _change(self, now: list[Held]) -> SimpleNamespace:
        """Of the batch: who joins at its end is added, and where anybody left all are placed anew."""
        before, self.batch = self.batch, now
        gone = [index for index, held in enumerate(before) if held not in now]
        stay = {held: index for index, held in enumerate(before) if held in now}
        if [*stay] == now[: len(stay)] and list(stay.values()) == list(range(len(stay))):
            come = now[len(stay) :]
        else:
            gone, come, stay = list(range(len(before))), now, {}
        added = [
            (len(stay) + index, SimpleNamespace(extra_args={KEY: held.entry.key}), None, [])
            for index, held in enumerate(come)
        ]
        return SimpleNamespace(removed=gone, added=added, moved=[])

    def _num_known(self, held: Held) -> int:
        ends = range(BLOCK_SIZE, len(held.ids), BLOCK_SIZE)
        return max((end for end in ends if (held.entry.salt, tuple(held.ids[:end])) in self.known), default=0)

    def _blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // BLOCK_SIZE)


def logits_after(ids: list[int], vocab_size: int) -> np.ndarray:
    seed = int.from_bytes(blake2b(repr(ids).encode(), digest_size=8).digest(), "little")
    return np.random.default_rng(seed).normal(scale=3.0, size=vocab_size).astype(np.float32)


def scores_of(entry: Entry, vocab_size: int) -> list[TokenLogprobs]:
    told: list[TokenLogprobs] = []
    for end in range(1, len(entry.token_ids)):
        logprobs = torch.from_numpy(logits_after(entry.token_ids[:end], vocab_size)).double().log_softmax(-1)
        top = logprobs.topk(entry.prompt_logprobs or 0)
        rivals = tuple(zip(top.indices.tolist(), top.values.tolist(), strict=True))
        told.append(TokenLogprobs(float(logprobs[entry.token_ids[end]]), rivals))
    return told
