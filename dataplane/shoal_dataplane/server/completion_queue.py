"""The core loop on gRPC's own completion queue: one thread, no asyncio, no hand-off between the socket and the scheduler.

A public `grpc.server()` is made and started as usual (its TLS, health, reflection and shutdown stay its own code), but the function
that drains its completion queue is ours. Calls of the hot methods are handled here by small state machines (server.grpc_infer);
every other event goes to grpc's own handling. When the queue is drained, the deferred work runs: that is when batches form, so a
batch holds all that had arrived.

Why: grpc.aio hands every event from a poller thread to asyncio through a socket write, several times a call. Measured at 64 callers
on two cores: 4-7k requests/s there, 30k here, with the same model (see docs/explanation/grpc-door.md).

This is the only module that touches grpc's private names (`grpc._server`, `grpc._cython.cygrpc`). They are tested on the versions in
TESTED; `server.grpc_door` runs a self-test at start and falls back to grpc.aio when it fails.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import grpc
from grpc import _server as grpc_server
from grpc._cython import cygrpc  # type: ignore[attr-defined]  # a compiled module without stubs

from shoal_dataplane.core.loop import Callback, ThreadedLoop

logger = logging.getLogger(__name__)

TESTED = ("1.84", "1.85")
"""The minors of grpcio that the tests of this module pass on."""

WAKE_METHOD = b"/shoal.internal.Loop/Wake"
_WAKE = object()
SENT = object()
"""Tag of operations whose completion interests nobody."""

_SHORT_NS = 2_000_000
"""The queue's own deadlines are a millisecond coarse: a timer closer than this is waited for by looking at the queue without blocking,
with naps in between that are short against it."""
_GRAIN_NS = 1_000_000
_NAP_S = 50e-6
_FOREVER_NS = 3_600_000_000_000


class HotMethods(Protocol):
    """Who handles the calls of the hot methods."""

    def accept(self, method: bytes) -> Callable[[Any], None] | None:
        """Return what takes a new call's event, or None for a method that grpc itself handles."""


class CompletionQueueLoop(ThreadedLoop):
    """Before `serving` and after the server's end this is the ThreadedLoop it extends; in between it sleeps on the queue."""

    def __init__(self) -> None:
        super().__init__()
        self._methods: HotMethods | None = None
        self._wake_call: Any = None
        self._wake_sent = False
        self._wake_lock = threading.Lock()
        self._thread_id = 0
        self._baton = threading.Lock()
        """Held by the thread that runs the loop's work: the loop's own, but while it sleeps."""
        self._asleep = False
        self._sleeps_until_ns: int | None = None
        self._handshake = threading.Event()
        self._ended = threading.Event()

    # -- wiring

    def start_server(self, server: grpc.Server, methods: HotMethods) -> None:
        """Start `server` with its events drained by this loop. Raises RuntimeError when grpc does not behave as tested; the server is
        stopped then. `server` must not have been started, and gets a private port for the moment of the handshake."""
        self._methods = methods
        folder = Path(tempfile.mkdtemp(prefix="shoal-"))
        address = f"unix:{folder}/wake"
        try:
            server.add_insecure_port(address)
            with _replaced_serve(self._serve):
                server.start()
            with grpc.insecure_channel(address) as channel:
                method: Any = channel.unary_unary(WAKE_METHOD.decode())
                call = method.future(b"hello", timeout=10)
                if not self._handshake.wait(10):
                    raise RuntimeError("the completion queue's loop did not see its first call within 10 s")
                if call.result() != b"hello":
                    raise RuntimeError("the completion queue's loop answered its first call wrongly")
            woken = threading.Event()
            self.post(woken.set)
            if not woken.wait(10):
                raise RuntimeError("the completion queue could not be woken from another thread within 10 s")
        except BaseException:
            server.stop(0)
            raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)  # nobody else can connect from here on

    def start(self) -> None:
        """Nothing: the thread is grpc's serving thread, started by `start_server`."""

    def stop(self) -> None:
        """End the loop's thread; the server must have been stopped."""
        self._stopping = True
        self.wake()
        self._ended.wait()

    def wake(self) -> None:
        if self._wake_sent or threading.get_ident() == self._thread_id:
            return  # a wake is on its way, or the loop is awake and looks before it sleeps
        with self._wake_lock:
            call = self._wake_call
            if call is not None:
                if not self._wake_sent:
                    self._wake_sent = True
                    # A batch of no operations completes at once: the cheapest event that another thread can put on the queue.
                    call.start_server_batch((), _WAKE)
                return
        super().wake()

    def run_or_post(self, callback: Callback) -> None:
        if not self._baton.acquire(blocking=False):
            self.post(callback)  # the loop is awake
            return
        try:
            if not self._asleep:
                self.post(callback)
                return
            own, self._thread_id = self._thread_id, threading.get_ident()
            self._call(callback)
            self.run_ready()
            due = self.next_timer_ns()
            sleeps_until = self._sleeps_until_ns
            self._thread_id = own
            overslept = due is not None and (sleeps_until is None or due < sleeps_until)
        finally:
            self._baton.release()
        if overslept or self.has_ready():
            self.wake()

    # -- the loop

    def _serve(self, state: Any) -> None:
        """Runs in the place of grpc._server._serve, on the server's serving thread."""
        self._thread_id = threading.get_ident()
        self._baton.acquire()
        try:
            self._drain_queue(state)
        except BaseException:
            self.failed = True
            logger.critical("the gRPC loop ended by a fault of its own; requests in flight are lost", exc_info=True)
        with self._wake_lock:
            self._wake_call = None
        self._wake_sent = False
        self._thread_id = 0
        if not self._asleep:  # else it is not this thread that holds it
            self._baton.release()
        self._asleep = False
        self._run()  # HTTP requests in flight still need the core loop
        self._ended.set()

    def _drain_queue(self, state: Any) -> None:
        queue, server = state.completion_queue, state.server
        poll, request_call = queue.poll, server.request_call
        started, new_call = grpc_server._ServerStage.STARTED, grpc_server._REQUEST_CALL_TAG
        methods = self._methods
        handlers: dict[bytes, Callable[[Any], None] | None] = {}
        take_baton, release_baton = self._baton.acquire, self._baton.release
        block = True
        deadline: float | None = None
        assert methods is not None
        while True:
            if block:
                self._asleep = True
                release_baton()
                event = poll(deadline)
                take_baton()
                self._asleep = False
            else:
                event = poll(0)
            tag = event.tag
            if tag is SENT:
                pass  # nothing to do, and nothing new to look for: sleep on as before
            elif tag is None:  # nothing more to read just now
                self.run_ready()
                block, deadline = self._rest()
            elif tag is _WAKE:
                self._wake_sent = False
                self.run_posted()
                block = False
            elif tag is new_call:
                block = False
                handler = None
                if event.success:
                    method = event.call_details.method
                    if method in handlers:
                        handler = handlers[method]
                    elif method == WAKE_METHOD and self._wake_call is None:
                        handler = self._first_call
                    else:
                        handler = methods.accept(method)
                        if handler is not None:
                            handlers[method] = handler
                if handler is not None:
                    with state.lock:  # a stop on another thread must not come between the look and the request
                        if state.stage is started:
                            request_call(queue, queue, new_call)
                        else:
                            handler = None
                if handler is not None:
                    handler(event)
                elif not grpc_server._process_event_and_continue(state, event):
                    return
            elif isinstance(tag, CallTag):
                block = False
                tag.complete(event)
            elif not grpc_server._process_event_and_continue(state, event):
                return
            event = None  # a finished call must not live until the next event

    def _rest(self) -> tuple[bool, float | None]:
        """May the loop block, and until when (seconds of time.time())?"""
        if self._posted or self._deferred:
            return False, None
        exact, coarse = self.next_exact_ns(), self.next_coarse_ns()
        self._sleeps_until_ns = self.next_timer_ns()
        if self._sleeps_until_ns is None:
            return True, None
        now = self.now_ns()
        until = now + _FOREVER_NS if coarse is None else coarse + _GRAIN_NS
        if exact is not None:
            remaining = exact - now
            if remaining <= _SHORT_NS:
                if remaining > 2 * _NAP_S * 1e9:
                    time.sleep(_NAP_S)
                return False, None
            until = min(until, exact - _GRAIN_NS)
        return True, time.time() + max(0, until - now) / 1e9

    def _first_call(self, event: Any) -> None:
        call = event.call
        WakeHandshake(call, self._on_handshake)

    def _on_handshake(self, call: Any) -> None:
        with self._wake_lock:
            self._wake_call = call
        self._handshake.set()


