"""onnxruntime-genai, one static batch. Arguments: the folder its model builder made, threads."""

from __future__ import annotations

import importlib
import itertools
import json
import sys
from typing import Any

from loadtest.race.contestants.frame import Clock, serve


def main() -> None:
    folder, threads = sys.argv[1:3]
    genai: Any = importlib.import_module("onnxruntime_genai")
    numpy: Any = importlib.import_module("numpy")
    config = genai.Config(folder)
    config.overlay(json.dumps({"model": {"decoder": {"session_options": {"intra_op_num_threads": int(threads)}}}}))
    model = genai.Model(config)

    def run(prompts: list[list[int]], max_tokens: int, clock: Clock) -> None:
        length = len(prompts[0]) + max_tokens
        params = genai.GeneratorParams(model)
        params.set_search_options(max_length=length, min_length=length, do_sample=False, batch_size=len(prompts))
        generator = genai.Generator(model, params)
        generator.append_tokens(numpy.array(prompts, dtype=numpy.int32))
        for _ in range(max_tokens):
            generator.generate_next_token()
            for i, token in enumerate(generator.get_next_tokens()):
                clock.note(i, [int(token)])

    def score(ids: list[int]) -> list[float]:
        params = genai.GeneratorParams(model)
        params.set_search_options(max_length=len(ids) + 1, do_sample=False, batch_size=1)
        generator = genai.Generator(model, params)
        logprobs: list[float] = []
        for token, following in itertools.pairwise(ids):
            generator.append_tokens(numpy.array([[token]], dtype=numpy.int32))
            logits = numpy.asarray(generator.get_logits(), dtype=numpy.float64).reshape(-1)
            peak = logits.max()
            logprobs.append(float(logits[following] - peak - numpy.log(numpy.exp(logits - peak).sum())))
        return logprobs

    serve(run, score)


if __name__ == "__main__":
    main()
