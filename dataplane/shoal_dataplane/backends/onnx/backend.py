"""The ONNX Runtime backend: model.onnx (with external data files beside it, or a folder of that name that holds one)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import onnxruntime as ort

from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.backends import parameters
from shoal_dataplane.backends.arrays.signature import (
    ModelSignature,
    ModelTensor,
    check_tensor,
    complete_config,
    default_max_batch_size,
    is_complete,
)
from shoal_dataplane.backends.base import Backend, Instance, InstanceSpec, ModelContext
from shoal_dataplane.backends.model_files import find_model_file
from shoal_dataplane.backends.onnx.instance import OnnxInstance
from shoal_dataplane.backends.onnx.session import (
    open_session,
    overridable_initializers,
    read_signature,
    run_options,
    signature_of,
)
from shoal_dataplane.backends.sharing import SharedModels, load_key
from shoal_dataplane.core.errors import invalid

logger = logging.getLogger(__name__)

_NO_EFFECT: Final = ("arena_extend_strategy", "cudnn_conv_algo_search", "do_copy_in_default_stream", "gpu_mem_limit")
"""Triton's deprecated spelling of CUDA provider options; optimization.execution_accelerators takes them under "cuda"."""


class OnnxBackend:
    """Loads ONNX files into ONNX Runtime sessions, one for each instance unless they share one."""

    default_filename = "model.onnx"
    default_execution = "auto"

    def __init__(self) -> None:
        self._shared: SharedModels[ort.InferenceSession] = SharedModels()

    def auto_complete(self, config: mc.ModelConfig, version_dir: Path, backend_options: dict[str, str]) -> None:
        """Fill max_batch_size (4, or the option default-max-batch-size, when every first dimension is free), inputs, outputs and
        dynamic_batching from the file. A configuration that names inputs and outputs is left alone; `load` checks it."""
        if is_complete(config):
            return
        default_batch = default_max_batch_size(config, backend_options)
        complete_config(config, read_signature(config, self._file(config, version_dir)), default_batch)

    def load(self, context: ModelContext, instance: InstanceSpec) -> Instance:
        """Open a session and check the configuration against it."""
        config = context.config
        path = self._file(config, context.version_dir)
        if parameters.flag(config, "share_session_between_instances"):
            session = self._shared.get(load_key(config, path, instance), lambda: open_session(config, path, instance))
        else:
            session = open_session(config, path, instance)
        ignored = [key for key in _NO_EFFECT if key in config.parameters]
        if ignored:
            logger.info("model '%s': the parameters %s have no effect here", config.name, ", ".join(ignored))
        signature = signature_of(config, session)
        initializers = overridable_initializers(config, session)
        _check(config, signature, initializers)
        return OnnxInstance(
            context, session, (*signature.inputs, *initializers), signature.outputs, run_options(config)
        )

    def _file(self, config: mc.ModelConfig, version_dir: Path) -> Path:
        path = find_model_file(config, version_dir, (self.default_filename,))
        return path / self.default_filename if path.is_dir() else path


def _check(config: mc.ModelConfig, signature: ModelSignature, initializers: Sequence[ModelTensor]) -> None:
    """Check names, datatypes and shapes. Raises ServingError(INVALID_ARGUMENT) in Triton's words."""
    generated = [name for batch_input in config.batch_input for name in batch_input.target_name]
    required = [t.name for t in config.input if not t.optional] + generated
    if len(required) != len(signature.inputs):
        provided = ", ".join(t.name for t in signature.inputs)
        raise invalid(
            f"unable to load model '{config.name}', configuration expects {len(required)} inputs, model provides "
            f"{len(signature.inputs)}: {provided}"
        )
    inputs = {t.name: t for t in (*signature.inputs, *initializers)}
    for name in generated:
        if name not in inputs:
            raise _unexpected(config, "input", name, inputs)
    for tensor in config.input:
        model = inputs.get(tensor.name)
        if model is None:
            raise _unexpected(config, "input", tensor.name, inputs)
        if tensor.optional and config.max_batch_size > 0:
            raise invalid(
                f"unable to load model '{config.name}', optional input '{tensor.name}' is not supported for models that support batching"
            )
        if tensor.allow_ragged_batch and model.shape != (-1,):
            raise invalid(
                f"unable to load model '{config.name}', configuration expects model provides input with shape [-1] for ragged input "
                f"'{tensor.name}', model provides [{','.join(map(str, model.shape))}]"
            )
        check_tensor(config, tensor, model, shape=not tensor.allow_ragged_batch)
    outputs = {t.name: t for t in signature.outputs}
    scattered = {name for batch_output in config.batch_output for name in batch_output.target_name}
    for output in config.output:
        model = outputs.get(output.name)
        if model is None:
            raise _unexpected(config, "output", output.name, outputs)
        check_tensor(config, output, model, shape=output.name not in scattered)


def _unexpected(config: mc.ModelConfig, kind: str, name: str, allowed: dict[str, ModelTensor]) -> Exception:
    return invalid(
        f"unable to load model '{config.name}', unexpected inference {kind} '{name}', allowed {kind}s are: {', '.join(allowed)}"
    )


BACKEND: Final[Backend] = OnnxBackend()
