"""The server as a model in a worker process sees it: every call is a message to the process that started the worker."""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue

from shoal_dataplane.backends.python.pb_utils.errors import TritonModelException
from shoal_dataplane.core.errors import unavailable
from shoal_dataplane.core.request import InferRequest
from shoal_dataplane.core.response import InferResponse, failure
from shoal_dataplane.execution import messages
from shoal_dataplane.execution.channel import Channel, Frame, Kind, WireError
from shoal_dataplane.execution.wire import decode_answer, from_failure, utf8

MAX_INFER = 1024
"""Requests that a model may have under way at once."""


class WorkerServer:
    """Implements backends.pb_utils.server.Server over the control channel. `handle` is called by the thread that receives."""

    def __init__(self, control: Channel) -> None:
        self._control = control
        self._numbers = itertools.count(1)
        self._answers: dict[int, Callable[[InferResponse], None]] = {}
        self._results: dict[int, SimpleQueue[messages.CallResultHead]] = {}
        self.executes = False
        """May the model ask other models now? Between `initialize` and `finalize`, as in Triton."""

    def handle(self, frame: Frame) -> bool:
        """Take an answer to one of the model's calls; False for any other frame."""
        if frame.kind == Kind.INFER_RESULT:
            self._answered(frame)
        elif frame.kind == Kind.CALL_RESULT:
            result = messages.decode(messages.CallResultHead, frame.head)
            waiting = self._results.pop(result.number, None)
            if waiting is not None:
                waiting.put(result)
        else:
            return False
        return True

    def _answered(self, frame: Frame) -> None:
        number = messages.decode(messages.NumberHead, frame.head).number  # its first field
        answer = self._answers.pop(number, None)
        if answer is None:
            return
        execution = decode_answer(frame.head, frame.payload, number, 1)
        answer(failure(execution) if isinstance(execution, Exception) else execution.responses[0])

    # -- backends.pb_utils.server.Server

    def refuse_blocking(self) -> str:
        return ""

    def infer(self, request: InferRequest, answer: Callable[[InferResponse], None]) -> Callable[[], None]:
        if not self.executes:
            raise TritonModelException("BLS is only supported during the 'execute' function.")
        if len(self._answers) >= MAX_INFER:
            raise TritonModelException(f"the model has {MAX_INFER} requests to other models under way already")
        number = next(self._numbers)
        self._answers[number] = answer
        try:
            self._control.send(Kind.INFER, *messages.encode_infer(number, request))
        except OSError as error:
            self._answers.pop(number, None)
            raise TritonModelException(f"the request could not be sent: {error}") from None
        return lambda: self._cancel(number)

    def _cancel(self, number: int) -> None:
        if number in self._answers:
            self._control.send(Kind.INFER_CANCEL, messages.encode(messages.NumberHead(number)))

    def load_model(self, name: str, parameters: Mapping[str, str | bytes]) -> None:
        texts = {key: value for key, value in parameters.items() if isinstance(value, str)}
        files = {key: value for key, value in parameters.items() if not isinstance(value, str)}
        self._call(messages.LoadModel(name, texts, files))

    def unload_model(self, name: str, unload_dependents: bool) -> None:
        self._call(messages.UnloadModel(name, unload_dependents))

    def model_ready(self, name: str, version: str) -> bool:
        return bool(self._call(messages.ModelReady(name, version)))

    def log(self, level: int, message: str) -> None:
        try:
            self._control.send(Kind.LOG, messages.encode(messages.LogHead(level, utf8(message))))
        except OSError:
            """The server is gone, and this process goes with it."""

    def metric_family(self, name: str, description: str, kind: str) -> int:
        return int(self._call(messages.MakeFamily(name, description, kind)) or 0)

    def metric(self, family: int, labels: Mapping[str, str], buckets: Sequence[float] | None) -> int:
        bounds = None if buckets is None else [float(bound) for bound in buckets]
        return int(self._call(messages.MakeMetric(family, dict(labels), bounds)) or 0)

    def change_metric(self, metric: int, operation: str, value: float) -> None:
        self._tell(messages.ChangeMetric(metric, operation, value))

    def metric_value(self, metric: int) -> float:
        return float(self._call(messages.ReadMetric(metric)) or 0.0)

    def release_metric(self, item: int) -> None:
        self._tell(messages.ReleaseMetric(item))

    def _tell(self, request: messages.Request) -> None:
        self._control.send(Kind.CALL, messages.encode(messages.CallHead(0, request)))

    def _call(self, request: messages.Request) -> bool | int | float | None:
        number = next(self._numbers)
        waiting = self._results[number] = SimpleQueue[messages.CallResultHead]()
        try:
            self._control.send(Kind.CALL, messages.encode(messages.CallHead(number, request)))
        except OSError as error:
            self._results.pop(number, None)
            raise unavailable(f"the server cannot be asked: {error}") from None
        result = waiting.get()
        if result.failure is not None:
            raise from_failure(result.failure)
        if result.problem is not None:
            raise ValueError(result.problem)
        return result.value


class ForwardingHandler(logging.Handler):
    """Sends what this process logs to the server's log."""

    def __init__(self, server: WorkerServer) -> None:
        super().__init__()
        self._server = server
        self._own = threading.local()

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(self._own, "busy", False):
            return  # whatever goes wrong in sending a line must not become another line
        self._own.busy = True
        try:
            self._server.log(record.levelno, self.format(record))
        except Exception:
            self.handleError(record)
        finally:
            self._own.busy = False


def end_with_server(control: Channel, handle: Callable[[Frame], None]) -> None:
    """Receive until the server is gone, then end this process: there is nobody left to work for."""
    try:
        while frames := control.receive():
            for frame in frames:
                handle(frame)
            del frames
    except (OSError, WireError) as error:
        logging.getLogger(__name__).error("the connection to the server failed: %s", error)
    os._exit(1)
