"""Frames over a Unix stream socket, with large payloads in shared memory: how a server and its worker process talk.

A frame is a 32-byte header, the ids of segments that the sender needs no more (released, dropped), a head (see execution.wire) and a
payload (tensors). On the socket, little-endian:

    kind u8 | flags u8 | released u16 | dropped u16 | 0 u16 | head u32 | segment u32 | payload u64 | capacity u64
    released x u32, dropped x u32 | head | padding to 8 bytes | payload

A payload above `INLINE_LIMIT` lies in a segment instead, and so does, behind it, a head that is too long; a segment's descriptor
comes with the first frame that uses it. So a frame takes a bounded part of the socket's buffer, usually one system call on each side, and
a receiver needs no more than one fixed buffer. A stream, not SEQPACKET: as fast, and not bounded by net.core.wmem_max.

Every frame of a peer is checked; one that lies raises WireError, and its reader ends the connection.
"""

from __future__ import annotations

import array
import contextlib
import enum
import os
import socket
import struct
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from shoal_dataplane.core.tensors import Buffer
from shoal_dataplane.execution.shm import INLINE_LIMIT, SegmentError, SegmentPool, SegmentTable

HEADER: Final = struct.Struct("<BBHHHIIQQ")
MAX_IDS: Final = 1024
MAX_FDS: Final = 32
_BUFFER = 256 << 10
_MAX_BODY = 2 * INLINE_LIMIT + 8 * MAX_IDS + 8
_SHARED_PAYLOAD, _SHARED_HEAD, _NEW_SEGMENT = 1, 2, 4
_ANCILLARY = socket.CMSG_SPACE(MAX_FDS * array.array("i").itemsize)
_PADDING = [bytes(count) for count in range(8)]

if sys.platform == "linux":
    _RECEIVE_FLAGS = int(socket.MSG_CMSG_CLOEXEC)
else:
    _RECEIVE_FLAGS = 0


class WireError(Exception):
    """The peer sent something that is not a frame, or a frame that does not hold what it says."""


class Kind(enum.IntEnum):
    """What a frame is. Data channel: LOAD, EXECUTE, CLOSE to the worker, ANSWER back; all others go over the control channel."""

    LOAD = 1
    EXECUTE = 2
    ANSWER = 3
    CLOSE = 4
    LOADED = 5
    LOAD_FAILED = 6
    CANCEL = 7
    LOG = 8
    INFER = 9
    INFER_CANCEL = 10
    INFER_RESULT = 11
    CALL = 12
    CALL_RESULT = 13
    READY_CHECK = 14
    READY_RESULT = 15
    TRIM = 16


class Frame(NamedTuple):
    """One message. `payload` is a view of memory that lives as long as any view of it."""

    kind: int
    head: bytes
    payload: memoryview


