"""OpenVINO GenAI with its continuous batching. Arguments: the model (a GGUF or a folder), threads, 'cached' or not."""

from __future__ import annotations

import importlib
import sys
import time
from typing import Any

from loadtest.race.contestants.frame import Clock, serve


def main() -> None:
    model, threads, cache = sys.argv[1:4]
    genai: Any = importlib.import_module("openvino_genai")
    openvino: Any = importlib.import_module("openvino")
    numpy: Any = importlib.import_module("numpy")
    scheduling = genai.SchedulerConfig()
    scheduling.cache_size = 2
    scheduling.max_num_batched_tokens = 512
    scheduling.max_num_seqs = 64
    scheduling.enable_prefix_caching = cache == "cached"
    scheduling.dynamic_split_fuse = True
    properties = {"INFERENCE_NUM_THREADS": int(threads), "PERFORMANCE_HINT": "LATENCY", "CACHE_DIR": ""}
    pipeline = genai.LLMPipeline(model, "CPU", scheduler_config=scheduling, **properties)
    config = genai.GenerationConfig()
    config.do_sample = False
    config.ignore_eos = True

    def run(prompts: list[list[int]], max_tokens: int, clock: Clock) -> None:
        """One call for all: it says when each token came for one prompt only, and as a duration each."""
        config.max_new_tokens = max_tokens
        ids = numpy.array(prompts, dtype=numpy.int64)
        inputs = genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(numpy.ones_like(ids)))
        result = pipeline.generate(inputs, config)
        raw = result.perf_metrics.raw_metrics
        firsts = [float(ms) / 1000 for ms in raw.m_times_to_first_token]
        steps = [float(us) / 1e6 for us in raw.token_infer_durations]
        clock.tokens = [[int(token) for token in tokens] for tokens in result.tokens]
        times = _times(firsts, steps, max_tokens, total_s=time.perf_counter() - clock.started)
        clock.times = [list(times) for _ in prompts]

    def score(ids: list[int]) -> list[float]:
        """By the pipeline below the one that races: only it says the logprobs of a prompt."""
        scoring = genai.ContinuousBatchingPipeline(model, scheduling, "CPU")
        asked = genai.GenerationConfig(max_new_tokens=1, echo=True, logprobs=1, do_sample=False)
        handle = scoring.add_request(0, openvino.Tensor(numpy.array([ids], dtype=numpy.int64)), asked)
        while scoring.has_non_finished_requests():
            scoring.step()
        return [float(logprob) for logprob in handle.read_all()[0].generated_log_probs[1 : len(ids)]]

    serve(run, score)


def _times(firsts: list[float], steps: list[float], max_tokens: int, *, total_s: float) -> list[float]:
    """From the end backwards, so that the last token is there when the call returned."""
    decode = steps[-(max_tokens - 1) :] if max_tokens > 1 else []
    if len(decode) < max_tokens - 1:
        first = firsts[0] if firsts else total_s / max_tokens
        decode = [(total_s - first) / (max_tokens - 1)] * (max_tokens - 1)
    times = [total_s]
    for step in reversed(decode):
        times.append(times[-1] - step)
    return times[::-1]


if __name__ == "__main__":
    main()
