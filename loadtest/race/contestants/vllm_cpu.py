"""vLLM on a CPU, its engine stepped in this process. Arguments: the folder, 'cached' or not.

Its environment needs VLLM_CPU_KVCACHE_SPACE=2 VLLM_ENABLE_V1_MULTIPROCESSING=0 VLLM_CPU_OMP_THREADS_BIND=0-1.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from loadtest.race.contestants.frame import Clock, serve


def main() -> None:
    folder, cache = sys.argv[1:3]
    vllm: Any = importlib.import_module("vllm")
    engine = vllm.LLM(
        model=folder, dtype="float32", max_model_len=1024, max_num_seqs=64, block_size=128,
        enable_prefix_caching=cache == "cached",
    ).llm_engine  # fmt: skip
    kind = importlib.import_module("vllm.sampling_params").RequestOutputKind.DELTA
    counter = iter(range(1_000_000_000))

    def run(prompts: list[list[int]], max_tokens: int, clock: Clock) -> None:
        params = vllm.SamplingParams(
            temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False, output_kind=kind
        )
        index_of: dict[str, int] = {}
        for i, prompt in enumerate(prompts):
            request_id = str(next(counter))
            index_of[request_id] = i
            engine.add_request(request_id, {"prompt_token_ids": prompt}, params)
        while engine.has_unfinished_requests():
            for output in engine.step():
                index = next(i for key, i in index_of.items() if output.request_id.startswith(key))
                clock.note(index, [int(token) for token in output.outputs[0].token_ids])

    def score(ids: list[int]) -> list[float]:
        params = vllm.SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0, output_kind=kind)
        engine.add_request(str(next(counter)), {"prompt_token_ids": ids}, params)
        told: list[Any] = []
        while engine.has_unfinished_requests():
            told += [output.prompt_logprobs for output in engine.step() if output.prompt_logprobs]
        return [of_position[token].logprob for token, of_position in zip(ids[1:], told[0][1:], strict=True)]

    serve(run, score)


if __name__ == "__main__":
    main()
