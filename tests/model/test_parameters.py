"""Every sampling parameter on a real model's logits, in one crowded batch, against the same written plainly.

The tiny model in float64, so that only a wrong row, count or position can make a difference.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shared.schemas import ModelCard, Prefix, PromptFrame, SamplingParams
from tests.model.conftest import Load
from tests.model.reference import Reference
from tests.model.tiny_model import VOCAB, write_model
from tests.unit.worker.engine.harness import answers, drain, make_request, start
from worker.backends.native import compose_native
from worker.engine.scheduling.config import SchedulerConfig
from worker.model.runner import LoadedModel
from worker.model.sampling.draws import uniforms

EOS = 2
KINDS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.0, "presence_penalty": 2.0, "frequency_penalty": 0.7},
    {"temperature": 0.0, "repetition_penalty": 3.0},
    {"temperature": 0.0, "logit_bias": ((5, 4.0), (7, -100.0)), "frequency_penalty": 1.0},
    {"temperature": 0.0, "logit_bias": ((EOS, 50.0),), "min_tokens": 6},
    {"temperature": 0.8},
    {"temperature": 1.2, "min_p": 0.05},
    {"temperature": 1.0, "top_k": 4, "presence_penalty": 0.5},
    {"temperature": 1.0, "top_p": 0.7, "repetition_penalty": 1.4},
    {"temperature": 2.0, "min_p": 0.02, "top_p": 0.9, "top_k": 20, "frequency_penalty": 0.3, "logit_bias": ((3, 2.0),)},
]


@pytest.fixture(scope="module")
def model(load: Load, tmp_path_factory: pytest.TempPathFactory) -> tuple[LoadedModel, Reference]:
    folder: Path = write_model(tmp_path_factory.mktemp("tiny"))
    return load(folder, dtype="float64"), Reference(folder, torch.float64)


def plain_token(logits: torch.Tensor, prompt: list[int], made: list[int], params: SamplingParams) -> int:
    """One token, by the formulas."""
    scores = logits.double().numpy().copy()
    for token_id in {*prompt, *made}:
        factor = params.repetition_penalty
        scores[token_id] = scores[token_id] / factor if scores[token_id] > 0 else scores[token_id] * factor
    for token_id in set(made):
        scores[token_id] -= params.presence_penalty + params.frequency_penalty * made.count(token_id)
    for token_id, bias in params.logit_bias:
        scores[token_id] += bias
    if len(made) < params.min_tokens:
        scores[EOS] = -np.inf
    if params.temperature == 0:
        return int(scores.argmax())
    return plain_draw(scores / params.temperature, len(prompt) + len(made), params)


def plain_draw(scores: np.ndarray, position: int, params: SamplingParams) -> int:
    probs = np.exp(scores - scores.max())
    probs[probs < params.min_p] = 0
    order = np.argsort(-probs, kind="stable")
    if params.top_k:
        probs[order[params.top_k :]] = 0
    before = np.cumsum(probs[order]) - probs[order]
    probs[order[before >= params.top_p * probs.sum()]] = 0
    number = uniforms(np.array([params.seed], np.uint64), np.array([0]), np.array([position]))[0]
    is_cut = params.top_k > 0 or params.top_p < 1
    ranked = order if is_cut else np.arange(VOCAB)  # the sampler walks the likeliest first, or the ids
    return int(ranked[np.searchsorted(np.cumsum(probs[ranked]), number * probs.sum(), side="right")])


def plain_answer(reference: Reference, prompt: list[int], params: SamplingParams) -> tuple[int, ...]:
    made: list[int] = []
    while len(made) < params.max_tokens and EOS not in made:
        made.append(plain_token(reference.logits(prompt + made)[-1], prompt, made, params))
    return tuple(made)


def test_each_parameter_in_a_crowd_is_as_written_plainly(model: tuple[LoadedModel, Reference]) -> None:
    loaded, reference = model
    generator = np.random.default_rng(1)
    engine = compose_native(loaded, SchedulerConfig(max_num_seqs=16, max_step_tokens=20))
    requests = [
        make_request(
            str(i), prompt=generator.integers(3, VOCAB, 4 + 3 * i).tolist(), seed=i, **{"max_tokens": 24} | kind
        )
        for i, kind in enumerate(KINDS)
    ]
    for request in requests:
        start(engine, request)
    journals = drain(engine)
    for request in requests:
        (choice,), _ = answers(journals[request.request_id])
        assert choice.token_ids == plain_answer(reference, list(request.prompt_ids), request.params), request.params


def test_logprobs_are_the_references(model: tuple[LoadedModel, Reference]) -> None:
    loaded, reference = model
    engine = compose_native(loaded, SchedulerConfig(max_num_seqs=4, max_step_tokens=20))
    request = make_request(prompt=[5, 6, 7], max_tokens=8, temperature=1.0, logprobs=4, repetition_penalty=2.0)
    start(engine, request)
    frames = drain(engine)["r"]
    (choice,), _ = answers(frames)
    expected = torch.log_softmax(reference.logits([5, 6, 7, *choice.token_ids])[2:-1].double(), -1)
    told = [of for frame in frames for of in getattr(frame, "logprobs", None) or ()]
    for row, (token_id, of) in enumerate(zip(choice.token_ids, told, strict=False)):
        assert of.logprob == pytest.approx(float(expected[row, token_id]), abs=2e-6)
        assert [rival for rival, _ in of.top] == expected[row].topk(4).indices.tolist()
    assert len(told) >= 7


def test_logprobs_of_a_prompt_are_the_references(model: tuple[LoadedModel, Reference]) -> None:
    """In chunks that end anywhere, beside others that draw, edit and tell logprobs of their own."""
    loaded, reference = model
    engine = compose_native(loaded, SchedulerConfig(max_num_seqs=8, max_step_tokens=20))
    prompts = [np.random.default_rng(number).integers(3, VOCAB, 7 + 30 * number).tolist() for number in range(3)]
    for number, prompt in enumerate(prompts):
        kind = KINDS[number + 6] | {"seed": number, "max_tokens": 30}
        start(engine, make_request(f"other {number}", prompt=[5, 6, 7 + number], logprobs=1, **kind))
        start(engine, make_request(str(number), prompt=prompt, prompt_logprobs=4, max_tokens=2))
    journals = drain(engine)
    for number, prompt in enumerate(prompts):
        expected = torch.log_softmax(reference.logits(prompt).double(), -1)
        told = [of for frame in journals[str(number)] if isinstance(frame, PromptFrame) for of in frame.logprobs]
        assert len(told) == len(prompt) - 1
        for row, (token_id, of) in enumerate(zip(prompt[1:], told, strict=True)):
            assert of.logprob == pytest.approx(float(expected[row, token_id]), abs=2e-6)
            assert [rival for rival, _ in of.top] == expected[row].topk(4).indices.tolist()


def test_a_cut_journal_goes_on_as_if_it_had_not_been(model: tuple[LoadedModel, Reference]) -> None:
    loaded, _ = model
    engine = compose_native(loaded, SchedulerConfig(max_num_seqs=4, max_step_tokens=20))
    params: dict[str, Any] = {"max_tokens": 12, "seed": 4} | KINDS[-1]
    request = make_request(prompt=[5, 6, 7], **params)
    start(engine, request)
    (whole,), _ = answers(drain(engine)["r"])
    for cut in range(1, len(whole.token_ids)):
        decoder = loaded_text(loaded, whole.token_ids[:cut])
        engine.add(request, [Prefix(whole.token_ids[:cut], decoder)])
        (rest,), _ = answers(drain(engine)["r"])
        assert whole.token_ids[:cut] + rest.token_ids == whole.token_ids


def loaded_text(loaded: LoadedModel, token_ids: tuple[int, ...]) -> str:
    from shared.text.tokenizer import Tokenizer

    card: ModelCard = loaded.card
    assert max(token_ids) < card.vocab_size
    return Tokenizer.from_blob(loaded.tokenizer_blob).decode(list(token_ids))
