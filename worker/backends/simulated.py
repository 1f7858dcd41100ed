"""A backend without a model: the real scheduler and KV accounting, steps that cost what they are told to.

For load tests, chaos runs and gateways on machines that could not hold a model. Tokens depend on prompt, seed,
choice and position only (greedy ones not on the seed), so resumed and preempted requests can be compared word for
word. It ends by max_tokens, unless it is asked for an eos probability. It obeys min_tokens and constraints; having no
logits, it makes logprobs up, and penalties and biases change nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from weakref import WeakKeyDictionary

import numpy as np

from shared.errors import AdapterRefused
from shared.schemas import ModelCard, TokenLogprobs
from shared.text.tokenizer import Tokenizer, blob_digest
from worker.backends.interface import Engine
from worker.backends.simulated_text import SimulatedText, mix
from worker.engine.adapters import AdapterShelf, OpenedAdapter, digest_of
from worker.engine.engine import EngineCore
from worker.engine.executor import Computed, Launched, NewTokens, Schedule
from worker.engine.request import Sequence, Vocabulary
from worker.engine.scheduling.config import SchedulerConfig
from worker.engine.structured import Automata, BitArray

BLOCK_SIZE = 16
CREATED_S = 1_764_547_200  # the model is this file: every worker must register the same card


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedConfig:
    """A step costs `step_us`, and for each sequence and each token of a prefill what is said here."""

    name: str = "simulated"
    scheduling: SchedulerConfig = field(default_factory=SchedulerConfig)
    kv_cache_tokens: int = 65_536
    max_context: int = 8192
    prefill_us_per_token: float = 200.0
    step_us: float = 20_000.0
    step_us_per_seq: float = 0.0
    eos_probability: float = 0.0
    max_adapters: int = 0


@dataclass(frozen=True, slots=True)
class _SimulatedAdapter:
    digest: str

    def install(self, slot: int) -> None: ...


class SimulatedAdapters:
    """See AdapterSource. An adapter is a folder with a configuration; it changes nothing of what is said."""

    def open(self, path: str) -> OpenedAdapter:
        file = Path(path) / "adapter_config.json"
        try:
            return _SimulatedAdapter(digest_of((file.read_bytes(),)))
        except OSError as error:
            raise AdapterRefused(
                f"an adapter needs {file.name}; {file} cannot be read: {error.strerror}",
                param="path",
                code="adapter_not_found",
            ) from error

    def remove(self, slot: int) -> None: ...


class SimulatedExecutor:
    def __init__(self, config: SimulatedConfig, text: SimulatedText, sleep: Callable[[float], None]) -> None:
        self._config = config
        self._text = text
        self._sleep = sleep
        self._eos_below = int(config.eos_probability * (1 << 64))
        self._keys: WeakKeyDictionary[Sequence, int] = WeakKeyDictionary()

    def launch(self, schedule: Schedule, after: Launched | None = None) -> Launched:
        """It sleeps here: nothing runs ahead."""
        cost_us = self.cost_us(schedule)
        if cost_us > 0:
            self._sleep(cost_us / 1e6)
        token_ids = [self._next_token(sequence) for sequence in schedule.sampled]
        asked = enumerate(zip(schedule.sampled, token_ids, strict=True))
        logprobs = {
            index: self._logprobs(sequence, token_id)
            for index, (sequence, token_id) in asked
            if sequence.params.logprobs is not None
        }
        scored = {sequence: self._scores(sequence, count) for sequence, count in schedule.scored.items()}
        return Computed(NewTokens(token_ids, logprobs, dict(scored)))

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
        key, index, banned = self._key(sequence), sequence.num_generated_tokens, sequence.banned_ids
        if sequence.automaton is not None:
            allowed = _allowed_ids(sequence.automaton.mask())
            free = [token_id for token_id in allowed if token_id not in banned]
            return self._text.allowed_token(key, index, free or allowed)
        if self._eos_below and mix(mix(key) ^ index) < self._eos_below and self._text.eos_id not in banned:
            return self._text.eos_id
        return self._text.token(key, index)

    def _key(self, sequence: Sequence) -> int:
        key = self._keys.get(sequence)
        if key is None:
            key = self._keys[sequence] = _key_of(sequence)
        return key

    def _logprobs(self, sequence: Sequence, token_id: int) -> TokenLogprobs:
        """The likelier the lower the id's distance to the chosen one's."""
        drawn = mix(self._key(sequence) ^ sequence.num_generated_tokens)
        return self._made_up(drawn, token_id, sequence.params.logprobs or 0)

    def _scores(self, sequence: Sequence, count: int) -> list[TokenLogprobs]:
        """Of the prompt's next tokens: each by itself, the one before it and its position."""
        first, ids, num_rivals = sequence.num_scored_tokens, sequence.token_ids, sequence.params.prompt_logprobs or 0
        return [
            self._made_up(mix(mix(ids[position] + (position << 32)) ^ ids[position + 1]), ids[position + 1], num_rivals)
            for position in range(first, first + count)
        ]

    def _made_up(self, drawn: int, token_id: int, num_rivals: int) -> TokenLogprobs:
        logprob = -(drawn % 1000) / 1000
        rivals = [((token_id + rank) % self._text.vocab_size, logprob - rank) for rank in range(num_rivals)]
        return TokenLogprobs(logprob, tuple(rivals))


def build_simulated(config: SimulatedConfig, *, sleep: Callable[[float], None] = time.sleep) -> Engine:
    text = SimulatedText()
    blob = text.blob()
    scheduler = config.scheduling.build(num_blocks=config.kv_cache_tokens // BLOCK_SIZE + 1, block_size=BLOCK_SIZE)
    digest = blake2b(f"{blob_digest(blob)} {config.eos_probability}".encode(), digest_size=6).hexdigest()
    card = ModelCard(
        name=config.name,
        revision=f"{config.name}@{digest}",
        architecture="simulated",
        context_length=config.max_context,
        max_request_tokens=min(config.max_context, scheduler.kv.capacity_tokens),
        vocab_size=text.vocab_size,
        stop_token_ids=(text.eos_id,),
        tokenizer_digest=blob_digest(blob),
        created_s=CREATED_S,
    )
    tokenizer = Tokenizer.from_blob(blob)
    return EngineCore(
        card,
        blob,
        scheduler=scheduler,
        executor=SimulatedExecutor(config, text, sleep),
        vocabulary=Vocabulary(tokenizer.incremental, Automata.of_model(tokenizer, card).open),
        adapters=AdapterShelf(card, SimulatedAdapters(), config.max_adapters) if config.max_adapters else None,
    )


def _allowed_ids(mask: BitArray) -> list[int]:
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()


def _key_of(sequence: Sequence) -> int:
    """What names the answer: the prompt, and where sampling is random the seed and the choice."""
    prompt = sequence.token_ids[: sequence.num_prompt_tokens]
    drawn = (sequence.params.seed, sequence.choice) if sequence.params.temperature > 0 else ()
    return int.from_bytes(blake2b(repr((prompt, drawn)).encode(), digest_size=8).digest(), "little")