class Channel:
    """One end of a connection. `send` from any thread, `receive` from one."""

    def __init__(self, sock: socket.socket, pool: SegmentPool, table: SegmentTable, *, writable: bool) -> None:
        """`writable`: may the receiver write into a payload that came inside a message?"""
        self.sock = sock
        self._pool = pool
        self._table = table
        self._memory: type[bytes] | type[bytearray] = bytearray if writable else bytes
        self._send_lock = threading.Lock()
        self._buffer = memoryview(bytearray(_BUFFER))
        self._end = 0
        self._fds: deque[int] = deque()

    # -- sending

    def send(self, kind: int, head: bytes = b"", parts: Sequence[Buffer] = (), size: int = 0) -> None:
        """Send a frame whose payload is `parts`, `size` bytes in all. Blocks while the peer's buffer is full.

        Raises OSError when the peer is gone, or when there is no memory for a segment (then nothing was sent).
        """
        data, fd = self.pack(kind, head, parts, size)
        with self._send_lock:
            try:
                sent = self.write(data, fd)
                if sent < len(data):
                    self.sock.sendall(memoryview(data)[sent:])
            finally:
                if fd >= 0:
                    os.close(fd)

    def write(self, data: Buffer, fd: int, flags: int = 0) -> int:
        """One system call: send what fits, with a descriptor unless it is -1."""
        if fd < 0:
            return self.sock.send(data, flags)
        return self.sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))], flags)

    def pack(self, kind: int, head: bytes, parts: Sequence[Buffer], size: int) -> tuple[bytes, int]:
        """Return the frame as it goes over the socket, and the descriptor to go with it (the caller's to close) or -1."""
        length = len(head)
        if size <= INLINE_LIMIT and length <= INLINE_LIMIT:
            released, dropped, ids = self._take_ids()
            header = HEADER.pack(kind, 0, released, dropped, 0, length, 0, size, 0)
            return b"".join((header, ids, head, _PADDING[-(len(ids) + length) & 7], *parts)), -1
        return self._pack_shared(kind, head, parts, size)

    def _pack_shared(self, kind: int, head: bytes, parts: Sequence[Buffer], size: int) -> tuple[bytes, int]:
        flags = _SHARED_PAYLOAD
        length = len(head)
        total = size
        if length > INLINE_LIMIT:
            flags |= _SHARED_HEAD
            total = size + (-size & 7) + length
        segment = self._pool.acquire(total)
        memory = segment.memory
        at = 0
        try:
            for part in parts:
                end = at + len(part)
                memory[at:end] = part
                at = end
        except BaseException:
            self._pool.release([segment.id])
            raise
        if flags & _SHARED_HEAD:
            memory[total - length : total] = head
            head = b""
        fd = segment.take_fd()
        if fd >= 0:
            flags |= _NEW_SEGMENT
        released, dropped, ids = self._take_ids()
        header = HEADER.pack(kind, flags, released, dropped, 0, length, segment.id, size, segment.capacity)
        return b"".join((header, ids, head, _PADDING[-(len(ids) + len(head)) & 7])), fd

    def _take_ids(self) -> tuple[int, int, bytes]:
        released = self._table.take_released(MAX_IDS)
        dropped = self._pool.take_dropped(MAX_IDS)
        if not released and not dropped:
            return 0, 0, b""
        return len(released), len(dropped), struct.pack(f"<{len(released) + len(dropped)}I", *released, *dropped)

    # -- receiving

    def receive(self, flags: int = 0) -> list[Frame]:
        """Wait for the next frame, and return it with those that came along; an empty list at the end of the stream.

        Raises WireError for anything that is no frame, and BlockingIOError with MSG_DONTWAIT when no whole frame is there.
        """
        sock, buffer = self.sock, self._buffer
        while True:
            try:
                count, ancillary, message_flags, _ = sock.recvmsg_into(
                    [buffer[self._end :]], _ANCILLARY, flags | _RECEIVE_FLAGS
                )
            except (ConnectionResetError, BrokenPipeError):
                return []
            if ancillary or message_flags & socket.MSG_CTRUNC:
                self._take_fds(ancillary, message_flags)
            if not count:
                return []
            self._end += count
            frames = self._cut()
            if frames:
                return frames

    def _take_fds(self, ancillary: list[tuple[int, int, bytes]], message_flags: int) -> None:
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds = array.array("i")
                fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
                self._fds.extend(fds)
        if message_flags & socket.MSG_CTRUNC or len(self._fds) > MAX_FDS:
            raise WireError("more descriptors than messages")

    def _cut(self) -> list[Frame]:
        """Take the whole frames out of the buffer."""
        frames: list[Frame] = []
        buffer, start, end = self._buffer, 0, self._end
        while end - start >= HEADER.size:
            kind, flags, released, dropped, zero, length, segment, size, capacity = HEADER.unpack_from(buffer, start)
            if zero or released > MAX_IDS or dropped > MAX_IDS or flags & ~7:
                raise WireError("not a frame")
            ids = 4 * (released + dropped)
            head_end = ids + (0 if flags & _SHARED_HEAD else length)
            payload_at = head_end + (-head_end & 7)
            body = payload_at + (0 if flags & _SHARED_PAYLOAD else size)
            if body > _MAX_BODY:
                raise WireError(f"a frame of {body} bytes, more than {_MAX_BODY}")
            if end - start - HEADER.size < body:
                break
            start += HEADER.size
            memory = self._memory(buffer[start : start + body])
            start += body
            if ids:
                self._forget(memory[:ids], released)
            if flags & _SHARED_PAYLOAD:
                head, payload = self._shared(flags, bytes(memory[ids:head_end]), length, segment, size, capacity)
            else:
                head, payload = bytes(memory[ids:head_end]), memoryview(memory)[payload_at:]
            frames.append(Frame(kind, head, payload))
        if start:
            buffer[: end - start] = buffer[start:end]
            self._end = end - start
        return frames

    def _forget(self, data: Buffer, released: int) -> None:
        ids = struct.unpack(f"<{len(data) // 4}I", data)
        self._pool.release(ids[:released])
        self._table.drop(ids[released:])

    def _shared(
        self, flags: int, head: bytes, length: int, segment: int, size: int, capacity: int
    ) -> tuple[bytes, memoryview]:
        try:
            if flags & _NEW_SEGMENT:
                if not self._fds:
                    raise WireError("a new segment without its descriptor")
                self._table.attach(segment, capacity, self._fds.popleft())
            if not flags & _SHARED_HEAD:
                return head, self._table.lease(segment, size)
            total = size + (-size & 7) + length
            view = self._table.lease(segment, total)
            return bytes(view[total - length :]), view[:size]
        except SegmentError as error:
            raise WireError(str(error)) from None

    def close(self) -> None:
        """Close the socket and descriptors that nobody took."""
        self.sock.close()
        while self._fds:
            os.close(self._fds.popleft())


