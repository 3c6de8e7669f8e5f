"""The gRPC door on grpc.aio's public API alone: the fallback where the fast front does not fit the installed grpcio.

Slower (see server.completion_queue), the same behaviour: both fronts pass the same protocol tests.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

from shoal_api.protocol import INFERENCE_SERVICE
from shoal_dataplane.codec.classification import classify_outputs
from shoal_dataplane.codec.message import RequestDecoder
from shoal_dataplane.codec.reply import ResponseEncoder, stream_error
from shoal_dataplane.core.errors import ServingError
from shoal_dataplane.core.request import InferRequest
from shoal_dataplane.core.response import InferResponse
from shoal_dataplane.options import GrpcOptions
from shoal_dataplane.server.grpc_common import (
    STATUS,
    STREAM_WINDOW,
    Carrier,
    cannot_listen,
    channel_options,
    credentials,
    details,
    prepare,
    shutting_down,
)
from shoal_dataplane.server.grpc_door import reflection_pool
from shoal_dataplane.server.grpc_health import HealthReporter
from shoal_dataplane.server.grpc_methods import Method, methods
from shoal_dataplane.server.listen import bind
from shoal_dataplane.service import InferenceService


class _Call:
    """The handle of one request; encodes on the core loop's thread and hands the bytes to asyncio."""

    def __init__(
        self, encoder: ResponseEncoder, loop: asyncio.AbstractEventLoop, classes: Mapping[str, int], stream: bool
    ) -> None:
        self.answers: asyncio.Queue[tuple[bytes, ServingError | None, bool]] = asyncio.Queue()
        self._encoder = encoder
        self._loop = loop
        self._classes = classes
        self._stream = stream

    def respond(self, request: InferRequest, response: InferResponse) -> None:
        error = response.error
        payload = b""
        if error is None:
            try:
                classify_outputs(response, request, self._classes)
                payload = (
                    self._encoder.encode_stream(request, response)
                    if self._stream
                    else self._encoder.encode(request, response)
                )
            except ServingError as failed:
                error = failed
        if error is not None and self._stream:
            payload = stream_error(error, request.id)
        self._loop.call_soon_threadsafe(self.answers.put_nowait, (payload, error, response.final))


