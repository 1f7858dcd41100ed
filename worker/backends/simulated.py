"""A backend without a model: the real scheduler and KV accounting, steps that cost what they are told to.

For load tests, chaos runs and gateways on machines that could not hold a model. Tokens depend on prompt, seed,
choice and position only (greedy ones not on the seed), so resumed and preempted requests can be compared word for
word. It ends by max_tokens, unless it is asked for an eos probability.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from weakref import WeakKeyDictionary

from shared.schemas import ModelCard
from shared.text.tokenizer import Tokenizer, blob_digest
from worker.backends.interface import Engine
from worker.backends.simulated_text import SimulatedText, mix
from worker.engine.engine import EngineCore
from worker.engine.executor import Schedule
from worker.engine.kv_cache_manager import KVCacheManager
from worker.engine.policies import FirstComeFirstServed
from worker.engine.request import Sequence
from worker.engine.scheduler import Scheduler

BLOCK_SIZE = 16
CREATED_S = 1_764_547_200  # the model is this file: every worker must register the same card


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedConfig:
    """A step costs `step_us`, and for each sequence and each token of a prefill what is said here."""

    name: str = "simulated"
    max_num_seqs: int = 32
    max_step_tokens: int = 256
    kv_cache_tokens: int = 65_536
    max_context: int = 8192
    prefill_us_per_token: float = 200.0
    step_us: float = 20_000.0
    step_us_per_seq: float = 0.0
    eos_probability: float = 0.0


class SimulatedExecutor:
    def __init__(self, config: SimulatedConfig, text: SimulatedText, sleep: Callable[[float], None]) -> None:
        self._config = config
        self._text = text
        self._sleep = sleep
        self._eos_below = int(config.eos_probability * (1 << 64))
        self._keys: WeakKeyDictionary[Sequence, int] = WeakKeyDictionary()

    def execute(self, schedule: Schedule) -> list[int]:
        cost_us = self.cost_us(schedule)
        if cost_us > 0:
            self._sleep(cost_us / 1e6)
        return [self._next_token(sequence) for sequence in schedule.sampled]

    def cost_us(self, schedule: Schedule) -> float:
        num_prefill_tokens = sum(num_tokens for num_tokens in schedule.chunks.values() if num_tokens > 1)
        return (
            self._config.step_us
            + self._config.step_us_per_seq * len(schedule.chunks)
            + self._config.prefill_us_per_token * num_prefill_tokens
        )

    def close(self) -> None:
        pass

    def _next_token(self, sequence: Sequence) -> int:
        key = self._keys.get(sequence)
        if key is None:
            key = self._keys[sequence] = _key_of(sequence)
        index = sequence.num_generated_tokens
        if self._eos_below and mix(mix(key) ^ index) < self._eos_below:
            return self._text.eos_id
        return self._text.token(key, index)


def build_simulated(config: SimulatedConfig, *, sleep: Callable[[float], None] = time.sleep) -> Engine:
    text = SimulatedText()
    blob = text.blob()
    kv = KVCacheManager(num_blocks=config.kv_cache_tokens // BLOCK_SIZE + 1, block_size=BLOCK_SIZE)
    digest = blake2b(f"{blob_digest(blob)} {config.eos_probability}".encode(), digest_size=6).hexdigest()
    card = ModelCard(
        name=config.name,
        revision=f"{config.name}@{digest}",
        architecture="simulated",
        context_length=config.max_context,
        max_request_tokens=min(config.max_context, kv.capacity_tokens),
        vocab_size=text.vocab_size,
        stop_token_ids=(text.eos_id,),
        tokenizer_digest=blob_digest(blob),
        created_s=CREATED_S,
    )
    return EngineCore(
        card,
        blob,
        scheduler=Scheduler(
            kv,
            FirstComeFirstServed(),
            max_num_seqs=config.max_num_seqs,
            max_step_tokens=config.max_step_tokens,
        ),
        executor=SimulatedExecutor(config, text, sleep),
        new_decoder=Tokenizer.from_blob(blob).incremental,
    )


def _key_of(sequence: Sequence) -> int:
    """What names the answer: the prompt, and where sampling is random the seed and the choice."""
    prompt = sequence.token_ids[: sequence.num_prompt_tokens]
    drawn = (sequence.params.seed, sequence.choice) if sequence.params.temperature > 0 else ()
    return int.from_bytes(blake2b(repr((prompt, drawn)).encode(), digest_size=8).digest(), "little")
