"""The worker process: one model instance, of any backend, behind two sockets.

`python -m shoal_dataplane.execution.worker.main DATA CONTROL PARENT NAME`: descriptors of the two sockets, the server's process id, and
the instance's name, for people who list processes. The
main thread loads the model and runs its batches, which come over the data socket, one message a batch; another thread hears the control
socket, so that a cancellation reaches a model while it runs. What the model prints goes to the log of the server.
"""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence

from shoal_dataplane.backends.base import Execution, Instance
from shoal_dataplane.backends.python import loader as python_loader
from shoal_dataplane.backends.python.pb_utils.server import set_model_dir, set_server
from shoal_dataplane.backends.registry import backend_for
from shoal_dataplane.backends.worker.environment import die_with_parent
from shoal_dataplane.core.errors import Code, Reason, ServingError, internal
from shoal_dataplane.core.request import InferRequest
from shoal_dataplane.core.response import InferResponse
from shoal_dataplane.execution import messages
from shoal_dataplane.execution.channel import Channel, Frame, Kind, WireError
from shoal_dataplane.execution.shm import SegmentPool, SegmentTable
from shoal_dataplane.execution.wire import decode_requests, encode_answer, encode_failure, to_failure
from shoal_dataplane.execution.worker.server import ForwardingHandler, WorkerServer, end_with_server

logger = logging.getLogger(__name__)


class _NoReply:
    """A request's answer leaves with its batch, not through a handle."""

    def respond(self, request: InferRequest, response: InferResponse) -> None:
        """Never called."""


class Worker:
    """One loaded instance and its two channels."""

    def __init__(self, data: socket.socket, control: socket.socket) -> None:
        self._pool = SegmentPool()
        table = SegmentTable(writable=True)  # a model may write into its inputs
        self._data = Channel(data, self._pool, table, writable=True)
        self._control = Channel(control, self._pool, table, writable=True)
        self._server = WorkerServer(self._control)
        self._instance: Instance | None = None
        self._name = ""
        self._version = ""
        self._lock = threading.Lock()
        self._sequence = 0
        self._running: Sequence[InferRequest] = ()
        self._cancelled: dict[int, list[int]] = {}
        self._checking = threading.Lock()

    def run(self) -> int:
        """Serve until the server says to close or is gone; returns the exit code."""
        threading.Thread(
            target=end_with_server, args=(self._control, self._hear), name="shoal-control", daemon=True
        ).start()
        while frames := self._data.receive():
            while frames:
                kind = frames[0].kind
                if kind == Kind.EXECUTE:
                    self._execute(
                        frames.pop(0)
                    )  # which is then its only holder, so that the batch's memory is free when it has run
                elif kind == Kind.LOAD:
                    if not self._load(frames.pop(0)):
                        return 1
                elif kind == Kind.CLOSE:
                    self._close()
                    return 0
                else:
                    raise WireError(f"a frame of kind {kind}")
        return 1

    # -- main thread

    def _load(self, frame: Frame) -> bool:
        head = messages.decode(messages.LoadHead, frame.head)
        context, instance = messages.decode_load(head)
        self._name, self._version = context.name, str(context.version)
        set_server(self._server)
        set_model_dir(context.version_dir)
        python_loader.own_process = True
        logging.basicConfig(level=head.log_level, handlers=[ForwardingHandler(self._server)], format="%(message)s")
        try:
            self._instance = backend_for(head.backend).load(context, instance)
        except ServingError as error:
            failed = error
        except BaseException as error:
            logger.exception("loading model instance '%s' failed", instance.name)
            failed = internal(python_loader.describe(error))
        else:
            gc.collect()
            gc.freeze()  # what a loaded model is made of is never garbage, so it is not looked at again
            gc.set_threshold(10_000, 20, 20)  # a batch makes some hundred objects, which are gone when it is answered
            self._server.executes = True
            checks = bool(getattr(self._instance, "has_readiness_check", bool)())
            self._control.send(Kind.LOADED, messages.encode(messages.LoadedHead(checks)))
            return True
        self._control.send(Kind.LOAD_FAILED, messages.encode(to_failure(failed)))
        return False

    def _execute(self, frame: Frame) -> None:
        sequence, requests = decode_requests(frame.head, frame.payload, self._name, self._version, _NoReply())
        del frame
        with self._lock:
            self._sequence, self._running = sequence, requests
            for position in self._cancelled.pop(sequence, ()):
                self._mark(position)
            self._cancelled.clear()
        result = self._run(requests)
        with self._lock:
            self._running = ()
        requests.clear()
        try:
            if isinstance(result, Execution):
                self._data.send(Kind.ANSWER, *encode_answer(sequence, result))
                return
        except (BrokenPipeError, ConnectionResetError):
            raise
        except Exception as error:  # such as no memory for a segment
            code = Code.RESOURCE_EXHAUSTED if isinstance(error, (OSError, MemoryError)) else Code.INTERNAL
            text = f"the answer of model '{self._name}' could not be sent: {type(error).__name__}: {error}"
            result = ServingError(code, text, Reason.BACKEND)
        self._data.send(Kind.ANSWER, encode_failure(sequence, result))

    def _run(self, requests: Sequence[InferRequest]) -> Execution | ServingError:
        assert self._instance is not None
        try:
            execution = self._instance.execute(requests)
        except ServingError as error:
            return error
        except MemoryError as error:
            return internal(f"out of memory while executing a batch: {error or 'no details'}")
        except Exception as error:
            return internal(python_loader.describe(error))
        if len(execution.responses) != len(requests):
            return internal(
                f"model '{self._name}' gave {len(execution.responses)} responses to {len(requests)} requests"
            )
        return execution

    def _close(self) -> None:
        self._server.executes = False
        if self._instance is not None:
            self._instance.close()

    # -- control thread

    def _hear(self, frame: Frame) -> None:
        if self._server.handle(frame):
            return
        if frame.kind == Kind.CANCEL:
            self._cancel(messages.decode(messages.CancelHead, frame.head))
        elif frame.kind == Kind.READY_CHECK:
            threading.Thread(target=self._check_ready, name="shoal-ready", daemon=True).start()
        elif frame.kind == Kind.TRIM:
            self._pool.trim()
            self._control.send(Kind.TRIM)
        else:
            raise WireError(f"a frame of kind {frame.kind}")

    def _cancel(self, head: messages.CancelHead) -> None:
        with self._lock:
            if head.sequence == self._sequence:
                for position in head.positions:
                    self._mark(position)
            elif head.sequence > self._sequence:  # it has overtaken its batch, which comes over the other socket
                self._cancelled.setdefault(head.sequence, []).extend(head.positions)

    def _mark(self, position: int) -> None:
        if position < len(self._running):
            self._running[position].cancelled = True

    def _check_ready(self) -> None:
        if not self._checking.acquire(blocking=False):
            return  # the last check still runs; its answer will do
        try:
            check = getattr(self._instance, "is_ready", None)
            answer = messages.ReadyHead(True if check is None else check(), "")
        except Exception as error:
            answer = messages.ReadyHead(False, python_loader.describe(error))
        finally:
            self._checking.release()
        self._control.send(Kind.READY_RESULT, messages.encode(answer))


def main() -> int:
    """The process's entry."""
    data, control, parent = (int(argument) for argument in sys.argv[1:4])
    die_with_parent(parent)
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's to handle
    for fd in (data, control):
        os.set_inheritable(fd, False)
    try:
        return Worker(socket.socket(fileno=data), socket.socket(fileno=control)).run()
    except (BrokenPipeError, ConnectionResetError):
        return 1


if __name__ == "__main__":
    sys.exit(main())
