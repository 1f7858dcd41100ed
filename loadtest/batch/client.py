"""A client of /v1/files and /v1/batches that goes on through restarts of what it talks to. Over plain HTTP."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx

ENDPOINT = "/v1/chat/completions"
OVER = ("completed", "failed", "expired", "cancelled")
_PAUSE_S = 0.2


def input_lines(number: int, prompt_words: int, max_tokens: int) -> Iterator[bytes]:
    """Lines that differ, each of about as many tokens as words and `max_tokens` say."""
    for i in range(number):
        words = " ".join(f"word{(i * 31 + n * 7) % 997}" for n in range(prompt_words))
        body = {
            "model": "simulated",
            "messages": [{"role": "user", "content": f"{i}: {words}"}],
            "max_tokens": max_tokens,
            "ignore_eos": True,
        }
        line = {"custom_id": f"line-{i}", "method": "POST", "url": ENDPOINT, "body": body}
        yield json.dumps(line).encode() + b"\n"


class BatchClient:
    """Reads are repeated while nobody answers; what is made is made once."""

    def __init__(self, base_url: str) -> None:
        self._http = httpx.Client(base_url=f"{base_url}/v1", timeout=30, trust_env=False)

    def close(self) -> None:
        self._http.close()

    def start(self, data: bytes) -> dict[str, Any]:
        """The batch of a file of lines."""
        reply = self._http.post("/files", data={"purpose": "batch"}, files={"file": ("lines.jsonl", data)})
        asked = {
            "input_file_id": reply.raise_for_status().json()["id"],
            "endpoint": ENDPOINT,
            "completion_window": "24h",
        }
        return self._http.post("/batches", json=asked).raise_for_status().json()

    def find(self, batch_id: str) -> dict[str, Any]:
        return self._get(f"/batches/{batch_id}").json()

    def until(self, batch_id: str, num_answered: int, limit_s: float) -> dict[str, Any]:
        """The batch when so many lines have answers, or it is over. Raises TimeoutError."""
        give_up = time.monotonic() + limit_s
        while time.monotonic() < give_up:
            batch = self.find(batch_id)
            counts = batch["request_counts"]
            if batch["status"] in OVER or counts["completed"] + counts["failed"] >= num_answered:
                return batch
            time.sleep(_PAUSE_S)
        raise TimeoutError(f"batch {batch_id} has not come to {num_answered} answers: {self.find(batch_id)}")

    def answers(self, file_id: str | None) -> list[dict[str, Any]]:
        return (
            []
            if file_id is None
            else [json.loads(line) for line in self._get(f"/files/{file_id}/content").iter_lines()]
        )

    def _get(self, path: str) -> httpx.Response:
        give_up = time.monotonic() + 60
        while True:
            try:
                return self._http.get(path).raise_for_status()
            except httpx.HTTPError:
                if time.monotonic() > give_up:
                    raise
                time.sleep(_PAUSE_S)
