"""Running batches in a PyTorch program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter_ns

import torch

from shoal_dataplane.backends.arrays.requested import requested_outputs
from shoal_dataplane.backends.arrays.stacking import Stacker
from shoal_dataplane.backends.base import Execution, ModelContext
from shoal_dataplane.backends.pytorch.binding import Binding
from shoal_dataplane.backends.pytorch.errors import error_text
from shoal_dataplane.backends.pytorch.program import Program
from shoal_dataplane.backends.pytorch.settings import TorchSettings, execution_mode, use_intra_op_threads
from shoal_dataplane.core.errors import ServingError, internal
from shoal_dataplane.core.request import InferRequest

_new_stream: Callable[[torch.device], torch.cuda.Stream] = torch.cuda.Stream


class TorchInstance:
    """One program on one device.

    On the CPU, tensors share memory with the arrays they come from and go to, except that a program that writes into its inputs gets
    copies (they may be the request's own message) and the outputs of a program with a state are copied (they may be that state).
    On a GPU each instance has its own stream, so that instances overlap.
    """

    def __init__(
        self, context: ModelContext, program: Program, binding: Binding, settings: TorchSettings, device: torch.device
    ) -> None:
        self._name = context.name
        self._stacker = Stacker(context.spec, context.config)
        self._binding = binding
        self._program: Program | None = program
        self._threads = settings.intra_op_threads
        self._cuda = device if device.type == "cuda" else None
        stream = _new_stream(device) if self._cuda is not None else None
        self._mode = execution_mode(settings, stream)
        self._clean_cache = settings.cache_cleaning and self._cuda is not None

    def execute(self, requests: Sequence[InferRequest]) -> Execution:
        """Run the batch."""
        program = self._program
        if program is None:
            raise internal(f"instance of model '{self._name}' is closed")
        started = perf_counter_ns()
        use_intra_op_threads(self._threads)
        arrays = self._stacker.gather(requests)
        with self._mode:
            try:
                arguments = self._binding.arguments(arrays)
                ready = perf_counter_ns()
                results = program.run(arguments)
                if self._cuda is not None:  # kernels run on; without waiting their time would count as output's
                    torch.cuda.current_stream(self._cuda).synchronize()
                done = perf_counter_ns()
                outputs = self._binding.arrays(results, requested_outputs(requests, self._binding.outputs))
            except ServingError:
                raise
            except Exception as error:
                raise internal(f"PyTorch execute failure: {error_text(error)}") from error
        responses = self._stacker.scatter(outputs, requests)
        if self._clean_cache:
            torch.cuda.empty_cache()
        return Execution(responses, ready - started, done - ready, perf_counter_ns() - done)

    def close(self) -> None:
        """Let go of the program; its memory is freed with the last instance that shares it."""
        self._program = None
