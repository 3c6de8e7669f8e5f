"""What a model file says about its inputs and outputs, and how a configuration is completed from it and checked against it.

Wording and rules are those of Triton's onnxruntime backend (AutoCompleteConfig, ValidateInputs, ValidateOutputs, CompareDimsSupported).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from google.protobuf.internal.containers import RepeatedCompositeFieldContainer

from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.core.dtypes import BY_WIRE, config_name
from shoal_dataplane.core.errors import ServingError, invalid

logger = logging.getLogger(__name__)

ConfigTensors = RepeatedCompositeFieldContainer[mc.ModelInput] | RepeatedCompositeFieldContainer[mc.ModelOutput]

DEFAULT_MAX_BATCH_SIZE = 4
"""Triton's, for a model that can batch and whose configuration does not say how far (triton.md B5)."""


@dataclass(frozen=True, slots=True)
class ModelTensor:
    """One input or output as the model file declares it. `datatype` is the KServe wire name; `shape` is the full shape with -1 for a
    size that is free; `batch_symbol` names the free first size where the file does (two names: two different sizes)."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    batch_symbol: str = ""


@dataclass(frozen=True, slots=True)
class ModelSignature:
    """The inputs and outputs of a model file. `batches`: may the first dimension of all of them be a batch of any size?
    `max_batch_size` is the file's own limit to it, None without one."""

    inputs: tuple[ModelTensor, ...]
    outputs: tuple[ModelTensor, ...]
    batches: bool
    max_batch_size: int | None = None


def can_batch(inputs: Sequence[ModelTensor], outputs: Sequence[ModelTensor]) -> bool:
    """Is the first dimension of every tensor free, and not named differently in two inputs?"""
    free = all(t.shape and t.shape[0] == -1 for t in (*inputs, *outputs))
    return free and len({t.batch_symbol for t in inputs if t.batch_symbol}) <= 1


def is_complete(config: mc.ModelConfig) -> bool:
    """Does the configuration name its inputs and outputs, so that nothing is completed (as in Triton)?"""
    return bool(config.input or config.batch_input) and bool(config.output)


def default_max_batch_size(config: mc.ModelConfig, backend_options: dict[str, str]) -> int:
    """Return --backend-config's default-max-batch-size, or 4. Raises ServingError(INVALID_ARGUMENT) when it is no number."""
    value = backend_options.get("default-max-batch-size", "")
    if not value:
        return DEFAULT_MAX_BATCH_SIZE
    if not (value.isascii() and value.isdigit()):
        raise invalid(
            f"model '{config.name}': the backend option default-max-batch-size must be a whole number of 0 or more, got '{value}'"
        )
    return int(value)


def complete_config(config: mc.ModelConfig, signature: ModelSignature, default_batch: int) -> None:
    """Fill `max_batch_size`, `input`, `output` and `dynamic_batching` where the configuration leaves them open, in place.

    Raises ServingError(INVALID_ARGUMENT) when the configuration sets `max_batch_size` and the model cannot batch.
    """
    if not signature.batches:
        if config.max_batch_size:
            raise invalid(
                f"autofill failed for model '{config.name}': model does not support batching while non-zero max_batch_size is specified"
            )
    elif not config.max_batch_size and not _configured_in_full(config, signature):
        limit = signature.max_batch_size
        config.max_batch_size = default_batch if limit is None else min(default_batch, limit)
        logger.info(
            "model '%s' can batch and its configuration sets no max_batch_size: autofilled max_batch_size to %d; set it to batch further",
            config.name,
            config.max_batch_size,
        )
    if config.max_batch_size > 1 and config.WhichOneof("scheduling_choice") is None:
        config.dynamic_batching.SetInParent()
    if not (config.input or config.batch_input):
        _fill(config.input, signature.inputs, batched=config.max_batch_size > 0)
    if not config.output:
        _fill(config.output, signature.outputs, batched=config.max_batch_size > 0)


