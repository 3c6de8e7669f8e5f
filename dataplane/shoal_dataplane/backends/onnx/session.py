"""Opening an ONNX model: session options and execution providers from the configuration, and the model's signature.

The parameters are those of Triton's onnxruntime backend: intra_op_thread_count, inter_op_thread_count, execution_mode,
enable_mem_arena, enable_mem_pattern, memory.enable_memory_arena_shrinkage, session.use_device_allocator_for_initializers,
optimization.graph.level and optimization.execution_accelerators.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any, Final

import onnxruntime as ort

from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.backends import parameters
from shoal_dataplane.backends.arrays.signature import ModelSignature, ModelTensor, can_batch
from shoal_dataplane.backends.base import InstanceSpec
from shoal_dataplane.backends.cores import intra_op_threads
from shoal_dataplane.core.errors import ServingError, internal, invalid

logger = logging.getLogger(__name__)

Provider = str | tuple[str, dict[str, str]]

_WIRE: Final = {
    "tensor(bfloat16)": "BF16",
    "tensor(bool)": "BOOL",
    "tensor(double)": "FP64",
    "tensor(float)": "FP32",
    "tensor(float16)": "FP16",
    "tensor(int16)": "INT16",
    "tensor(int32)": "INT32",
    "tensor(int64)": "INT64",
    "tensor(int8)": "INT8",
    "tensor(string)": "BYTES",
    "tensor(uint16)": "UINT16",
    "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64",
    "tensor(uint8)": "UINT8",
}

_LEVELS: Final = {
    -1: ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    0: ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
    1: ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    2: ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
}
"""optimization.graph.level to ONNX Runtime's levels, as Triton maps them."""

_ACCELERATORS: Final = {
    "cuda": "CUDAExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
}

_ANONYMOUS: Final = re.compile(r"unk__\d+|.*_dim_\d+")
"""Names that exporters make up for a free size that has none (tf2onnx; torch): equal sizes get different ones."""

_PREFIX: Final = re.compile(r"^\[ONNXRuntimeError\] : (\d+) : \w+ : ")
_MAX_MESSAGE: Final = 600


def open_session(config: mc.ModelConfig, path: Path, instance: InstanceSpec) -> ort.InferenceSession:
    """Load a model file for one instance.

    Raises ServingError: INVALID_ARGUMENT for a parameter or device that cannot be had, INTERNAL with the file's name when ONNX
    Runtime cannot load it.
    """
    return _session(config, path, session_options(config), providers(config, instance))


