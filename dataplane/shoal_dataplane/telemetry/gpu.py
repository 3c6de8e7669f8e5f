"""Figures of NVIDIA GPUs, from the driver's own library (NVML): no package needed, nothing shown where there is no driver.

The library is loaded at the first scrape that wants GPUs. It makes no CUDA context and takes no GPU memory. Every GPU that the
driver shows to this container is listed; a figure that a GPU does not have (utilisation of a MIG device) is left out for it.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from typing import Any

from shoal_dataplane.telemetry.exposition import Family, Figures, label_pairs

logger = logging.getLogger(__name__)

LIBRARY = "libnvidia-ml.so.1"

UTILIZATION = Family("nv_gpu_utilization", "gauge", "GPU utilization rate [0.0 - 1.0)")
MEMORY_TOTAL = Family("nv_gpu_memory_total_bytes", "gauge", "GPU total memory, in bytes", "bytes")
MEMORY_USED = Family("nv_gpu_memory_used_bytes", "gauge", "GPU used memory, in bytes", "bytes")
POWER_USAGE = Family("nv_gpu_power_usage", "gauge", "GPU power usage in watts")
POWER_LIMIT = Family("nv_gpu_power_limit", "gauge", "GPU power management limit in watts")
ENERGY = Family("nv_energy_consumption", "counter", "GPU energy consumption in joules since the Triton Server started")

FAMILIES = (UTILIZATION, MEMORY_TOTAL, MEMORY_USED, POWER_USAGE, POWER_LIMIT, ENERGY)

UUID_BYTES = 96
SUCCESS = 0


class _Utilization(ctypes.Structure):
    """nvmlUtilization_t: per cent of the last sample period in which a kernel ran, in which memory was moved."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    """nvmlMemory_t, in bytes."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def load_library() -> Any:
    """Return NVML, or None where the driver is not installed."""
    try:
        return ctypes.CDLL(LIBRARY)
    except OSError:
        return None


class Gpus:
    """The GPUs of this machine. Not thread-safe: see machine.Sampled."""

    def __init__(self, load: Callable[[], Any] = load_library) -> None:
        self._load = load
        self._nvml: Any = None
        self._devices: list[tuple[str, Any]] | None = None
        self._energy_at_start: dict[str, int] = {}

    def read(self) -> list[Figures]:
        """Return the `nv_gpu_*` families and `nv_energy_consumption`; none without a GPU."""
        if self._devices is None:
            self._devices = self._open()
        rows: dict[Family, list[tuple[str, float]]] = {family: [] for family in FAMILIES}
        for uuid, device in self._devices:
            labels = label_pairs({"gpu_uuid": uuid})
            for family, value in self._device(uuid, device):
                rows[family].append((labels, value))
        return list(rows.items())

    def _open(self) -> list[tuple[str, Any]]:
        """The GPUs by their UUID. Asked once: a driver that comes later needs a restart."""
        nvml = self._load()
        if nvml is None:
            return []
        status = nvml.nvmlInit_v2()
        if status != SUCCESS:
            logger.warning("no GPU metrics: NVML could not be initialised (status %d)", status)
            return []
        self._nvml = nvml
        count = ctypes.c_uint()
        if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != SUCCESS:
            return []
        devices = []
        for index in range(count.value):
            device = ctypes.c_void_p()
            uuid = ctypes.create_string_buffer(UUID_BYTES)
            if nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(device)) != SUCCESS:
                continue
            if nvml.nvmlDeviceGetUUID(device, uuid, ctypes.c_uint(UUID_BYTES)) != SUCCESS:
                continue
            devices.append((uuid.value.decode("ascii", "replace"), device))
        return devices

    def _device(self, uuid: str, device: Any) -> list[tuple[Family, float]]:
        nvml = self._nvml
        figures: list[tuple[Family, float]] = []
        utilization = _Utilization()
        if nvml.nvmlDeviceGetUtilizationRates(device, ctypes.byref(utilization)) == SUCCESS:
            figures.append((UTILIZATION, utilization.gpu / 100))
        memory = _Memory()
        if nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)) == SUCCESS:
            figures += [(MEMORY_TOTAL, memory.total), (MEMORY_USED, memory.used)]
        milliwatts = ctypes.c_uint()
        if nvml.nvmlDeviceGetPowerUsage(device, ctypes.byref(milliwatts)) == SUCCESS:
            figures.append((POWER_USAGE, milliwatts.value / 1000))
        if nvml.nvmlDeviceGetPowerManagementLimit(device, ctypes.byref(milliwatts)) == SUCCESS:
            figures.append((POWER_LIMIT, milliwatts.value / 1000))
        millijoules = ctypes.c_ulonglong()
        if nvml.nvmlDeviceGetTotalEnergyConsumption(device, ctypes.byref(millijoules)) == SUCCESS:
            start = self._energy_at_start.setdefault(uuid, millijoules.value)
            if millijoules.value < start:  # the driver was reloaded and counts from 0 again
                start = self._energy_at_start[uuid] = 0
            figures.append((ENERGY, (millijoules.value - start) / 1000))
        return figures
