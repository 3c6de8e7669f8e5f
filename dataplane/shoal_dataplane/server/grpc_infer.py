"""ModelInfer and ModelStreamInfer as state machines on the completion queue: no thread, no task, no future a call.

All of this runs on the core loop's thread. A call is a handle (core.request.ReplyHandle): the response finds it through the request.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from grpc._cython import cygrpc  # type: ignore[attr-defined]  # a compiled module without stubs

from shoal_api.protocol import INFERENCE_SERVICE
from shoal_dataplane.codec.classification import classify_outputs
from shoal_dataplane.codec.message import RequestDecoder, RequestHeader
from shoal_dataplane.codec.reply import ResponseEncoder, stream_error
from shoal_dataplane.core.errors import Code, ServingError, internal
from shoal_dataplane.core.request import InferRequest
from shoal_dataplane.core.response import InferResponse
from shoal_dataplane.server.completion_queue import SENT, CallTag
from shoal_dataplane.server.grpc_common import STREAM_WINDOW, Carrier, details, prepare, shutting_down
from shoal_dataplane.service import InferenceService

logger = logging.getLogger(__name__)

UNARY = f"/{INFERENCE_SERVICE}/ModelInfer".encode()
STREAM = f"/{INFERENCE_SERVICE}/ModelStreamInfer".encode()

WATCH_AFTER_NS = 25_000_000
_Receive = cygrpc.ReceiveMessageOperation
_Close = cygrpc.ReceiveCloseOnServerOperation
_Initial = cygrpc.SendInitialMetadataOperation
_Message = cygrpc.SendMessageOperation
_Status = cygrpc.SendStatusFromServerOperation
_NO_DEADLINE = 1e15  # seconds; grpc gives the largest int64 where the caller set none


class HotDoor:
    """The hot methods of one server; what its calls share."""

    def __init__(self, service: InferenceService, forward_pattern: str = "") -> None:
        self.service = service
        self.decoder = RequestDecoder()
        self.encoder = ResponseEncoder()
        self.refusing = False
        """Answer new requests with UNAVAILABLE: the server is draining."""
        self.carrier = Carrier(forward_pattern)
        self._young: list[UnaryCall] = []
        self._old: list[UnaryCall] = []
        self._watching = False

    def accept(self, method: bytes) -> Callable[[Any], None] | None:
        if method == UNARY:
            return self._unary
        if method == STREAM:
            return self._stream
        return None

    def _unary(self, event: Any) -> None:
        UnaryCall(self, event)

    def _stream(self, event: Any) -> None:
        StreamCall(self, event)

    def deadline_ns(self, event: Any) -> int | None:
        """The call's deadline on the loop's monotonic clock."""
        deadline = event.call_details.deadline
        if deadline > _NO_DEADLINE:
            return None
        return time.monotonic_ns() + int((deadline - time.time()) * 1e9)

    # To be told of a cancellation costs an operation and an event a call. Most calls are answered before anybody could have changed
    # his mind, so only those ask for it that are still open after WATCH_AFTER_NS.

    def watch_later(self, call: UnaryCall) -> None:
        """Watch for the cancellation of `call` if it is still open in WATCH_AFTER_NS to twice that."""
        if not self._watching:
            self._watching = True
            self.service.loop.call_at(self.service.loop.now_ns() + WATCH_AFTER_NS, self._watch, coarse=True)
        self._young.append(call)

    def _watch(self) -> None:
        for call in self._old:
            if call.request is not None:
                call.watch()
        self._old, self._young = self._young, []
        self._watching = bool(self._old)
        if self._watching:
            self.service.loop.call_at(self.service.loop.now_ns() + WATCH_AFTER_NS, self._watch, coarse=True)


class _Closed(CallTag):
    """Tag of RECEIVE_CLOSE: the call ended, perhaps because its caller left."""

    __slots__ = ("_gone",)

    def __init__(self, gone: Callable[[], None]) -> None:
        self._gone = gone

    def complete(self, event: Any) -> None:
        if event.batch_operations[0].cancelled():
            self._gone()


class UnaryCall(CallTag):
    """One ModelInfer call."""

    __slots__ = ("_call", "_carried", "_deadline_ns", "_door", "_forwarded", "_header", "_watched", "request")

    def __init__(self, door: HotDoor, event: Any) -> None:
        self._door = door
        self._call = event.call
        self._carried = door.carrier.carried(event.invocation_metadata)
        self._forwarded = door.carrier.forwarded(event.invocation_metadata)
        self._deadline_ns = door.deadline_ns(event)
        self._watched = False
        self._header: RequestHeader | None = None
        self.request: InferRequest | None = None
        event.call.start_server_batch((_Receive(0),), self)

    def complete(self, event: Any) -> None:
        """The request's message is here (or the caller left before it)."""
        door = self._door
        message = event.batch_operations[0].message()
        if message is None:
            self._finish((_Status((), int(Code.CANCELLED), b"", 0),))
            return
        try:
            if door.refusing:
                raise shutting_down()
            request, header = door.decoder.decode(message, self, time.monotonic_ns())
            prepare(request, self._carried, self._forwarded, self._deadline_ns)
        except ServingError as error:
            door.service.refused(error)
            self._send_error(error)
            return
        except Exception as error:  # the loop must survive any bytes
            logger.exception("decoding a request failed")
            self._send_error(internal(f"decoding the request failed: {error}"))
            return
        self.request = request
        if header.classes:
            self._header = header
        door.service.submit(request)
        if self.request is not None:
            door.watch_later(self)

    def watch(self) -> None:
        """Ask to be told when the caller leaves."""
        self._watched = True
        self._call.start_server_batch((_Close(0),), _Closed(self._gone))

    def _gone(self) -> None:
        if self.request is not None:
            self._door.service.cancel(self.request)

    def respond(self, request: InferRequest, response: InferResponse) -> None:
        self.request = None
        if response.error is not None:
            self._send_error(response.error)
            return
        try:
            if self._header is not None:
                classify_outputs(response, request, self._header.classes)
            payload = self._door.encoder.encode(request, response)
        except ServingError as error:
            self._send_error(error)
            return
        self._finish((_Initial((), 0), _Message(payload, 0), _Status((), 0, b"", 0)))

    def _send_error(self, error: ServingError) -> None:
        self._finish((_Initial((), 0), _Status((), int(error.code), details(error), 0)))

    def _finish(self, operations: tuple[Any, ...]) -> None:
        if not self._watched:
            operations = (*operations, _Close(0))
        self._call.start_server_batch(operations, SENT)


