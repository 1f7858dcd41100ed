"""A real Prometheus, where one is installed, with our rules and the targets of a run on this machine."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from loadtest.valkey import free_port
from tests.unit.deploy.observability.promql import PROMETHEUS, filled


class Scraper:
    """A Prometheus of our rules on a free port; it ends with the block. `rules`: a folder of other rules."""

    def __init__(self, folder: Path, targets: Mapping[str, Sequence[str]], rules: Path = PROMETHEUS / "rules") -> None:
        self._rules = rules
        self._folder, self._targets = folder, targets
        self._url = f"http://127.0.0.1:{free_port()}"

    def __enter__(self) -> Scraper:
        program = shutil.which("prometheus")
        if program is None:
            pytest.skip("PROMETHEUS IS NOT INSTALLED (Debian: prometheus): no panel was asked for data")
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [f"{self._rules}/*.yml"],
            "scrape_configs": [
                {"job_name": job, "static_configs": [{"targets": list(addresses)}]}
                for job, addresses in self._targets.items()
            ],
        }
        path = self._folder / "prometheus.yml"
        path.write_text(json.dumps(config))
        address = self._url.removeprefix("http://")
        command = [
            program, f"--config.file={path}", f"--storage.tsdb.path={self._folder}/tsdb",
            f"--web.listen-address={address}",
        ]  # fmt: skip
        self._log = (self._folder / "prometheus.log").open("w")
        self._process = subprocess.Popen(command, stdout=self._log, stderr=subprocess.STDOUT)
        while not self._is_ready():
            assert self._process.poll() is None, (self._folder / "prometheus.log").read_text()
            time.sleep(0.1)
        return self

    def _is_ready(self) -> bool:
        try:
            return httpx.get(f"{self._url}/-/ready", timeout=5).is_success
        except httpx.HTTPError:
            return False

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(20)
        self._log.close()

    def query(self, query: str) -> list[Any]:
        reply = httpx.get(f"{self._url}/api/v1/query", params={"query": filled(query)}, timeout=10).json()
        assert reply["status"] == "success", (query, reply)
        return [row for row in reply["data"]["result"] if row["value"][1] != "NaN"]

    def firing(self) -> set[str]:
        return {row["metric"]["alertname"] for row in self.query('ALERTS{alertstate="firing"}')}
