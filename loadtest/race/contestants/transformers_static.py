"""transformers, one static batch in fp32: what people begin with. Arguments: the folder, threads."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from loadtest.race.contestants.frame import Clock, serve


def main() -> None:
    folder, threads = sys.argv[1:3]
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    torch.set_num_threads(int(threads))
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="sdpa"
    ).eval()

    def run(prompts: list[list[int]], max_tokens: int, clock: Clock) -> None:
        with torch.inference_mode():
            ids, past = torch.tensor(prompts), None
            for _ in range(max_tokens):
                output = model(input_ids=ids, past_key_values=past, use_cache=True, logits_to_keep=1)
                past = output.past_key_values
                ids = output.logits[:, -1].argmax(-1, keepdim=True)
                for i, token in enumerate(ids[:, 0].tolist()):
                    clock.note(i, [token])

    def score(ids: list[int]) -> list[float]:
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([ids])).logits[0, :-1].double()
            return torch.log_softmax(logits, -1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()

    serve(run, score)


if __name__ == "__main__":
    main()
