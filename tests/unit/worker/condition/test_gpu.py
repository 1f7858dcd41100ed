"""A GPU's figures through the seam of NVML. The stand-in is held to the real module, by name; no driver is needed."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from shared.observability import WorkerMetrics
from worker.condition.gpu import SLOWED_BY, Nvml, open_gpu
from worker.telemetry import Telemetry


class DriverError(Exception):
    """As the driver says that it does not know."""


@dataclass
class Driver:
    """One GPU, as NVML tells of it; `without_power`: it does not measure that."""

    slowed: int = 0
    without_power: bool = False
    NVMLError: type[Exception] = DriverError

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Any:
        if uuid != "GPU-1":
            raise DriverError("not found")
        return "handle"

    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any:
        return SimpleNamespace(gpu=37, memory=5)

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any:
        return SimpleNamespace(used=2 << 30, total=80 << 30, free=78 << 30)

    def nvmlDeviceGetPowerUsage(self, handle: Any) -> int:
        if self.without_power:
            raise DriverError("not supported")
        return 312_500

    def nvmlDeviceGetTemperature(self, handle: Any, sensor: int) -> int:
        return 61

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Any) -> int:
        return self.slowed


def figures(driver: Driver) -> dict[str, float]:
    gpu = open_gpu("cuda:1", driver, lambda _device: "GPU-1")
    assert gpu is not None
    return gpu.read()


def test_figures_are_in_base_units() -> None:
    found = figures(Driver(slowed=0x44 | 0x1))
    assert found["gpu_utilization_ratio"] == 0.37 and found["gpu_power_watts"] == 312.5
    assert (found["gpu_memory_used_bytes"], found["gpu_memory_total_bytes"]) == (2 << 30, 80 << 30)
    assert found["gpu_temperature_celsius"] == 61
    assert [name for name, value in found.items() if name.startswith("gpu_slowed") and value] == [
        "gpu_slowed_power_cap", "gpu_slowed_thermal_hardware",
    ]  # fmt: skip


def test_what_a_gpu_does_not_tell_is_left_out() -> None:
    found = figures(Driver(without_power=True))
    assert "gpu_power_watts" not in found and "gpu_temperature_celsius" in found


def test_without_a_gpu_a_driver_or_one_it_knows_there_is_nothing() -> None:
    assert open_gpu("cpu", Driver()) is None
    assert open_gpu("cuda", Driver(), lambda _device: "GPU-of-another-machine") is None


def test_every_figure_is_a_metric_with_its_device_and_without_one_there_is_none() -> None:
    metrics = WorkerMetrics(CollectorRegistry())
    telemetry = Telemetry(metrics)
    assert b"headrace_gpu_power_watts{" not in generate_latest(metrics.registry)
    telemetry.on_gpu("cuda:1", figures(Driver()))
    shown = generate_latest(metrics.registry)
    assert b'headrace_gpu_power_watts{device="cuda:1"} 312.5' in shown
    assert telemetry.gpu_figures().keys() == metrics.gpu.keys()


def test_the_real_module_has_what_is_used_of_it_by_the_same_arguments() -> None:
    for name, wanted in inspect.getmembers(Nvml, inspect.isfunction):
        if name.startswith("nvml"):
            real = list(inspect.signature(getattr(pynvml, name)).parameters.values())
            asked = len(inspect.signature(wanted).parameters) - 1
            assert len(real) >= asked and all(p.default is not p.empty for p in real[asked:]), name
    assert issubclass(pynvml.NVMLError, Exception)
    bits = ("SwPowerCap", "HwSlowdown", "SwThermalSlowdown", "HwThermalSlowdown", "HwPowerBrakeSlowdown")
    assert [getattr(pynvml, f"nvmlClocksEventReason{bit}") for bit in bits] == list(SLOWED_BY.values())


def test_where_the_library_finds_no_driver_there_is_nothing() -> None:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        assert open_gpu("cuda:0", None, lambda _device: "GPU-1") is None
    else:
        pytest.skip("this machine has a driver")
