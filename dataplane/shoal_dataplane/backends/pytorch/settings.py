"""What a configuration's `parameters` set for a PyTorch model (triton.md B9), and the process-wide settings of torch."""

from __future__ import annotations

import logging
import threading
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Final

import torch
from torch.jit._fuser import optimized_execution

from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.backends import parameters
from shoal_dataplane.backends.cores import intra_op_threads

logger = logging.getLogger(__name__)

_NO_EFFECT: Final = ("ENABLE_TENSOR_FUSER", "ENABLE_NVFUSER", "TORCH_COMPILE_OPTIONAL_PARAMETERS")


@dataclass(frozen=True, slots=True)
class TorchSettings:
    """Parameters of one model. None: not set. `inter_op_threads` is process-wide in torch, as are `jit_executor` and `jit_profiling`."""

    inference_mode: bool
    optimized_execution: bool
    jit_executor: bool | None
    jit_profiling: bool | None
    intra_op_threads: int
    inter_op_threads: int | None
    weight_sharing: bool | None
    cache_cleaning: bool
    cudnn: bool


def settings_of(config: mc.ModelConfig) -> TorchSettings:
    """Read the parameters. Raises ServingError(INVALID_ARGUMENT) for a value that is no number or no truth."""
    ignored = [key for key in _NO_EFFECT if key in config.parameters]
    if ignored:
        logger.info("model '%s': the parameters %s have no effect here", config.name, ", ".join(ignored))
    intra = parameters.count(config, "INTRA_OP_THREAD_COUNT") or parameters.count(config, "NUM_THREADS")
    inter = parameters.count(config, "INTER_OP_THREAD_COUNT") or parameters.count(config, "NUM_INTEROP_THREADS")
    return TorchSettings(
        inference_mode=parameters.flag(config, "INFERENCE_MODE") is not False,
        optimized_execution=parameters.flag(config, "DISABLE_OPTIMIZED_EXECUTION") is not True,
        jit_executor=parameters.flag(config, "ENABLE_JIT_EXECUTOR"),
        jit_profiling=parameters.flag(config, "ENABLE_JIT_PROFILING"),
        intra_op_threads=intra or intra_op_threads(config),
        inter_op_threads=inter or None,
        weight_sharing=parameters.flag(config, "ENABLE_WEIGHT_SHARING"),
        cache_cleaning=parameters.flag(config, "ENABLE_CACHE_CLEANING") is True,
        cudnn=parameters.flag(config, "DISABLE_CUDNN") is not True,
    )


class _ThreadState(threading.local):
    threads = 0


_here = _ThreadState()


def use_intra_op_threads(count: int) -> None:
    """Let operators called from this thread use `count` threads.

    torch keeps the number for each thread; a thread that runs several models gets each model's own. Nothing is done when the
    thread already has it.
    """
    if _here.threads != count:
        torch.set_num_threads(count)
        _here.threads = count


_inter_op_lock = threading.Lock()
_inter_op: int | None = None


def use_inter_op_threads(model: str, count: int) -> None:
    """Set the process-wide number of threads for parallel branches. torch takes it once: the first model's value stays (as in Triton)."""
    global _inter_op
    with _inter_op_lock:
        if _inter_op is None:
            try:
                torch.set_num_interop_threads(count)
            except RuntimeError:  # torch has already started those threads
                logger.warning(
                    "model '%s': INTER_OP_THREAD_COUNT %d comes too late, torch is already running", model, count
                )
                return
            _inter_op = count
        elif _inter_op != count:
            logger.warning(
                "model '%s': INTER_OP_THREAD_COUNT %d is ignored, the process has %d", model, count, _inter_op
            )


def apply_process_settings(model: str, settings: TorchSettings) -> None:
    """Set what torch only knows for the whole process, when the model asks for it."""
    if settings.inter_op_threads is not None:
        use_inter_op_threads(model, settings.inter_op_threads)
    if settings.jit_profiling is not None:
        torch._C._jit_set_profiling_mode(settings.jit_profiling)
        logger.info(
            "model '%s': ENABLE_JIT_PROFILING=%s holds for every TorchScript model loaded from now on",
            model,
            settings.jit_profiling,
        )
    if settings.jit_executor is not None:
        torch._C._jit_set_profiling_executor(settings.jit_executor)
        logger.info(
            "model '%s': ENABLE_JIT_EXECUTOR=%s holds for every TorchScript model loaded from now on",
            model,
            settings.jit_executor,
        )


class _Modes:
    """Several modes entered together; reusable, by one thread at a time."""

    def __init__(self, settings: TorchSettings, stream: torch.cuda.Stream | None) -> None:
        self._settings = settings
        self._stream = stream
        self._stack = ExitStack()

    def __enter__(self) -> None:
        with ExitStack() as stack:  # leaves those that were entered when a later one fails
            if self._stream is not None:
                stack.enter_context(torch.cuda.stream(self._stream))
            stack.enter_context(torch.inference_mode() if self._settings.inference_mode else torch.no_grad())
            if not self._settings.optimized_execution:
                stack.enter_context(optimized_execution(False))
            if not self._settings.cudnn:
                stack.enter_context(torch.backends.cudnn.flags(enabled=False))
            self._stack = stack.pop_all()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, traceback)


def execution_mode(settings: TorchSettings, stream: torch.cuda.Stream | None) -> AbstractContextManager[object]:
    """Return the modes to run a model in, as one context manager that an instance enters for each batch (1.5 us);
    `stream` is the instance's own on a GPU.

    The modes belong to the thread that enters them, so an instance cannot stay in them: its next batch may come on another thread.
    """
    if stream is None and settings.optimized_execution and settings.cudnn:
        return torch.inference_mode() if settings.inference_mode else torch.no_grad()
    return _Modes(settings, stream)
