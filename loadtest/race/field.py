"""Who races: a TOML file names each contestant's interpreter, module and arguments; ours are always there.

    [[contestant]]
    name = "llama.cpp Q8_0"
    python = "envs/llama/bin/python"
    module = "loadtest.race.contestants.llama_cpp"
    arguments = ["llama-server", "model-q8_0.gguf", "2", "uncached"]
    bits = 8.5                                  # of a weight, on average: what it is compared with
    environment = { OMP_NUM_THREADS = "2" }

Paths are taken from the file's folder. A contestant that does not start is named in the table, not passed over.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadtest.stack import child_environment

ROOT = Path(__file__).parents[2]
ANSWER_S = 300.0


@dataclass(frozen=True, slots=True)
class Entry:
    name: str
    bits: float
    argv: list[str]
    cwd: Path = ROOT
    settings: Mapping[str, object] = field(default_factory=dict[str, object])
    environment: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(slots=True)
class Run:
    """What one job gave: seconds after its start at which each token of each prompt was there."""

    times: list[list[float]]
    tokens: list[list[int]]

    @property
    def tokens_per_s(self) -> float:
        return sum(len(times) for times in self.times) / max(times[-1] for times in self.times)

    @property
    def decode_per_s(self) -> float:
        """Tokens after each first one, from the time when the last prompt had its first."""
        start = max(times[0] for times in self.times)
        late = sum(time > start for times in self.times for time in times)
        return late / max(1e-9, max(times[-1] for times in self.times) - start)

    @property
    def ttfts(self) -> list[float]:
        return [times[0] for times in self.times]

    @property
    def itls(self) -> list[float]:
        return [after - before for times in self.times for before, after in itertools.pairwise(times)]


class Contestant:
    """A process that answers jobs. Raises RuntimeError with the end of what it said when it does not start."""

    def __init__(self, entry: Entry, log: Path) -> None:
        self.entry = entry
        self._log = log
        environment = {**child_environment(entry.settings), "PYTHONPATH": str(ROOT), **entry.environment}
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                entry.argv, cwd=entry.cwd, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
            )
        self.greeting = self._read()

    def run(self, prompts: list[list[int]], max_tokens: int) -> Run:
        reply = self._ask({"prompts": prompts, "max_tokens": max_tokens})
        return Run(reply["times"], reply["tokens"])

    def score(self, ids: list[int]) -> list[float] | None:
        """Logprob of each token after the first; None where it cannot say."""
        return self._ask({"score": ids})["logprobs"]

    def stop(self) -> None:
        self._process.communicate()

    def _ask(self, job: dict[str, object]) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(job).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise RuntimeError(f"{self.entry.name} is gone") from error
        return self._read()

    def _read(self) -> dict[str, Any]:
        """One line. RuntimeError when the process ends, or says nothing in ANSWER_S; it is killed then."""
        assert self._process.stdout is not None
        overdue = threading.Timer(ANSWER_S, self._process.kill)
        overdue.start()
        line = self._process.stdout.readline()
        overdue.cancel()
        if not line:
            self.stop()
            raise RuntimeError(f"{self.entry.name} ended: {self._log.read_text(errors='replace')[-600:]}")
        return json.loads(line)


def ours(name: str, bits: float, *, served: bool, settings: Mapping[str, object]) -> Entry:
    """An entry of our own: whole and over HTTP, or the engine alone."""
    module = "loadtest.race.contestants." + ("served" if served else "engine")
    arguments = [json.dumps(dict(settings))] if served else []
    return Entry(name, bits, [sys.executable, "-m", module, *arguments], settings={} if served else settings)


def read_field(path: Path) -> list[Entry]:
    """The peers of a file. Raises OSError, KeyError, tomllib.TOMLDecodeError."""
    entries: list[Entry] = []
    for given in tomllib.loads(path.read_text())["contestant"]:
        argv = [str(path.parent / given["python"]), "-m", given["module"], *given.get("arguments", [])]
        entries.append(
            Entry(given["name"], given["bits"], argv, cwd=path.parent, environment=given.get("environment", {}))
        )
    return entries
