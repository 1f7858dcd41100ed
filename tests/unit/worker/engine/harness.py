"""Builds small engines over the FakeRunner, feeds them, and reads their frames as answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from shared.schemas import (
    EndFrame,
    EventFrame,
    Frame,
    ModelCard,
    Outcome,
    Prefix,
    Request,
    SamplingParams,
    TokenizerBlob,
    TokensFrame,
    prefixes_of,
)
from worker.backends.interface import Engine
from worker.engine.engine import EngineCore
from worker.engine.kv_cache_manager import CacheScope, KVCacheManager
from worker.engine.outputs import StepOutput
from worker.engine.request import Vocabulary
from worker.engine.scheduling.cost_model import Pace
from worker.engine.scheduling.forecast import GrowthForecast
from worker.engine.scheduling.foresight import Foresight
from worker.engine.scheduling.policies import POLICIES
from worker.engine.scheduling.scheduler import Scheduler
from worker.engine.scheduling.speculation import Speculation
from worker.engine.stats import Clock
from worker.model.fake_runner import FakeRunner
from worker.model.runner import Runner
from worker.model.sampling.table import is_plain
from worker.model.step_builder import RunnerExecutor, StepBuilder

VOCAB_SIZE = 128
EOS_ID = 0
BLOCK_SIZE = 4
MAX_TOKENS = 200


class LetterDecoder:
    """Every id is a letter, a to h: stop strings of letters come up often."""

    def push(self, token_id: int) -> str:
        return chr(ord("a") + token_id % 8)

    def flush(self) -> str:
        return ""


class NoForesight(GrowthForecast):
    """Every answer is expected to end at once: so the cache runs full."""

    def tokens_left(self, num_made: int) -> int:
        return 0


@dataclass
class FakeModel:
    """What the loader would return."""

    runner: Runner
    card: ModelCard
    tokenizer_blob: TokenizerBlob
    config: Any = None


def make_fake_runner(machine: Machine) -> Runner:
    return FakeRunner(
        num_blocks=machine.num_blocks,
        block_size=machine.block_size,
        vocab_size=VOCAB_SIZE,
        eos_id=EOS_ID,
        eos_probability=machine.eos_probability,
        echo_probability=machine.echo_probability,
    )


@dataclass(kw_only=True)
class Machine:
    """An engine and the parts a test looks into. `num_blocks` counts the scratch block."""

    num_blocks: int = 200
    block_size: int = BLOCK_SIZE
    max_num_seqs: int = 8
    max_step_tokens: int = 64
    watermark_blocks: int = 1
    eos_probability: float = 0.0
    echo_probability: float = 0.0
    max_drafts: int = 0
    foresees: bool = True
    overlaps: bool = False
    policy: str = "priority"
    scope: CacheScope = CacheScope.TENANT
    pace: Pace | None = None
    now_s: float = 0.0
    seconds: Callable[[], float] | None = None
    make_runner: Callable[[Machine], Runner] = make_fake_runner
    vocabulary: Vocabulary = field(default_factory=lambda: Vocabulary(lambda _: LetterDecoder()))
    engine: EngineCore = field(init=False)
    scheduler: Scheduler = field(init=False)

    def __post_init__(self) -> None:
        kv = KVCacheManager(
            num_blocks=self.num_blocks,
            block_size=self.block_size,
            watermark_blocks=self.watermark_blocks,
            scope=self.scope,
        )
        self.scheduler = Scheduler(
            kv,
            POLICIES[self.policy](),
            max_num_seqs=self.max_num_seqs,
            max_step_tokens=self.max_step_tokens,
            pace=self.pace,
            speculation=Speculation(self.max_drafts, is_plain) if self.max_drafts else None,
            foresight=Foresight(is_plain) if self.overlaps else None,
        )
        if not self.foresees:
            self.scheduler.forecast = NoForesight(self.block_size, kv.capacity_tokens)
        builder = StepBuilder(max_num_seqs=self.max_num_seqs, max_seq_tokens=MAX_TOKENS, block_size=self.block_size)
        self.engine = EngineCore(
            make_card(),
            TokenizerBlob(tokenizer_json="{}"),
            scheduler=self.scheduler,
            executor=RunnerExecutor(self.make_runner(self), builder),
            vocabulary=self.vocabulary,
            clock=Clock(unix_ms=lambda: 7, seconds=self.seconds or (lambda: self.now_s)),
        )


def make_card() -> ModelCard:
    return ModelCard(
        name="fake",
        revision="fake@0",
        architecture="fake",
        context_length=MAX_TOKENS,
        max_request_tokens=MAX_TOKENS,
        vocab_size=VOCAB_SIZE,
        stop_token_ids=(EOS_ID,),
        tokenizer_digest="0",
        created_s=0,
    )


def make_request(request_id: str = "r", prompt: Iterable[int] = (1, 2, 3, 4, 5), **params: Any) -> Request:
    """`params` go to the sampling parameters, but for a tenant and a service class."""
    own = {name: params.pop(name) for name in ("tenant", "service_class") if name in params}
    params = {"max_tokens": 8, "seed": 1, "temperature": 0.0} | params
    prompt_ids, sampling = tuple(prompt), SamplingParams(**params)
    return Request(request_id=request_id, model="fake@0", prompt_ids=prompt_ids, params=sampling, **own)


def start(engine: Engine, request: Request, journal: Iterable[Frame] = ()) -> None:
    """Add a request as a worker does: with the prefixes of its journal."""
    engine.add(request, prefixes_of(list(journal), request.params.n))


def drain(engine: Engine, max_steps: int = 20_000) -> dict[str, list[Frame]]:
    """Step until there is no work; the frames of each request."""
    journals: dict[str, list[Frame]] = {}
    for _ in range(max_steps):
        if not engine.has_work():
            return journals
        collect(engine.step(), journals)
    raise AssertionError(f"work left after {max_steps} steps")


def collect(outputs: list[StepOutput], journals: dict[str, list[Frame]]) -> None:
    for output in outputs:
        journals.setdefault(output.request_id, []).extend(output.frames)


def run_alone(request: Request, journal: Iterable[Frame] = (), *, eos_probability: float = 0.0) -> list[Frame]:
    machine = Machine(eos_probability=eos_probability)
    start(machine.engine, request, journal)
    return drain(machine.engine)[request.request_id]


def answers(frames: Iterable[Frame], n: int = 1) -> tuple[list[Prefix], EndFrame]:
    """What a client sees of a whole journal: each choice's ids, text and reason, and the end; but not how much of
    the prompt was found in the cache, which may differ between equal answers."""
    frames = list(frames)
    end = frames[-1]
    assert isinstance(end, EndFrame)
    assert sum(isinstance(frame, EndFrame) for frame in frames) == 1
    usage = end.usage and msgspec.structs.replace(end.usage, cached_tokens=0)
    return prefixes_of(frames, n), EndFrame(end.outcome, usage, end.error)


def cached_tokens(frames: Iterable[Frame]) -> int:
    (usage,) = [frame.usage for frame in frames if isinstance(frame, EndFrame)]
    assert usage is not None
    return usage.cached_tokens


def answer(frames: Iterable[Frame]) -> Prefix:
    """The only choice of a request that finished."""
    (choice,), end = answers(frames)
    assert end.outcome is Outcome.FINISHED
    return choice


def events(frames: Iterable[Frame]) -> list[str]:
    return [frame.name for frame in frames if isinstance(frame, EventFrame)]


def num_new_tokens(frames: Iterable[Frame]) -> int:
    return sum(len(frame.token_ids) for frame in frames if isinstance(frame, TokensFrame))


def check_blocks(scheduler: Scheduler) -> None:
    """A block's reference count is the number of tables that hold it; free + used = total; rows are distinct; what is
    promised is what is expected; and the cache: `check_cache`."""
    pool = scheduler.kv.pool
    held = Counter(block for sequence in scheduler.running for block in sequence.block_table)
    assert [held[block] for block in range(pool.total + 1)] == pool.references
    assert sorted([*pool.free_blocks(), *held]) == list(range(1, pool.total + 1))
    assert pool.num_free == len(pool.free_blocks())
    assert len({sequence.row for sequence in scheduler.running}) == len(scheduler.running)
    assert all(sequence.block_table == [] for sequence in scheduler.waiting)
    needed = scheduler.kv.blocks_needed
    assert all(len(sequence.block_table) <= needed(len(sequence.token_ids)) for sequence in scheduler.running)
    promised = sum(sequence.num_expected_blocks - len(sequence.block_table) for sequence in scheduler.running)
    assert scheduler.forecast.promised_blocks == promised
    assert all(sequence.num_expected_blocks >= len(sequence.block_table) for sequence in scheduler.running)
    check_cache(scheduler)


def check_cache(scheduler: Scheduler) -> None:
    """A block in two tables is full and computed in both, at one place, after equal tokens; a known block that a
    sequence holds has its tokens there."""
    size = scheduler.kv.block_size
    prefix_of: dict[int, list[int]] = {}
    for sequence in scheduler.running:
        for index, block in enumerate(sequence.block_table):
            end = (index + 1) * size
            known = scheduler.kv.cache.known_tokens(block)
            assert known in (None, sequence.token_ids[end - size : end])
            if known is not None or scheduler.kv.pool.references[block] > 1:
                assert end <= sequence.num_computed_tokens
                assert prefix_of.setdefault(block, sequence.token_ids[:end]) == sequence.token_ids[:end]
