"""NVML: every GPU with what it has, and silence where there is none."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from shoal_dataplane.telemetry.exposition import Figures
from shoal_dataplane.telemetry.gpu import Gpus, load_library

NOT_SUPPORTED = 3


class Library:
    """The calls of NVML, filling in what they are given by reference as the C library does."""

    def __init__(self, uuids: list[str], init: int = 0) -> None:
        self.uuids = uuids
        self.init = init
        self.inits = 0
        self.energy_mj = 5_000
        self.mig = False

    def nvmlInit_v2(self) -> int:
        self.inits += 1
        return self.init

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = len(self.uuids)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: ctypes.c_uint, device: Any) -> int:
        device._obj.value = index.value + 1
        return 0

    def nvmlDeviceGetUUID(self, device: ctypes.c_void_p, buffer: Any, size: ctypes.c_uint) -> int:
        assert device.value is not None
        assert size.value == len(buffer)
        buffer.value = self.uuids[device.value - 1].encode()
        return 0

    def nvmlDeviceGetUtilizationRates(self, device: ctypes.c_void_p, rates: Any) -> int:
        if self.mig:
            return NOT_SUPPORTED
        rates._obj.gpu, rates._obj.memory = 42, 7
        return 0

    def nvmlDeviceGetMemoryInfo(self, device: ctypes.c_void_p, memory: Any) -> int:
        memory._obj.total, memory._obj.free, memory._obj.used = 80 << 30, 50 << 30, 30 << 30
        return 0

    def nvmlDeviceGetPowerUsage(self, device: ctypes.c_void_p, milliwatts: Any) -> int:
        milliwatts._obj.value = 123_500
        return 0

    def nvmlDeviceGetPowerManagementLimit(self, device: ctypes.c_void_p, milliwatts: Any) -> int:
        milliwatts._obj.value = 700_000
        return 0

    def nvmlDeviceGetTotalEnergyConsumption(self, device: ctypes.c_void_p, millijoules: Any) -> int:
        millijoules._obj.value = self.energy_mj
        return 0


def table(figures: list[Figures]) -> dict[str, dict[str, float]]:
    return {family.name: dict(samples) for family, samples in figures if samples}


def test_each_gpu_has_its_figures_in_base_units() -> None:
    library = Library(["GPU-a", "GPU-b"])
    gpus = Gpus(lambda: library)
    first = table(gpus.read())
    for label in ('gpu_uuid="GPU-a"', 'gpu_uuid="GPU-b"'):
        assert {name: row[label] for name, row in first.items()} == {
            "nv_gpu_utilization": 0.42,
            "nv_gpu_memory_total_bytes": 80 << 30,
            "nv_gpu_memory_used_bytes": 30 << 30,
            "nv_gpu_power_usage": 123.5,
            "nv_gpu_power_limit": 700.0,
            "nv_energy_consumption": 0.0,
        }
    library.energy_mj += 2_500
    assert table(gpus.read())["nv_energy_consumption"] == {'gpu_uuid="GPU-a"': 2.5, 'gpu_uuid="GPU-b"': 2.5}
    assert library.inits == 1


def test_what_a_gpu_does_not_tell_is_left_out() -> None:
    library = Library(["MIG-a"])
    library.mig = True
    figures = table(Gpus(lambda: library).read())
    assert "nv_gpu_utilization" not in figures
    assert figures["nv_gpu_memory_used_bytes"] == {'gpu_uuid="MIG-a"': 30 << 30}


def test_energy_counts_on_from_zero_after_a_driver_s_restart() -> None:
    library = Library(["GPU-a"])
    gpus = Gpus(lambda: library)
    gpus.read()
    library.energy_mj = 1_000
    assert table(gpus.read())["nv_energy_consumption"] == {'gpu_uuid="GPU-a"': 1.0}


@pytest.mark.parametrize("library", [None, Library([]), Library(["GPU-a"], init=9)])
def test_without_a_driver_or_a_gpu_nothing_is_shown_and_nothing_is_tried_twice(library: Library | None) -> None:
    loads: list[int] = []

    def load() -> Library | None:
        loads.append(1)
        return library

    gpus = Gpus(load)
    assert table(gpus.read()) == table(gpus.read()) == {}
    assert len(loads) == 1


@pytest.mark.gpu
def test_a_real_gpu_is_shown() -> None:
    figures = table(Gpus(load_library).read())
    assert all(total > 1 << 28 for total in figures["nv_gpu_memory_total_bytes"].values())
    assert all("GPU-" in label or "MIG-" in label for label in figures["nv_gpu_memory_used_bytes"])
