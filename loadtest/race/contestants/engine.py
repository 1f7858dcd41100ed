"""Our own engine, driven in this process. Its settings come by environment, as a worker's do."""

from __future__ import annotations

import base64

from loadtest.race.contestants.frame import Clock, serve
from shared.config import WorkerSettings, load
from shared.schemas import Prefix, Request, SamplingParams, TokensFrame
from shared.text.tokenizer import encode_blob
from worker.composition import build_engine


def main() -> None:
    engine = build_engine(load(WorkerSettings))
    jobs = iter(range(1_000_000_000))

    def run(prompts: list[list[int]], max_tokens: int, clock: Clock) -> None:
        params = SamplingParams(max_tokens=max_tokens, seed=0, temperature=0.0, ignore_eos=True)
        job = next(jobs)
        for i, prompt in enumerate(prompts):
            request = Request(
                request_id=f"{job}-{i}", model=engine.card.revision, prompt_ids=tuple(prompt), params=params
            )
            engine.add(request, [Prefix()])
        while engine.has_work():
            for output in engine.step():
                index = int(output.request_id.partition("-")[2])
                for frame in output.frames:
                    if isinstance(frame, TokensFrame):
                        clock.note(index, frame.token_ids)

    serve(run, tokenizer=base64.b64encode(encode_blob(engine.tokenizer_blob)).decode())
    engine.close()


if __name__ == "__main__":
    main()
