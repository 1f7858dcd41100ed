"""A Runner without a model, for tests of everything around one. No torch.

Its KV pool stores, for each slot, the token and the position written there. The next token is a hash of the whole
prefix as read back through the block table, so a wrong table, slot, position or row, a block given to two
sequences, or a prefix not computed changes the answer. With temperature above 0 the sampling parameters, the
choice and the new position go into the hash as well.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from worker.model.runner import IntArray, StepBatch

UNWRITTEN = -1


class FakeRunner:
    """`eos_id` comes with `eos_probability`, as the prefix decides, and never otherwise."""

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int = 16,
        vocab_size: int = 256,
        eos_id: int = 0,
        eos_probability: float = 0.0,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.num_steps = 0
        self._vocab_size = vocab_size
        self._eos_id = eos_id
        self._eos_below = int(eos_probability * (1 << 32))
        self._kv = np.full((num_blocks * block_size, 2), UNWRITTEN, np.int64)  # [num_slots, (token id, position)]

    def execute(self, batch: StepBatch) -> IntArray:
        self.num_steps += 1
        self._kv[batch.slot_mapping, 0] = batch.token_ids
        self._kv[batch.slot_mapping, 1] = batch.positions
        return np.array([self._next_token(batch, sample) for sample in range(len(batch.sample_seqs))], np.int64)

    def close(self) -> None:
        pass

    def _next_token(self, batch: StepBatch, sample: int) -> int:
        seq = int(batch.sample_seqs[sample])
        last = int(batch.query_start[seq + 1]) - 1
        digest = blake2b(self._read_prefix(batch, seq).tobytes(), digest_size=8)
        digest.update(np.array([batch.token_ids[last], batch.positions[last]], np.int64).tobytes())
        if batch.temperature[sample] > 0:
            chosen = [batch.seed[sample], batch.choice[sample], batch.sample_positions[sample], batch.top_k[sample]]
            digest.update(np.array(chosen, np.uint64).tobytes())
            digest.update(np.array([batch.temperature[sample], batch.top_p[sample]], np.float32).tobytes())
        drawn = int.from_bytes(digest.digest(), "little")
        if drawn & 0xFFFF_FFFF < self._eos_below:
            return self._eos_id
        token_id = (drawn >> 32) % (self._vocab_size - 1)
        return token_id + 1 if token_id >= self._eos_id else token_id

    def _read_prefix(self, batch: StepBatch, seq: int) -> npt.NDArray[np.int64]:
        """[seq_len, 2]: what the KV pool holds of the sequence, by its block table."""
        positions = np.arange(int(batch.seq_lens[seq]))
        slots = batch.block_tables[seq, positions // self.block_size] * self.block_size + positions % self.block_size
        return self._kv[slots]
