"""Where a shelf of adapters gets them from: PEFT folders, checked against one model and put into its runner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from worker.engine.adapters import OpenedAdapter
from worker.model.families.model_config import ModelConfig
from worker.model.runner import AdapterRunner

if TYPE_CHECKING:
    from worker.model.lora.low_rank import LowRankAdapter


@dataclass(frozen=True, slots=True)
class _Opened:
    adapter: LowRankAdapter
    digest: str
    runner: AdapterRunner

    def install(self, slot: int) -> None:
        self.runner.install(slot, self.adapter)


class PeftFolders:
    """See AdapterSource."""

    def __init__(self, runner: AdapterRunner, config: ModelConfig, max_rank: int) -> None:
        self._runner = runner
        self._config = config
        self._max_rank = max_rank

    def open(self, path: str) -> OpenedAdapter:
        from worker.model.lora.peft_folder import read_adapter  # brings PyTorch

        adapter, digest = read_adapter(path, self._config, self._max_rank)
        return _Opened(adapter, digest, self._runner)

    def remove(self, slot: int) -> None:
        self._runner.remove(slot)
