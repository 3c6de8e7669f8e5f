"""Shared memory between the server and one worker process: anonymous, sealed segments whose descriptors travel with a message.

Nothing has a name in /dev/shm, so nothing stays behind when either side crashes: the kernel frees a segment with its last mapping.
Each side owns the segments it writes (`SegmentPool`) and maps those of its peer (`SegmentTable`). A segment holds the payload of one
message; it is written again only after the peer has said that nothing refers to it any more. A segment's id is never used twice.

A peer is not trusted with memory safety: a segment is sealed against shrinking, which is checked before it is mapped, because a read
beyond the end of a shrunk file would kill the reader with SIGBUS.
"""

from __future__ import annotations

import mmap
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np

INLINE_LIMIT = 64 << 10
"""Bytes: a payload up to this is part of the message, a larger one lies in a segment."""
POOL_LIMIT = 256 << 20
"""Bytes of free segments that one side keeps for later messages."""
MAX_SEGMENTS = 4096
"""Segments that a peer may have at once; more is a fault of the peer."""


class SegmentError(Exception):
    """The peer sent a segment that cannot be used, or named one that does not exist."""


if sys.platform == "linux":
    import fcntl

    _SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL

    def _create(capacity: int) -> int:
        fd = os.memfd_create("shoal", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.posix_fallocate(fd, 0, capacity)  # an error now, not SIGBUS at the first write
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _check_sealed(fd: int) -> None:
        if not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            raise SegmentError("a shared memory segment is not sealed against shrinking")

else:
    import tempfile

    def _create(capacity: int) -> int:
        with tempfile.TemporaryFile() as file:
            file.truncate(capacity)
            return os.dup(file.fileno())

    def _check_sealed(fd: int) -> None:
        """There are no seals on this platform."""


def _map(fd: int, capacity: int, writable: bool) -> mmap.mmap:
    access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
    if sys.version_info >= (3, 13):
        return mmap.mmap(fd, capacity, access=access, trackfd=False)
    return mmap.mmap(fd, capacity, access=access)


def _capacity(size: int) -> int:
    """Round up so that payloads of similar size share a segment: at most an eighth is wasted above 512 KiB."""
    step = 1 << max(16, size.bit_length() - 4)
    return -(-size // step) * step


class Segment:
    """Memory of this side. `fd` is to be sent with the first message that uses the segment, and -1 after that."""

    __slots__ = ("capacity", "fd", "id", "memory")

    def __init__(self, id: int, capacity: int) -> None:
        self.id = id
        self.capacity = capacity
        self.fd = _create(capacity)
        try:
            self.memory = _map(self.fd, capacity, writable=True)
        except BaseException:
            os.close(self.fd)
            raise

    def take_fd(self) -> int:
        """The descriptor, which is now the caller's to close; -1 when the peer has it already."""
        fd, self.fd = self.fd, -1
        return fd


class SegmentPool:
    """The segments that this side writes. Thread-safe. Free segments are kept up to `limit` bytes."""

    def __init__(self, limit: int = POOL_LIMIT) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._all: dict[int, Segment] = {}
        self._free: dict[int, Segment] = {}  # in the order of their release
        self._free_bytes = 0
        self._dropped: list[int] = []
        self._next_id = 1

    def acquire(self, size: int) -> Segment:
        """Return a segment of at least `size` bytes. Raises OSError when the system has no memory for a new one."""
        with self._lock:
            fitting = [segment for segment in self._free.values() if size <= segment.capacity]
            if fitting:
                segment = min(fitting, key=lambda segment: segment.capacity)
                del self._free[segment.id]
                self._free_bytes -= segment.capacity
                return segment
            segment = Segment(self._next_id, _capacity(size))
            self._next_id += 1
            self._all[segment.id] = segment
            return segment

    def release(self, ids: Iterable[int]) -> None:
        """The peer refers to these no more. Ids that are not in use are ignored: the peer may say anything."""
        with self._lock:
            for id in ids:
                segment = self._all.get(id)
                if segment is not None and id not in self._free:
                    self._free[id] = segment
                    self._free_bytes += segment.capacity
            self._shrink(self._limit)

    def trim(self) -> None:
        """Give the free segments back to the system."""
        with self._lock:
            self._shrink(0)

    def _shrink(self, limit: int) -> None:
        while self._free_bytes > limit:
            id = next(iter(self._free))
            segment = self._free.pop(id)
            del self._all[id]
            self._free_bytes -= segment.capacity
            self._dropped.append(id)

    def take_dropped(self, most: int) -> list[int]:
        """Up to `most` ids of segments that are gone, for the peer to unmap."""
        if not self._dropped:
            return []
        with self._lock:
            taken, self._dropped = self._dropped[:most], self._dropped[most:]
            return taken

    def segments(self) -> int:
        """Segments in use or kept."""
        return len(self._all)

    def close(self) -> None:
        """Unmap all. The peer's own mappings stay valid until it unmaps them."""
        with self._lock:
            for segment in self._all.values():
                if segment.fd >= 0:
                    os.close(segment.take_fd())
            self._all.clear()
            self._free.clear()
            self._free_bytes = 0


class SegmentTable:
    """The peer's segments, mapped here. Thread-safe."""

    def __init__(self, writable: bool) -> None:
        self._writable = writable
        self._maps: dict[int, mmap.mmap] = {}
        self._leases: dict[int, weakref.ref[np.ndarray[Any, Any]]] = {}
        self._released: deque[int] = deque()

    def attach(self, id: int, capacity: int, fd: int) -> None:
        """Map a segment and close `fd`. Raises SegmentError for one that is not what the message says."""
        try:
            if id in self._maps or len(self._maps) >= MAX_SEGMENTS:
                raise SegmentError(f"shared memory segment {id} is one too many ({len(self._maps)} are mapped)")
            _check_sealed(fd)
            if capacity < 1 or os.fstat(fd).st_size < capacity:
                raise SegmentError(
                    f"shared memory segment {id} has {os.fstat(fd).st_size} bytes, the message says {capacity}"
                )
            self._maps[id] = _map(fd, capacity, self._writable)
        except OSError as error:
            raise SegmentError(f"shared memory segment {id} cannot be mapped: {error}") from error
        finally:
            os.close(fd)

    def lease(self, id: int, size: int) -> memoryview:
        """Return the first `size` bytes. When the last view of them is gone, the segment's id is in `take_released`.

        Raises SegmentError for a segment that is unknown, too small, or still referred to.
        """
        memory = self._maps.get(id)
        if memory is None or size > len(memory):
            raise SegmentError(f"no shared memory segment {id} of {size} bytes")
        if id in self._leases:
            raise SegmentError(f"shared memory segment {id} is still in use")
        array = np.frombuffer(memory, np.uint8, size)
        # numpy keeps `array` as the base of every view of it, and a memoryview keeps it too: its end is the end of all of them.
        self._leases[id] = weakref.ref(array, partial(self._ended, id))
        return array.data

    def _ended(self, id: int, _: weakref.ref[np.ndarray[Any, Any]]) -> None:
        # May run anywhere, in the middle of anything: nothing but what is atomic.
        self._leases.pop(id, None)
        self._released.append(id)

    def take_released(self, most: int) -> list[int]:
        """Up to `most` ids of segments that nothing here refers to any more, for the peer to write again."""
        released = self._released
        return [released.popleft() for _ in range(min(most, len(released)))] if released else []

    def drop(self, ids: Iterable[int]) -> None:
        """The peer has given these up: unmap them, once nothing refers to them."""
        for id in ids:
            self._maps.pop(id, None)

    def segments(self) -> int:
        """Segments mapped."""
        return len(self._maps)

    def close(self) -> None:
        """Unmap all, each once nothing refers to it."""
        self._maps.clear()
