"""What the driver says of this worker's GPU: how busy, how full, how warm, and what slows it down.

By NVML (`nvidia-ml-py`), where it is installed and there is a driver; else there are no figures, and nothing is wrong.
A figure that a GPU does not have is left out. Read once a heartbeat, in a thread: a driver may take its time.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from typing import Any, Protocol, cast

log = logging.getLogger(__name__)

# Bits of NVML's clocks event reasons that cost speed: idling and clocks that somebody set are none.
SLOWED_BY = {
    "power_cap": 0x04,
    "hardware": 0x08,
    "thermal_software": 0x20,
    "thermal_hardware": 0x40,
    "power_brake": 0x80,
}
_CELSIUS = 0  # NVML_TEMPERATURE_GPU


class Nvml(Protocol):
    """What is used of the module `pynvml`, by its own names. Each raises NVMLError where a GPU does not have it."""

    NVMLError: type[Exception]

    def nvmlInit(self) -> None: ...
    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Any: ...
    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any:
        """`gpu`: percent of the last sample in which a kernel ran."""
        ...

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any:
        """`used` and `total`, bytes."""
        ...

    def nvmlDeviceGetPowerUsage(self, handle: Any) -> int:
        """Milliwatts."""
        ...

    def nvmlDeviceGetTemperature(self, handle: Any, sensor: int) -> int: ...
    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Any) -> int: ...


class Gpu:
    """`read` from any thread, one at a time."""

    def __init__(self, nvml: Nvml, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle

    def read(self) -> dict[str, float]:
        """`gpu_...` by name, in base units; of what slows it down 0 or 1. Without what this GPU does not tell."""
        nvml, handle = self._nvml, self._handle
        readings: tuple[Callable[[], dict[str, float]], ...] = (
            lambda: {"gpu_utilization_ratio": nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100},
            lambda: _memory(nvml.nvmlDeviceGetMemoryInfo(handle)),
            lambda: {"gpu_power_watts": nvml.nvmlDeviceGetPowerUsage(handle) / 1000},
            lambda: {"gpu_temperature_celsius": float(nvml.nvmlDeviceGetTemperature(handle, _CELSIUS))},
            lambda: _slowed(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
        )
        found: dict[str, float] = {}
        for reading in readings:
            try:
                found |= reading()
            except nvml.NVMLError:
                continue
        return found


def open_gpu(device: str, nvml: Nvml | None = None, uuid_of: Callable[[str], str] | None = None) -> Gpu | None:
    """The GPU of a torch device. None: it is none, there is no driver or no library, or the driver does not know it."""
    if not device.startswith("cuda"):
        return None
    nvml = nvml or _library()
    if nvml is None:
        return None
    try:
        nvml.nvmlInit()
        return Gpu(nvml, nvml.nvmlDeviceGetHandleByUUID((uuid_of or _uuid)(device)))
    except (nvml.NVMLError, AttributeError, RuntimeError) as error:
        log.warning("gpu_not_read", extra={"device": device, "error": str(error)})
        return None


def _library() -> Nvml | None:
    try:
        return cast(Nvml, importlib.import_module("pynvml"))
    except ImportError:
        return None


def _uuid(device: str) -> str:
    """Torch numbers the GPUs it may see, NVML all: their ids agree."""
    torch = importlib.import_module("torch")
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def _memory(info: Any) -> dict[str, float]:
    return {"gpu_memory_used_bytes": float(info.used), "gpu_memory_total_bytes": float(info.total)}


def _slowed(reasons: int) -> dict[str, float]:
    return {f"gpu_slowed_{name}": float(bool(reasons & bit)) for name, bit in SLOWED_BY.items()}