def _configured_in_full(config: mc.ModelConfig, signature: ModelSignature) -> bool:
    """Does a tensor that is configured already carry the model's first dimension in its dims, so that 0 is meant?"""
    ranks = {t.name: len(t.shape) for t in (*signature.inputs, *signature.outputs)}
    configured = {t.name: len(t.dims) for t in config.input} | {t.name: len(t.dims) for t in config.output}
    return any(rank == ranks.get(name) for name, rank in configured.items())


def _fill(target: ConfigTensors, tensors: Sequence[ModelTensor], *, batched: bool) -> None:
    for tensor in tensors:
        entry = target.add(name=tensor.name, data_type=BY_WIRE[tensor.datatype].config)
        dims = tensor.shape[1:] if batched else tensor.shape
        entry.dims.extend(dims or (1,))
        if (
            batched and not dims
        ):  # a configuration has no rank 0: dims [1], which the model sees as one number a request
            entry.reshape.SetInParent()


def check_tensor(
    config: mc.ModelConfig, tensor: mc.ModelInput | mc.ModelOutput, model: ModelTensor, *, shape: bool = True
) -> None:
    """Check one configured tensor against the model's. Raises ServingError(INVALID_ARGUMENT), in Triton's words.

    `shape` False leaves the shape unchecked (ragged inputs, batch outputs: what is sent is not what the model sees).
    """
    kind = "input" if isinstance(tensor, mc.ModelInput) else "output"
    if tensor.data_type != BY_WIRE[model.datatype].config:
        raise invalid(
            f"unable to load model '{config.name}', configuration expects datatype {mc.DataType.Name(tensor.data_type)} for {kind} "
            f"'{tensor.name}', model provides {config_name(model.datatype)}"
        )
    if not shape:
        return
    dims = tuple(tensor.reshape.shape) if tensor.HasField("reshape") else tuple(tensor.dims)
    if not model.shape:
        _check_scalar(config, tensor.name, dims)
    elif config.max_batch_size > 0:
        if model.shape[0] != -1:
            raise invalid(
                f"model '{config.name}', tensor '{tensor.name}': for the model to support batching the shape should have at least 1 "
                f"dimension and the first dimension must be -1; but shape expected by the model is {_text(model.shape)}"
            )
        full = (-1, *dims)
        if not _agree(model.shape, full):
            raise _mismatch(
                config,
                tensor.name,
                model,
                f"{len(full)} dimensions (an initial batch dimension because max_batch_size > 0 followed by the explicit tensor "
                f"shape, making complete shape {_text(full)})",
            )
    elif not _agree(model.shape, dims):
        raise _mismatch(config, tensor.name, model, f"{len(dims)} dimensions (shape {_text(dims)})")


def _check_scalar(config: mc.ModelConfig, name: str, dims: tuple[int, ...]) -> None:
    if config.max_batch_size > 0 or any(dim != 1 for dim in dims):
        raise invalid(
            f"unable to load model '{config.name}', scalar tensor '{name}', should only provide 1 in the model configuration when the "
            f"model doesn't support batching. Model configuration provided: {_text(dims)} with max_batch_size {config.max_batch_size}."
        )


def check_max_batch_size(config: mc.ModelConfig, signature: ModelSignature) -> None:
    """Raises ServingError(INVALID_ARGUMENT) when the model's own limit to the batch is below the configuration's."""
    limit = signature.max_batch_size
    if config.max_batch_size and limit is not None and config.max_batch_size > limit:
        raise invalid(
            f"unable to load model '{config.name}', configuration sets max_batch_size {config.max_batch_size}, model was exported for "
            f"at most {limit}"
        )


def _agree(model: tuple[int, ...], configured: tuple[int, ...]) -> bool:
    return len(model) == len(configured) and all(
        -1 in pair or pair[0] == pair[1] for pair in zip(model, configured, strict=True)
    )


def _mismatch(config: mc.ModelConfig, name: str, model: ModelTensor, configured: str) -> ServingError:
    return invalid(
        f"model '{config.name}', tensor '{name}': the model expects {len(model.shape)} dimensions (shape {_text(model.shape)}) but the "
        f"model configuration specifies {configured}"
    )


def _text(shape: Sequence[int]) -> str:
    """A shape in Triton's notation: [-1,3,224,224]."""
    return f"[{','.join(map(str, shape))}]"