def read_signature(config: mc.ModelConfig, path: Path) -> ModelSignature:
    """Return the signature of a model file. Loads it on the CPU without optimizing it: the cheapest way to learn its shapes."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return signature_of(config, _session(config, path, options, ["CPUExecutionProvider"]))


def signature_of(config: mc.ModelConfig, session: ort.InferenceSession) -> ModelSignature:
    """Return the inputs and outputs of a loaded model. Raises ServingError(INVALID_ARGUMENT) for one that is no tensor."""
    inputs = tuple(_tensor(config, node) for node in session.get_inputs())
    outputs = tuple(_tensor(config, node) for node in session.get_outputs())
    return ModelSignature(inputs, outputs, can_batch(inputs, outputs))


def overridable_initializers(config: mc.ModelConfig, session: ort.InferenceSession) -> tuple[ModelTensor, ...]:
    """Return the weights that a request may replace: the only inputs that can be optional."""
    return tuple(_tensor(config, node) for node in session.get_overridable_initializers())


def session_options(config: mc.ModelConfig) -> ort.SessionOptions:
    """Return the session options that a configuration asks for."""
    options = ort.SessionOptions()
    threads = parameters.count(config, "intra_op_thread_count") or intra_op_threads(config)
    options.intra_op_num_threads = threads
    # Threads that spin between requests would keep a core busy in an idle server.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    mode = parameters.count(config, "execution_mode") or 0
    if mode > 1:
        raise invalid(
            f"model '{config.name}': Invalid configuration value provided. Expected values for execution_mode are 0 or 1 but got {mode}."
        )
    options.inter_op_num_threads = parameters.count(config, "inter_op_thread_count") or (threads if mode else 1)
    options.execution_mode = ort.ExecutionMode.ORT_PARALLEL if mode else ort.ExecutionMode.ORT_SEQUENTIAL
    level = config.optimization.graph.level
    if level not in _LEVELS:
        raise invalid(f"model '{config.name}': optimization.graph.level must be -1, 0, 1 or 2, got {level}")
    options.graph_optimization_level = _LEVELS[level]
    arena = parameters.flag(config, "enable_mem_arena")
    if arena is not None:
        options.enable_cpu_mem_arena = arena
    pattern = parameters.flag(config, "enable_mem_pattern")
    if pattern is not None:
        options.enable_mem_pattern = pattern
    key = "session.use_device_allocator_for_initializers"
    initializers = parameters.text(config, key)
    if initializers is not None:
        options.add_session_config_entry(key, initializers)
    # What fails is raised and reaches the caller; ONNX Runtime's own lines on stderr would only repeat it at each request.
    options.log_severity_level = 4
    for library in config.model_operations.op_library_filename:
        try:
            options.register_custom_ops_library(library)
        except Exception as error:
            raise invalid(
                f"model '{config.name}': cannot load the op library '{library}': {error_text(error)}"
            ) from error
    return options


def run_options(config: mc.ModelConfig) -> ort.RunOptions | None:
    """Return the options of each run that a configuration asks for, None for the defaults."""
    shrinkage = parameters.text(config, "memory.enable_memory_arena_shrinkage")
    if not shrinkage:
        return None
    options = ort.RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", shrinkage)
    return options


def providers(config: mc.ModelConfig, instance: InstanceSpec) -> list[Provider]:
    """Return the execution providers of an instance, most wanted first.

    An accelerator that Triton knows and this ONNX Runtime lacks is left out with a warning: it changes the speed, not the answers.
    Raises ServingError(INVALID_ARGUMENT) for one that nobody knows, and for a GPU instance without CUDA.
    """
    available = ort.get_available_providers()
    accelerators = config.optimization.execution_accelerators
    gpu = instance.kind == "GPU"
    wanted = accelerators.gpu_execution_accelerator if gpu else accelerators.cpu_execution_accelerator
    device = {"device_id": str(instance.device_id)} if gpu else {}
    cuda = dict(device)
    found: list[Provider] = []
    for accelerator in wanted:
        provider = _ACCELERATORS.get(accelerator.name)
        if provider is None:
            raise invalid(f"model '{config.name}': unknown Execution Accelerator '{accelerator.name}' is requested")
        if accelerator.name == "cuda":
            cuda |= dict(accelerator.parameters)
        elif provider in available:
            found.append((provider, device | dict(accelerator.parameters)))
        else:
            logger.warning(
                "model '%s': the execution accelerator '%s' is not in this onnxruntime and is ignored (it has %s)",
                config.name,
                accelerator.name,
                ", ".join(available),
            )
    if gpu:
        if "CUDAExecutionProvider" not in available:
            raise invalid(
                f"model '{config.name}': instance '{instance.name}' is KIND_GPU, but this onnxruntime has no CUDA (it has "
                f"{', '.join(available)}): install onnxruntime-gpu or set instance_group to KIND_CPU"
            )
        found.append(("CUDAExecutionProvider", cuda))
    return [*found, "CPUExecutionProvider"]


def error_text(error: Exception) -> str:
    """Return what ONNX Runtime says, on one line and with Triton's prefix "onnx runtime error <code>: "."""
    line = " ".join(str(error).split())
    line = _PREFIX.sub(r"onnx runtime error \1: ", line)
    return line if len(line) <= _MAX_MESSAGE else line[:_MAX_MESSAGE] + "..."


def _session(
    config: mc.ModelConfig, path: Path, options: ort.SessionOptions, wanted: list[Provider]
) -> ort.InferenceSession:
    try:
        session = ort.InferenceSession(str(path), options, providers=wanted)
    except Exception as error:  # its own exception types, but not for every failure
        raise internal(f"failed to load model '{config.name}' from '{path}': {error_text(error)}") from error
    first = wanted[0] if isinstance(wanted[0], str) else wanted[0][0]
    if session.get_providers()[0] != first:  # ONNX Runtime falls back to the CPU in silence
        raise internal(
            f"failed to load model '{config.name}' from '{path}': {first} could not be started (its libraries are missing or do not fit)"
        )
    return session


def _tensor(config: mc.ModelConfig, node: Any) -> ModelTensor:
    wire = _WIRE.get(node.type)
    if wire is None:
        raise _unsupported_type(config, node)
    shape = tuple(size if isinstance(size, int) and size >= 0 else -1 for size in node.shape)
    symbol = (
        node.shape[0]
        if node.shape and isinstance(node.shape[0], str) and not _ANONYMOUS.fullmatch(node.shape[0])
        else ""
    )
    return ModelTensor(node.name, wire, shape, symbol)


def _unsupported_type(config: mc.ModelConfig, node: Any) -> ServingError:
    return invalid(
        f"unable to load model '{config.name}': Unsupported ONNX Type '{node.type}' for I/O '{node.name}', expected a tensor of "
        f"{', '.join(sorted(set(_WIRE.values())))}"
    )