class AioGrpcDoor:
    """A grpc.aio server on an asyncio loop and a thread of its own. `port` is the bound port."""

    def __init__(self, service: InferenceService, options: GrpcOptions) -> None:
        self._service = service
        self._options = options
        self.port = 0
        self._decoder = RequestDecoder()
        self._encoder = ResponseEncoder()
        self._carrier = Carrier(options.header_forward_pattern)
        self._pool = ThreadPoolExecutor(8, thread_name_prefix="shoal-grpc")
        self._slow_pool = ThreadPoolExecutor(16, thread_name_prefix="shoal-grpc-load")
        self._thread = threading.Thread(target=self._run, name="shoal-grpc-aio", daemon=True)
        self._started: Future[int] = Future()
        self._ended = threading.Event()
        self._aio: asyncio.AbstractEventLoop | None = None
        self._server: Any = None
        self._health: Any = None
        self._reporter: HealthReporter | None = None
        self._refusing = False
        self._stopping: asyncio.Future[None] | None = None

    def start(self) -> None:
        """Bind and serve. Raises OSError when the address cannot be bound."""
        self._thread.start()
        self.port = self._started.result()
        self._reporter = HealthReporter(self._service, self._set_health)
        self._reporter.start()

    def drain(self) -> None:
        """Answer new inference requests with UNAVAILABLE from now on; those in flight go on."""
        self._refusing = True
        if self._aio is not None and not self._ended.is_set():
            asyncio.run_coroutine_threadsafe(self._health.enter_graceful_shutdown(), self._aio)

    def stop(self, grace_seconds: float) -> threading.Event:
        """Refuse new calls now, let those in flight finish for at most `grace_seconds`. The event is set at the end."""
        if self._aio is not None and not self._ended.is_set():
            asyncio.run_coroutine_threadsafe(self._stop(grace_seconds), self._aio).result()
        return self._ended

    def close(self) -> None:
        """After `stop`'s event: end the helpers' threads."""
        if self._reporter is not None:
            self._reporter.stop()
        self._thread.join()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._slow_pool.shutdown(wait=False, cancel_futures=True)

    def _set_health(self, service: str, status: int) -> None:
        if self._aio is not None and not self._ended.is_set():
            asyncio.run_coroutine_threadsafe(self._health.set(service, status), self._aio)

    async def _stop(self, grace_seconds: float) -> None:
        """Returns when new calls are refused; the stop itself goes on."""
        self._refusing = True
        await self._health.enter_graceful_shutdown()
        self._stopping = asyncio.ensure_future(self._server.stop(grace_seconds))
        await asyncio.sleep(0)  # its first step runs, which tells grpc's core

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception as error:
            if not self._started.done():
                self._started.set_exception(error)
        self._ended.set()

    async def _serve(self) -> None:
        self._aio = asyncio.get_running_loop()
        self._server = server = grpc.aio.server(options=channel_options(self._options))
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            name: grpc.unary_unary_rpc_method_handler(self._control(method))
            for name, method in methods(self._service).items()
        }
        handlers["ModelInfer"] = grpc.unary_unary_rpc_method_handler(self._infer)
        handlers["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(self._stream)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(INFERENCE_SERVICE, handlers),))
        self._health = HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = (INFERENCE_SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server, pool=reflection_pool())
        address = f"{self._options.address}:{self._options.port}"
        bind(self._options.address, self._options.port, self._options.reuse_port, "--grpc-port").close()
        try:
            tls = self._options.tls
            port = (
                server.add_insecure_port(address) if tls is None else server.add_secure_port(address, credentials(tls))
            )
        except RuntimeError as error:
            raise cannot_listen(address, str(error)) from error
        await server.start()
        self._started.set_result(port)
        await server.wait_for_termination()

    def _control(self, method: Method) -> Any:
        pool = self._slow_pool if method.slow else self._pool

        async def call(message: bytes, context: Any) -> bytes:
            try:
                return await asyncio.get_running_loop().run_in_executor(pool, method.answer, message)
            except ServingError as error:
                await context.abort(STATUS[int(error.code)], details(error).decode(errors="replace"))
                raise AssertionError("abort raises") from error

        return call

    def _open(self, message: bytes, context: Any, stream: bool) -> tuple[InferRequest, _Call]:
        """Decode a message. Raises ServingError."""
        if self._refusing:
            raise shutting_down()
        call = _Call(self._encoder, asyncio.get_running_loop(), {}, stream)
        request, header = self._decoder.decode(message, call, time.monotonic_ns())
        call._classes = header.classes
        metadata = context.invocation_metadata() or ()
        remaining = context.time_remaining()
        deadline_ns = None if remaining is None else time.monotonic_ns() + int(remaining * 1e9)
        prepare(request, self._carrier.carried(metadata), self._carrier.forwarded(metadata), deadline_ns)
        return request, call

    def _submit(self, request: InferRequest) -> None:
        self._service.loop.post(lambda: self._service.submit(request))

    def _cancel(self, request: InferRequest) -> None:
        self._service.loop.post(lambda: self._service.cancel(request))

    async def _infer(self, message: bytes, context: Any) -> bytes:
        try:
            request, call = self._open(message, context, stream=False)
        except ServingError as error:
            self._service.refused(error)
            await context.abort(STATUS[int(error.code)], details(error).decode(errors="replace"))
            raise AssertionError("abort raises") from error
        self._submit(request)
        try:
            payload, failed, _ = await call.answers.get()
        except asyncio.CancelledError:
            self._cancel(request)
            raise
        if failed is not None:
            await context.abort(STATUS[int(failed.code)], details(failed).decode(errors="replace"))
        return payload

    async def _stream(self, messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        strict = any(
            name == "triton_grpc_error" and value == "true" for name, value in context.invocation_metadata() or ()
        )
        window = asyncio.Semaphore(STREAM_WINDOW)
        waiting: asyncio.Queue[tuple[InferRequest | None, _Call | ServingError] | None] = asyncio.Queue()
        open_requests: deque[InferRequest] = deque()

        async def read() -> None:
            async for message in messages:
                await window.acquire()
                try:
                    request, call = self._open(message, context, stream=True)
                except ServingError as error:
                    self._service.refused(error)
                    waiting.put_nowait((None, error))
                    continue
                open_requests.append(request)
                self._submit(request)
                waiting.put_nowait((request, call))
            waiting.put_nowait(None)

        reader = asyncio.ensure_future(read())
        try:
            while (entry := await waiting.get()) is not None:
                request, call = entry
                final = False
                while not final:
                    failed: ServingError | None
                    if isinstance(call, ServingError):
                        payload, failed, final = stream_error(call, ""), call, True
                    else:
                        payload, failed, final = await call.answers.get()
                    if failed is not None and strict:
                        await context.abort(STATUS[int(failed.code)], details(failed).decode(errors="replace"))
                    yield payload
                if request is not None:
                    open_requests.remove(request)
                window.release()
        finally:
            reader.cancel()
            for request in open_requests:
                self._cancel(request)
