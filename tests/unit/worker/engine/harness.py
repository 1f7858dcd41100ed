"""Builds small engines over the FakeRunner, feeds them, and reads their frames as answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

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
from worker.engine.kv_cache_manager import KVCacheManager
from worker.engine.outputs import StepOutput
from worker.engine.policies import FirstComeFirstServed
from worker.engine.scheduler import Scheduler
from worker.model.fake_runner import FakeRunner
from worker.model.runner import Runner
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


@dataclass
class FakeModel:
    """What the loader would return."""

    runner: Runner
    card: ModelCard
    tokenizer_blob: TokenizerBlob


@dataclass(kw_only=True)
class Machine:
    """An engine and the parts a test looks into. `num_blocks` counts the scratch block."""

    num_blocks: int = 200
    max_num_seqs: int = 8
    max_step_tokens: int = 64
    watermark_blocks: int = 1
    eos_probability: float = 0.0
    engine: EngineCore = field(init=False)
    scheduler: Scheduler = field(init=False)

    def __post_init__(self) -> None:
        kv = KVCacheManager(num_blocks=self.num_blocks, block_size=BLOCK_SIZE, watermark_blocks=self.watermark_blocks)
        self.scheduler = Scheduler(
            kv, FirstComeFirstServed(), max_num_seqs=self.max_num_seqs, max_step_tokens=self.max_step_tokens
        )
        runner = FakeRunner(
            num_blocks=self.num_blocks,
            block_size=BLOCK_SIZE,
            vocab_size=VOCAB_SIZE,
            eos_id=EOS_ID,
            eos_probability=self.eos_probability,
        )
        builder = StepBuilder(max_num_seqs=self.max_num_seqs, max_seq_tokens=MAX_TOKENS, block_size=BLOCK_SIZE)
        self.engine = EngineCore(
            make_card(),
            TokenizerBlob(tokenizer_json="{}"),
            scheduler=self.scheduler,
            executor=RunnerExecutor(runner, builder),
            new_decoder=LetterDecoder,
            now_ms=lambda: 7,
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
    params = {"max_tokens": 8, "seed": 1, "temperature": 0.0} | params
    return Request(request_id=request_id, model="fake@0", prompt_ids=tuple(prompt), params=SamplingParams(**params))


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
    """What a client sees of a whole journal: each choice's ids, text and reason, and the end."""
    frames = list(frames)
    end = frames[-1]
    assert isinstance(end, EndFrame)
    assert sum(isinstance(frame, EndFrame) for frame in frames) == 1
    return prefixes_of(frames, n), end


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
    """A block's reference count is the number of tables that hold it; free + used = total; rows are distinct."""
    pool = scheduler.kv.pool
    held = [block for sequence in scheduler.running for block in sequence.block_table]
    assert [held.count(block) for block in range(pool.total + 1)] == pool.references
    assert sorted([*pool.free_blocks(), *set(held)]) == list(range(1, pool.total + 1))
    assert pool.num_free == len(pool.free_blocks())
    assert len({sequence.row for sequence in scheduler.running}) == len(scheduler.running)
    assert all(sequence.block_table == [] for sequence in scheduler.waiting)
