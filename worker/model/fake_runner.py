"""A Runner without a model, for tests of everything around one. No torch.

Its KV pool stores, for each slot, the token and the position written there. The next token is a hash of the whole
prefix as read back through the block table, so a wrong table, slot, position or row, a block given to two
sequences, or a prefix not computed changes the answer. Sampling parameters go into the hash as well, each where the
sampler would read it: a wrong row changes the answer. Bans and masks are obeyed; logprobs are made of the same hash.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from worker.model.runner import StepBatch
from worker.model.sampling.rows import BitArray, IntArray, SamplingRows, StepLogprobs, StepTokens

UNWRITTEN = -1
ECHO_DISTANCE = 5


@dataclass(slots=True)
class FakeStep:
    made: StepTokens

    def wait(self) -> StepTokens:
        return self.made


class FakeRunner:
    """`eos_id` comes with `eos_probability`, as the prefix decides, and never otherwise (but where a mask has nothing
    else). With `echo_probability` a token is the one `ECHO_DISTANCE` before, so that there is something to draft."""

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int = 16,
        vocab_size: int = 256,
        eos_id: int = 0,
        eos_probability: float = 0.0,
        echo_probability: float = 0.0,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.num_steps = 0
        self._vocab_size = vocab_size
        self._eos_id = eos_id
        self._eos_below = int(eos_probability * (1 << 32))
        self._echo_from = int((1 - echo_probability) * (1 << 32))
        self._kv = np.full((num_blocks * block_size, 2), UNWRITTEN, np.int64)  # [num_slots, (token id, position)]

    def launch(self, batch: StepBatch, after: FakeStep | None = None) -> FakeStep:
        """It computes here, as a device would with what the step before left on it."""
        if batch.fed_samples is not None:
            assert after is not None
            batch.token_ids = after.made.token_ids[batch.fed_samples]
        return FakeStep(self.execute(batch))

    def execute(self, batch: StepBatch) -> StepTokens:
        self.num_steps += 1
        self._kv[batch.slot_mapping, 0] = batch.token_ids
        self._kv[batch.slot_mapping, 1] = batch.positions
        prefixes = [self._read_prefix(batch, int(row)) for row in batch.sample_rows]
        hashes = [_hash_prefix(batch, row, prefix) for row, prefix in zip(batch.sample_rows, prefixes, strict=True)]
        token_ids = [self._token_of(drawn, prefix) for drawn, prefix in zip(hashes, prefixes, strict=True)]
        sampling = batch.sampling
        if sampling is None:
            return StepTokens(np.array(token_ids, np.int64))
        masks = {} if sampling.masks is None else dict(zip(sampling.masks.rows, sampling.masks.wait(), strict=True))
        samples: list[int] = sampling.samples.tolist()
        for row, sample in enumerate(samples):
            hashes[sample] = _hash_row(hashes[sample], sampling, row)
        token_ids = np.array(
            [self._token_of(drawn, prefix) for drawn, prefix in zip(hashes, prefixes, strict=True)], np.int64
        )
        for row, sample in enumerate(samples):
            allowed = self._allowed(sampling, row, masks.get(row))
            if not allowed[token_ids[sample]]:
                token_ids[sample] = self._other_token(hashes[sample], allowed)
        return StepTokens(token_ids, self._logprobs(hashes, token_ids, sampling))

    def close(self) -> None:
        pass

    def _token_of(self, drawn: int, prefix: IntArray) -> int:
        if drawn & 0xFFFF_FFFF < self._eos_below:
            return self._eos_id
        if drawn & 0xFFFF_FFFF >= self._echo_from and len(prefix) >= ECHO_DISTANCE:
            echoed = int(prefix[-ECHO_DISTANCE, 0])
            if echoed not in (self._eos_id, UNWRITTEN):
                return echoed
        token_id = (drawn >> 32) % (self._vocab_size - 1)
        return token_id + 1 if token_id >= self._eos_id else token_id

    def _read_prefix(self, batch: StepBatch, row: int) -> IntArray:
        """[position of the row + 1, 2]: what the KV pool holds of its sequence up to there, by its block table."""
        seq = int(np.searchsorted(batch.query_start, row, side="right")) - 1
        positions = np.arange(int(batch.positions[row]) + 1)
        slots = batch.block_tables[seq, positions // self.block_size] * self.block_size + positions % self.block_size
        return self._kv[slots]

    def _allowed(self, sampling: SamplingRows, row: int, mask: BitArray | None) -> npt.NDArray[np.bool_]:
        """[vocab_size]"""
        allowed = np.ones(self._vocab_size, np.bool_)
        if mask is not None:
            allowed = np.unpackbits(mask.view(np.uint8), bitorder="little")[: self._vocab_size].astype(np.bool_)
        if sampling.banned_rows is not None and sampling.banned_ids is not None:
            allowed[sampling.banned_ids[sampling.banned_rows == row]] = False
        return allowed

    def _other_token(self, drawn: int, allowed: npt.NDArray[np.bool_]) -> int:
        ids = np.flatnonzero(allowed)
        ids = ids[ids != self._eos_id] if len(ids) > 1 else ids
        return int(ids[drawn % len(ids)])

    def _logprobs(self, hashes: list[int], token_ids: IntArray, sampling: SamplingRows) -> StepLogprobs | None:
        asked = np.flatnonzero(sampling.num_logprobs >= 0)
        if not len(asked):
            return None
        samples = sampling.samples[asked]
        drawn = np.array([hashes[sample] for sample in samples], np.uint64)
        if sampling.given is not None:
            drawn ^= np.maximum(sampling.given[asked], 0).astype(np.uint64)
        chosen = -(drawn % np.uint64(1000)).astype(np.float64) / 100
        ranks = np.arange(min(5, self._vocab_size))
        top_ids = (token_ids[samples, None] + ranks) % self._vocab_size
        return StepLogprobs(samples, sampling.num_logprobs[asked], chosen, top_ids, chosen[:, None] - ranks)


def _hash_prefix(batch: StepBatch, row: int, prefix: IntArray) -> int:
    digest = blake2b(prefix.tobytes(), digest_size=8)
    digest.update(np.array([batch.token_ids[row], batch.positions[row]], np.int64).tobytes())
    return int.from_bytes(digest.digest(), "little")


def _hash_row(drawn: int, sampling: SamplingRows, row: int) -> int:
    """The prefix's hash, and all that the sampler would read of this row to choose. A greedy row has no seed."""
    read = b""
    if sampling.temperature[row] > 0:
        whole = [sampling.choice[row], sampling.positions[row], sampling.top_k[row]]
        shares = [sampling.temperature[row], sampling.top_p[row], sampling.min_p[row]]
        read += sampling.seed[row].tobytes() + np.array(whole, np.int64).tobytes()
        read += np.array(shares, np.float32).tobytes()
    edits = sampling.edits
    if edits is not None:
        own = np.flatnonzero(edits.rows == row)
        own = own[np.argsort(edits.ids[own])]
        read += edits.ids[own].tobytes() + edits.factors[own].tobytes() + edits.terms[own].tobytes()
    if not read:
        return drawn
    return int.from_bytes(blake2b(drawn.to_bytes(8, "little") + read, digest_size=8).digest(), "little")