class QueuedChannel(Channel):
    """A channel whose `send` never blocks: what the socket does not take at once is written by `flush`, when it can be.

    For the server's side, where a worker that does not read must not hold up a thread that serves others. `blocked` is called, from the
    sending thread, when a queue begins. A queue above `limit` bytes calls `overflow`: the worker has stopped reading.
    """

    def __init__(
        self,
        sock: socket.socket,
        pool: SegmentPool,
        table: SegmentTable,
        blocked: Callable[[], None],
        overflow: Callable[[], None],
        limit: int = 64 << 20,
    ) -> None:
        super().__init__(sock, pool, table, writable=False)
        self._blocked = blocked
        self._overflow = overflow
        self._limit = limit
        self._queue: deque[tuple[memoryview, int]] = deque()
        self._queued = 0

    def send(self, kind: int, head: bytes = b"", parts: Sequence[Buffer] = (), size: int = 0) -> None:
        """Send a frame, or queue it. Raises OSError as Channel.send does."""
        data, fd = self.pack(kind, head, parts, size)
        with self._send_lock:
            if self._queue:
                self._enqueue(memoryview(data), fd)
                return
            try:
                sent = self.write(data, fd, socket.MSG_DONTWAIT)
            except BlockingIOError:
                sent = 0
            except OSError:
                if fd >= 0:
                    os.close(fd)
                raise
            if sent and fd >= 0:
                os.close(fd)
                fd = -1
            if sent == len(data):
                return
            self._enqueue(memoryview(data)[sent:], fd)
        self._blocked()

    def _enqueue(self, data: memoryview, fd: int) -> None:
        self._queue.append((data, fd))
        self._queued += len(data)
        if self._queued > self._limit:
            self._overflow()

    def flush(self) -> bool:
        """Write what the socket takes. True when nothing is queued any more. Raises OSError when the peer is gone."""
        with self._send_lock:
            while self._queue:
                data, fd = self._queue[0]
                try:
                    sent = self.write(data, fd, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    return False
                self._queued -= sent
                if fd >= 0:
                    os.close(fd)
                if sent == len(data):
                    self._queue.popleft()
                else:
                    self._queue[0] = (data[sent:], -1)
            return True

    def close(self) -> None:
        with self._send_lock:  # or a sender might write into whatever gets the socket's number next
            super().close()
            for _, fd in self._queue:
                if fd >= 0:
                    with contextlib.suppress(OSError):
                        os.close(fd)
            self._queue.clear()


def receive_all(channel: Channel) -> tuple[list[Frame], bool]:
    """The frames that are there, without waiting, and whether the stream goes on."""
    try:
        frames = channel.receive(socket.MSG_DONTWAIT)
    except BlockingIOError:
        return [], True
    return frames, bool(frames)


def channel_pair() -> tuple[socket.socket, socket.socket]:
    """Two connected sockets for one channel; neither is inherited by other processes."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
