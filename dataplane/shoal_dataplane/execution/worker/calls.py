"""The server's side of what a model in a worker process asks for: other models, the repository, metrics."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from shoal_dataplane.backends.base import Execution
from shoal_dataplane.core.errors import ServingError, unavailable
from shoal_dataplane.core.request import InferRequest
from shoal_dataplane.core.response import InferResponse
from shoal_dataplane.execution import messages
from shoal_dataplane.execution.bridge import ServerBridge
from shoal_dataplane.execution.channel import Channel, Frame, Kind, WireError
from shoal_dataplane.execution.wire import encode_answer, encode_failure, to_failure, utf8

MAX_BLOCKING = 16
"""Calls that load, unload or ask for readiness, under way at once for one worker."""
MAX_INFER = 1024
"""Requests of one worker to other models under way at once."""


class WorkerCalls:
    """The calls of one worker process. `handle` and `close`: supervisor's thread only. Answers leave from any thread."""

    def __init__(self, bridge: ServerBridge, control: Channel, name: str) -> None:
        self._bridge = bridge
        self._control = control
        self._name = name
        self._metrics = bridge.custom_metrics.owner()
        self._inferring: dict[int, _Inferring] = {}
        self._blocking = threading.Semaphore(MAX_BLOCKING)
        self._open = True

    def handle(self, frame: Frame) -> bool:
        """Take a call; False for any other frame. Raises WireError for a malformed one."""
        if frame.kind == Kind.INFER:
            self._infer(frame)
        elif frame.kind == Kind.INFER_CANCEL:
            inferring = self._inferring.get(messages.decode(messages.NumberHead, frame.head).number)
            if inferring is not None:
                inferring.cancel()
        elif frame.kind == Kind.CALL:
            call = messages.decode(messages.CallHead, frame.head)
            if isinstance(call.request, (messages.LoadModel, messages.UnloadModel, messages.ModelReady)):
                self._run_blocking(call)
            else:
                self._answer(call.number, self._change_metrics, call.request)
        else:
            return False
        return True

    def close(self) -> None:
        """The worker is gone: cancel its requests and take back its metrics."""
        self._open = False
        for inferring in list(self._inferring.values()):
            inferring.cancel()
        self._inferring.clear()
        self._metrics.close()

    # -- other models

    def _infer(self, frame: Frame) -> None:
        head = messages.decode(messages.InferHead, frame.head)
        number = head.number
        if len(self._inferring) >= MAX_INFER or number in self._inferring:
            raise WireError(f"request {number} is one too many ({len(self._inferring)} are under way)")
        request = messages.decode_infer(head, frame.payload, _Unanswered())
        inferring = self._inferring[number] = _Inferring()
        # The answer may come, on the loop's thread, before this returns.
        inferring.cancel = self._bridge.infer(request, lambda response: self._inferred(number, response))

    def _inferred(self, number: int, response: InferResponse) -> None:
        """Core loop's thread."""
        self._inferring.pop(number, None)
        if not self._open:
            return
        try:
            self._control.send(Kind.INFER_RESULT, *encode_answer(number, Execution([response], 0, 0, 0)))
        except Exception as error:  # the worker is gone, or the answer cannot be sent, which it must hear
            with suppress(OSError):
                self._control.send(Kind.INFER_RESULT, encode_failure(number, unavailable(f"no answer: {error}")))

    # -- the repository, metrics

    def _run_blocking(self, call: messages.CallHead) -> None:
        if not self._blocking.acquire(blocking=False):
            self._answer(call.number, self._refuse, call.request)
            return

        def run() -> None:
            try:
                self._answer(call.number, self._ask_repository, call.request)
            finally:
                self._blocking.release()

        threading.Thread(target=run, name=f"shoal-call-{self._name}", daemon=True).start()

    def _refuse(self, request: messages.Request) -> None:
        raise unavailable(f"{MAX_BLOCKING} calls of this model to the repository are under way already")

    def _ask_repository(self, request: messages.Request) -> bool | None:
        match request:
            case messages.LoadModel():
                self._bridge.load_model(request.name, {**request.texts, **request.files})
            case messages.UnloadModel():
                self._bridge.unload_model(request.name, request.unload_dependents)
            case messages.ModelReady():
                return self._bridge.model_ready(request.name, request.version)
        return None

    def _change_metrics(self, request: messages.Request) -> int | float | None:
        metrics = self._metrics
        match request:
            case messages.MakeFamily():
                return metrics.family(request.name, request.description, request.kind)
            case messages.MakeMetric():
                return metrics.metric(request.family, request.labels, request.buckets)
            case messages.ChangeMetric():
                metrics.change(request.metric, request.operation, request.value)
            case messages.ReadMetric():
                return metrics.value(request.metric)
            case messages.ReleaseMetric():
                metrics.release(request.item)
        return None

    def _answer(
        self,
        number: int,
        function: Callable[[messages.Request], bool | int | float | None],
        request: messages.Request,
    ) -> None:
        try:
            result = messages.CallResultHead(number, value=function(request))
        except ServingError as error:
            result = messages.CallResultHead(number, failure=to_failure(error))
        except Exception as error:  # ValueError of the metrics; anything else is shown to the model as well
            result = messages.CallResultHead(number, problem=utf8(str(error)))
        if number:
            with suppress(OSError):  # the worker is gone
                self._control.send(Kind.CALL_RESULT, messages.encode(result))


class _Unanswered:
    """The bridge gives a request the handle that finds its way back."""

    def respond(self, request: InferRequest, response: InferResponse) -> None:
        """Never called."""


class _Inferring:
    """A request that is under way, and what cancels it."""

    def __init__(self) -> None:
        self.cancel: Callable[[], None] = lambda: None
