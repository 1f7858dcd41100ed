"""Our own engine, driven in this process. Its settings come by environment, as a worker's do."""

from __future__ import annotations

import base64
from collections.abc import Iterator

from loadtest.race.contestants.frame import Clock, serve
from shared.config import WorkerSettings, load
from shared.schemas import Prefix, Request, SamplingParams, TokensFrame
from shared.text.tokenizer import encode_blob
from worker.backends.interface import Engine
from worker.composition import build_engine


class Driven:
    """An engine and the number of its next job."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._job = 0

    def run(self, prompts: list[list[int]], max_tokens: int, clock: Clock) -> None:
        self._job += 1
        params = SamplingParams(max_tokens=max_tokens, seed=0, temperature=0.0, ignore_eos=True)
        for i, prompt in enumerate(prompts):
            self._add(i, prompt, params)
        for index, frame in self._frames():
            clock.note(index, frame.token_ids)

    def score(self, ids: list[int]) -> list[float]:
        """Each token is forced after what is before it; its logprob tells the model's own opinion of it."""
        self._job += 1
        logprobs = [0.0] * (len(ids) - 1)
        for i, token in enumerate(ids[1:]):
            forced = SamplingParams(max_tokens=1, seed=0, temperature=0.0, logit_bias=((token, 100.0),), logprobs=0)
            self._add(i, ids[: i + 1], forced)
        for index, frame in self._frames():
            if frame.logprobs:
                logprobs[index] = frame.logprobs[0].logprob
        return logprobs

    def _add(self, index: int, prompt: list[int], params: SamplingParams) -> None:
        revision = self._engine.card.revision
        request = Request(
            request_id=f"{self._job}-{index}", model=revision, prompt_ids=tuple(prompt), params=params
        )  # fmt: skip
        self._engine.add(request, [Prefix()])

    def _frames(self) -> Iterator[tuple[int, TokensFrame]]:
        while self._engine.has_work():
            for output in self._engine.step():
                index = int(output.request_id.partition("-")[2])
                yield from ((index, frame) for frame in output.frames if isinstance(frame, TokensFrame))


def main() -> None:
    engine = build_engine(load(WorkerSettings))
    driven = Driven(engine)
    serve(driven.run, driven.score, tokenizer=base64.b64encode(encode_blob(engine.tokenizer_blob)).decode())
    engine.close()


if __name__ == "__main__":
    main()
