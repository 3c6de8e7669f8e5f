"""One worker process, from its start to its end, as the server sees it."""

from __future__ import annotations

import logging
import os
import selectors
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.backends.worker.environment import worker_command, worker_environment
from shoal_dataplane.execution.channel import Frame, QueuedChannel, WireError, channel_pair, receive_all
from shoal_dataplane.execution.shm import SegmentPool, SegmentTable
from shoal_dataplane.execution.supervisor import Supervisor
from shoal_dataplane.execution.worker.output import WorkerOutput

logger = logging.getLogger(__name__)

MODULE = "shoal_dataplane.execution.worker.main"
FRAMES_AT_ONCE = 64
POLL_SECONDS = 0.1
HANG_UP_SECONDS = 5.0


class Owner(Protocol):
    """Who started a worker."""

    def answered(self, worker: WorkerProcess, frame: Frame) -> None:
        """A frame came over the data channel. Reader's thread."""

    def heard(self, worker: WorkerProcess, frame: Frame) -> None:
        """A frame came over the control channel. Supervisor's thread. May raise WireError."""

    def lost(self, worker: WorkerProcess) -> None:
        """The process is gone, and all that it had here is closed; `end` says how. Supervisor's thread."""


class WorkerProcess:
    """Made, and ended, on the supervisor's thread. `data` and `control` may be sent over from any thread."""

    def __init__(
        self, supervisor: Supervisor, owner: Owner, config: mc.ModelConfig, instance: str, output: WorkerOutput
    ) -> None:
        """Starts the process; `instance` is only for people who list processes. Raises OSError when the system cannot."""
        self._supervisor = supervisor
        self._owner = owner
        self.output = output
        self.pool = SegmentPool()
        self.table = SegmentTable(writable=False)
        self.started = time.monotonic()
        self.reason = ""
        """Why the server killed it; empty when it did not."""
        self.status = 0
        self.ended = False
        """Is it gone, with all that it had here closed?"""
        ours, theirs = zip(channel_pair(), channel_pair(), strict=True)
        read, write = os.pipe()
        try:
            self._process = subprocess.Popen(
                worker_command(MODULE, *(str(end.fileno()) for end in theirs), str(os.getpid()), instance),
                stdin=subprocess.DEVNULL,
                stdout=write,
                stderr=write,
                pass_fds=[end.fileno() for end in theirs],
                env=worker_environment(config),
                start_new_session=True,  # a Ctrl-C in the server's terminal is not for it, and its own children end with it
            )
        except BaseException:
            os.close(read)
            for end in ours:
                end.close()
            raise
        finally:
            os.close(write)
            for end in theirs:
                end.close()
        self.pid = self._process.pid
        self._pipe = read
        os.set_blocking(read, False)
        self.data = self._channel(ours[0])
        self.control = self._channel(ours[1])
        self._reader = threading.Thread(target=self._read, name=f"shoal-reader-{self.pid}", daemon=True)
        self._reader.start()
        supervisor.watch(self.control.sock.fileno(), selectors.EVENT_READ, self._control_ready)
        supervisor.watch(read, selectors.EVENT_READ, self._output_ready)
        self._pidfd = _open_pidfd(self.pid)
        if self._pidfd >= 0:
            supervisor.watch(self._pidfd, selectors.EVENT_READ, lambda _: self._finish())
        else:
            supervisor.call_later(POLL_SECONDS, self._poll)

    def _channel(self, sock: socket.socket) -> QueuedChannel:
        channel = QueuedChannel(
            sock,
            self.pool,
            self.table,
            blocked=lambda: self._supervisor.post(lambda: self._watch_writable(channel)),
            overflow=lambda: self.kill_soon("does not read what the server sends it"),
        )
        return channel

    # -- ending it

    def kill(self, reason: str) -> None:
        """Kill it and what it started. Supervisor's thread only; `reason` completes "it ...". The owner's `lost` follows."""
        if self.ended:
            return
        self.reason = self.reason or reason
        self._kill_group()

    def kill_soon(self, reason: str) -> None:
        """`kill`, from any thread."""
        self._supervisor.post(lambda: self.kill(reason))

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    @property
    def end(self) -> str:
        """How it ended: completes "the process ..."."""
        if self.reason:
            return f"was stopped: it {self.reason}"
        if self.status >= 0:
            return f"exited with code {self.status}"
        number = -self.status
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = "unknown"
        hint = ", which may be the kernel, short of memory" if number == signal.SIGKILL else ""
        return f"was killed by signal {number} ({name}){hint}"

    def _poll(self) -> None:
        if self._process.poll() is None:
            self._supervisor.call_later(POLL_SECONDS, self._poll)
        else:
            self._finish()

    def _finish(self) -> None:
        """The process has ended: take what it still said, and close everything."""
        if self.ended:
            return
        self.ended = True
        self._kill_group()  # its children; it is not waited for yet, so the group's number is still its own
        self.status = self._process.wait()
        with suppress(OSError):
            self.data.sock.shutdown(socket.SHUT_RDWR)  # a child that left the group may still hold the other end
        self._reader.join(HANG_UP_SECONDS)
        with suppress(WireError, OSError):
            while self._hear():
                pass
        self._read_output()
        self.output.end()
        for fd in (self.control.sock.fileno(), self.data.sock.fileno(), self._pipe, self._pidfd):
            if fd >= 0:
                self._supervisor.unwatch(fd)
        self.data.close()
        self.control.close()
        os.close(self._pipe)
        if self._pidfd >= 0:
            os.close(self._pidfd)
        self.pool.close()
        self.table.close()
        self._owner.lost(self)

    # -- hearing it

    def _read(self) -> None:
        """Reader's thread: what comes over the data channel."""
        try:
            while frames := self.data.receive():
                while frames:
                    self._owner.answered(self, frames.pop(0))
        except WireError as error:
            self.kill_soon(f"sent something malformed: {error}")
            return
        except OSError as error:
            self.kill_soon(f"broke its connection: {error}")
            return
        self._supervisor.call_later(HANG_UP_SECONDS, lambda: self.kill("closed its connection"))

    def _control_ready(self, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._flush(self.control)
        if events & selectors.EVENT_READ and not self.ended:
            try:
                for _ in range(FRAMES_AT_ONCE):
                    if not self._hear():
                        return
            except (WireError, OSError) as error:
                self._supervisor.unwatch(self.control.sock.fileno())
                self.kill(f"sent something malformed: {error}")

    def _hear(self) -> bool:
        """Take the frames that are there; False when there are none."""
        frames, more = receive_all(self.control)
        for frame in frames:
            self._owner.heard(self, frame)
        if not more:
            self._supervisor.unwatch(self.control.sock.fileno())
            self._supervisor.call_later(HANG_UP_SECONDS, lambda: self.kill("closed its connection"))
        return bool(frames)

    def _output_ready(self, _: int) -> None:
        if not self._read_output():
            self._supervisor.unwatch(self._pipe)

    def _read_output(self) -> bool:
        """Take what it printed, 1 MiB at most; False at the end of its output."""
        for _ in range(16):
            try:
                data = os.read(self._pipe, 1 << 16)
            except BlockingIOError:
                return True
            if not data:
                return False
            self.output.feed(data)
        return True

    # -- writing that had to wait

    def _watch_writable(self, channel: QueuedChannel) -> None:
        if not self.ended:
            events = selectors.EVENT_WRITE | (selectors.EVENT_READ if channel is self.control else 0)
            callback: Callable[[int], None] = (
                self._control_ready if channel is self.control else lambda _: self._flush(channel)
            )
            self._supervisor.watch(channel.sock.fileno(), events, callback)

    def _flush(self, channel: QueuedChannel) -> None:
        try:
            done = channel.flush()
        except OSError:
            done = True  # it is gone; its end says so
        if done and channel is self.control:
            self._supervisor.watch(channel.sock.fileno(), selectors.EVENT_READ, self._control_ready)
        elif done:
            self._supervisor.unwatch(channel.sock.fileno())


def _open_pidfd(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):  # not Linux, or a sandbox without it
        return -1


def anonymous_memory(pid: int) -> int:
    """Bytes of memory of its own that a process has resident; 0 when the system does not say."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            for line in file:
                if line.startswith(b"RssAnon:"):
                    return int(line.split()[1]) << 10
    except (OSError, ValueError, IndexError):
        pass
    return 0
