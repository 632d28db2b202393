"""Sample the utilization of the GPUs by NVML while a program runs; without NVML there are no values."""

from __future__ import annotations

import threading
from typing import Any

EVERY_S = 0.1


class GpuWatch:
    """``with GpuWatch() as watch: ...`` and then ``watch.report()``: by GPU, share of time with a kernel running, power
    and memory in use.
    """

    def __init__(self) -> None:
        self._samples: list[list[tuple[float, float, float]]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> GpuWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        try:
            import pynvml as nvml

            nvml.nvmlInit()
        except Exception:  # no library, or no driver
            return
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        while not self._ended.wait(EVERY_S):
            self._samples.append([self._sample(nvml, handle) for handle in handles])

    @staticmethod
    def _sample(nvml: Any, handle: Any) -> tuple[float, float, float]:
        busy, power_mw = nvml.nvmlDeviceGetUtilizationRates(handle).gpu, nvml.nvmlDeviceGetPowerUsage(handle)
        return float(busy), power_mw / 1000, nvml.nvmlDeviceGetMemoryInfo(handle).used / 1e9

    def report(self) -> dict[str, Any]:
        """Utilization, power and memory by GPU; empty without samples."""
        if not self._samples:
            return {}
        gpus = []
        for samples in zip(*self._samples, strict=True):
            busy, power_w, memory_gb = zip(*samples, strict=True)
            mean = {"busy_pct": sum(busy) / len(busy), "power_w": sum(power_w) / len(power_w)}
            gpus.append({name: round(value) for name, value in mean.items()} | {"memory_gb": round(max(memory_gb), 1)})
        return {"gpus": gpus}
