"""One loaded Python model: a TritonPythonModel object behind the interface of every backend."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import json
import logging
import threading
import time
from collections.abc import Coroutine, Sequence
from typing import Any

from shoal_dataplane.backends.base import Execution, InstanceSpec, ModelContext
from shoal_dataplane.backends.python.loader import describe, forget
from shoal_dataplane.backends.python.outputs import OutputChecker, map_shape, reshaped
from shoal_dataplane.backends.python.pb_utils.request import wrap_request
from shoal_dataplane.codec.proto_json import to_json
from shoal_dataplane.core.errors import internal
from shoal_dataplane.core.request import InferRequest

logger = logging.getLogger(__name__)

_PLUMBING = (__file__, inspect.getfile(concurrent.futures.Future))
READY_SECONDS = 5.0
"""How long is_ready may take (triton.md F3)."""


class PythonInstance:
    """`initialize` has run when it is made. `execute`, and later `close`, are called from one thread at a time."""

    def __init__(self, context: ModelContext, instance: InstanceSpec, model_class: Any) -> None:
        """Raises ServingError(INTERNAL) with what `initialize` raised and where."""
        self._name = instance.name
        self._version = context.version
        self._output_names = list(context.spec.outputs)
        self._outputs = OutputChecker(context.spec, instance.name)
        batched = context.spec.max_batch_size > 0
        self._reshapes = {
            spec.name: (int(batched), spec.dims, spec.reshape)
            for spec in context.spec.inputs.values()
            if spec.reshape is not None
        }
        self._runner = _CoroutineRunner(instance.name)
        self._model_class = model_class
        try:
            self._model = model_class()
            if hasattr(self._model, "initialize"):
                self._model.initialize(arguments(context, instance))
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            self._runner.close()
            raise internal(describe(error)) from error
        if not callable(getattr(self._model, "execute", None)):
            self._runner.close()
            raise internal(f"Python model '{context.name}' does not implement `execute` method.")

    def execute(self, requests: Sequence[InferRequest]) -> Execution:
        started = time.perf_counter_ns()
        if self._reshapes:
            self._reshape(requests)
        names, version = self._output_names, self._version
        wrapped = [wrap_request(request, names, version) for request in requests]
        entered = time.perf_counter_ns()
        try:
            returned = self._model.execute(wrapped)
            if inspect.iscoroutine(returned):
                returned = self._runner.run(returned)
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            failed = self._outputs.error(describe(error))
            logger.error("%s", failed.message)
            raise failed from None
        left = time.perf_counter_ns()
        responses = self._outputs.responses(requests, returned)
        return Execution(responses, entered - started, left - entered, time.perf_counter_ns() - left)

    def has_readiness_check(self) -> bool:
        """Does the model define `is_ready`?"""
        return callable(getattr(self._model, "is_ready", None))

    def is_ready(self) -> bool:
        """What the model's own `is_ready` says; from any thread. Raises whatever it raises, TypeError when it returns no bool."""
        answer = self._model.is_ready()
        if inspect.iscoroutine(answer):
            answer = self._runner.run(answer, READY_SECONDS)
        if not isinstance(answer, bool):
            raise TypeError("is_ready() must return a boolean value")
        return answer

    def close(self) -> None:
        """Run `finalize`, whose failure is logged."""
        try:
            if hasattr(self._model, "finalize"):
                self._model.finalize()
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            logger.error("finalize of model instance '%s' failed: %s", self._name, describe(error))
        self._runner.close()
        self._model = None
        forget(self._model_class)

    def _reshape(self, requests: Sequence[InferRequest]) -> None:
        for request in requests:
            for name, (skip, dims, reshape) in self._reshapes.items():
                tensor = request.inputs.get(name)
                if tensor is not None:
                    shape = tensor.shape
                    mapped = (*shape[:skip], *map_shape(shape[skip:], dims, reshape))
                    request.inputs = {**request.inputs, name: reshaped(tensor, mapped)}


def arguments(context: ModelContext, instance: InstanceSpec) -> dict[str, str]:
    """What `initialize` is given (triton.md F3)."""
    return {
        "model_config": json.dumps(to_json(context.config)),
        "model_instance_kind": instance.kind,
        "model_instance_name": instance.name,
        "model_instance_device_id": str(instance.device_id),
        "model_repository": str(context.model_dir),
        "model_version": str(context.version),
        "model_name": context.name,
    }


class _CoroutineRunner:
    """An event loop on a thread of its own, as in Triton: what `async def execute` starts goes on after it returns. Made when needed."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def run(self, coroutine: Coroutine[Any, Any, Any], timeout: float | None = None) -> Any:
        """Run to the end and return the result. Raises TimeoutError."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name=f"shoal-async-{self._name}", daemon=True
                )
                self._thread.start()
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(timeout)
        except BaseException as error:
            future.cancel()
            traceback = error.__traceback__
            while traceback is not None and traceback.tb_frame.f_code.co_filename in _PLUMBING:
                traceback = traceback.tb_next
            raise error.with_traceback(traceback) from None

    def close(self) -> None:
        """Cancel what still runs, and end the thread."""
        if self._loop is None or self._thread is None:
            return
        asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).add_done_callback(self._stop)
        self._thread.join(READY_SECONDS)
        if not self._thread.is_alive():
            self._loop.close()

    def _stop(self, _: object) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._loop.stop)


async def _cancel_others() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