class _StreamEntry:
    """One request of a stream and the responses that are ready for it; the handle of its request."""

    __slots__ = ("_stream", "classes", "final", "ready", "request")

    def __init__(self, stream: StreamCall) -> None:
        self._stream = stream
        self.request: InferRequest | None = None
        self.classes: Mapping[str, int] = {}
        self.ready: deque[tuple[bytes, ServingError | None]] = deque()
        self.final = False

    def respond(self, request: InferRequest, response: InferResponse) -> None:
        self.final = response.final
        if response.final:
            self.request = None  # or the two would keep each other alive
        error = response.error
        if error is None and self.classes:
            try:
                classify_outputs(response, request, self.classes)
            except ServingError as failed:
                error = failed
        payload = (
            stream_error(error, request.id) if error else self._stream.door.encoder.encode_stream(request, response)
        )
        self.ready.append((payload, error))
        self._stream.flush()

    def fail(self, error: ServingError) -> None:
        """The message never became a request."""
        self.final = True
        self.ready.append((stream_error(error, ""), error))
        self._stream.flush()


class StreamCall(CallTag):
    """One ModelStreamInfer call. Responses leave in the order of their requests; an error is a message, and the stream goes on,
    unless the caller sent the metadata `triton_grpc_error: true`: then the first error ends the stream with its status."""

    __slots__ = (
        "_call",
        "_carried",
        "_closed",
        "_deadline_ns",
        "_entries",
        "_forwarded",
        "_half_closed",
        "_initial_sent",
        "_outbox",
        "_reading",
        "_sending",
        "_strict",
        "door",
    )

    def __init__(self, door: HotDoor, event: Any) -> None:
        self.door = door
        self._call = event.call
        self._carried = door.carrier.carried(event.invocation_metadata)
        self._forwarded = door.carrier.forwarded(event.invocation_metadata)
        self._deadline_ns = door.deadline_ns(event)
        self._strict = any(name == "triton_grpc_error" and value == "true" for name, value in event.invocation_metadata)
        self._entries: deque[_StreamEntry] = deque()
        self._outbox: deque[bytes] = deque()
        self._sending = False
        self._initial_sent = False
        self._half_closed = False
        self._closed = False
        self._reading = False
        event.call.start_server_batch((_Close(0),), _Closed(self._gone))
        self._read()

    def _read(self) -> None:
        waiting = len(self._entries) + len(self._outbox)
        if not (self._reading or self._half_closed or self._closed) and waiting < STREAM_WINDOW:
            self._reading = True
            self._call.start_server_batch((_Receive(0),), self)

    def complete(self, event: Any) -> None:
        """A message of the caller, or the end of its side."""
        self._reading = False
        message = event.batch_operations[0].message()
        if message is None or self._closed:
            self._half_closed = True
            self.flush()
            return
        entry = _StreamEntry(self)
        self._entries.append(entry)
        try:
            if self.door.refusing:
                raise shutting_down()
            request, header = self.door.decoder.decode(message, entry, time.monotonic_ns())
            prepare(request, self._carried, self._forwarded, self._deadline_ns)
        except ServingError as error:
            self.door.service.refused(error)
            entry.fail(error)
        except Exception as error:
            logger.exception("decoding a request of a stream failed")
            entry.fail(internal(f"decoding the request failed: {error}"))
        else:
            entry.request = request
            entry.classes = header.classes
            self.door.service.submit(request)
        self._read()

    def flush(self) -> None:
        """Send what is ready, oldest request first, one message at a time; end the call when all is said."""
        if self._closed:
            return
        entries = self._entries
        while entries:
            oldest = entries[0]
            while oldest.ready:
                payload, error = oldest.ready.popleft()
                if error is not None and self._strict:
                    self._end(int(error.code), details(error))
                    return
                self._outbox.append(payload)
            if not oldest.final:
                break
            entries.popleft()
        if self._sending:
            return
        if self._outbox:
            self._sending = True
            operations: tuple[Any, ...] = (_Message(self._outbox.popleft(), 0),)
            if not self._initial_sent:
                self._initial_sent = True
                operations = (_Initial((), 0), *operations)
            self._call.start_server_batch(operations, _Sent(self))
        elif self._half_closed and not entries:
            self._end(0, b"")
            return
        self._read()

    def sent(self) -> None:
        """The message on its way has left."""
        self._sending = False
        self.flush()

    def _end(self, code: int, details: bytes) -> None:
        self._closed = True
        self._cancel_open()
        operations: tuple[Any, ...] = (_Status((), code, details, 0),)
        if not self._initial_sent:
            operations = (_Initial((), 0), *operations)
        self._call.start_server_batch(operations, SENT)

    def _gone(self) -> None:
        if not self._closed:
            self._closed = True
            self._cancel_open()

    def _cancel_open(self) -> None:
        entries, self._entries = self._entries, deque()
        for entry in entries:
            if entry.request is not None and not entry.final:
                self.door.service.cancel(entry.request)


class _Sent(CallTag):
    """Tag of a stream's outgoing message."""

    __slots__ = ("_stream",)

    def __init__(self, stream: StreamCall) -> None:
        self._stream = stream

    def complete(self, event: Any) -> None:
        self._stream.sent()
