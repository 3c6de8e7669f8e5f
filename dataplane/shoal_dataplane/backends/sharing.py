"""Weights that several instances use at once."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Generic, TypeVar

from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.backends.base import InstanceSpec

T = TypeVar("T")


class SharedModels(Generic[T]):
    """Loaded models by what they were loaded from, for as long as an instance holds them."""

    def __init__(self) -> None:
        self._loaded: weakref.WeakValueDictionary[Hashable, T] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()

    def get(self, key: Hashable, load: Callable[[], T], shareable: Callable[[T], bool] = lambda _: True) -> T:
        """Return the model under `key`, loading it when nobody holds it. Two threads that ask at once may both load; one of the
        two models is kept. A model that is not `shareable` is returned and not kept."""
        with self._lock:
            found = self._loaded.get(key)
        if found is not None:
            return found
        loaded = load()
        if not shareable(loaded):
            return loaded
        with self._lock:
            return self._loaded.setdefault(key, loaded)


def load_key(config: mc.ModelConfig, path: Path, instance: InstanceSpec) -> Hashable:
    """Return a key that is equal for two loads exactly when they would load the same: same configuration, file and device. A file
    that was written again in between is another file."""
    stat = path.stat()
    return (
        config.SerializeToString(deterministic=True),
        str(path),
        stat.st_ino,
        stat.st_mtime_ns,
        stat.st_size,
        instance.kind,
        instance.device_id,
    )