class CallTag:
    """Base of the tags that the loop hands their completion to."""

    __slots__ = ()

    def complete(self, event: Any) -> None:
        """The operation is done. Must not raise."""


class WakeHandshake(CallTag):
    """The first call: answered with its own message, which proves that every operation used here works; then its call is kept."""

    __slots__ = ("_call", "_ready")

    def __init__(self, call: Any, ready: Callable[[Any], None]) -> None:
        self._call = call
        self._ready = ready
        call.start_server_batch((cygrpc.ReceiveMessageOperation(0),), self)

    def complete(self, event: Any) -> None:
        message = event.batch_operations[0].message()
        operations = (
            cygrpc.SendInitialMetadataOperation((), 0),
            cygrpc.SendMessageOperation(message, 0),
            cygrpc.SendStatusFromServerOperation((), 0, b"", 0),
            cygrpc.ReceiveCloseOnServerOperation(0),
        )
        self._call.start_server_batch(operations, SENT)
        self._ready(self._call)


_replace_lock = threading.Lock()


@contextlib.contextmanager
def _replaced_serve(serve: Callable[[Any], None]) -> Iterator[None]:
    """grpc looks `_serve` up in its module when a server starts; for that moment it is ours."""
    module: Any = grpc_server
    with _replace_lock:
        original = module._serve
        module._serve = serve
        try:
            yield
        finally:
            module._serve = original


def supported() -> str:
    """Return "" when this grpcio is one that the loop is tested on and has the names it uses, else a sentence that says why not."""
    version = grpc.__version__
    if not version.startswith(tuple(f"{minor}." for minor in TESTED)):
        return f"grpcio {version} is not one of the tested minors {', '.join(TESTED)}"
    needed = {
        grpc_server: ("_serve", "_process_event_and_continue", "_ServerStage", "_REQUEST_CALL_TAG"),
        cygrpc: (
            "ReceiveMessageOperation",
            "ReceiveCloseOnServerOperation",
            "SendInitialMetadataOperation",
            "SendMessageOperation",
            "SendStatusFromServerOperation",
        ),
    }
    missing = [
        f"{module.__name__}.{name}" for module, names in needed.items() for name in names if not hasattr(module, name)
    ]
    return f"grpcio {version} lacks {', '.join(missing)}" if missing else ""
