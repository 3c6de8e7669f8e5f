"""`triton_python_backend_utils`, as a model.py written for Triton imports it.

`install` makes it importable under that name, which is done only where a Python model is loaded: in its worker process or, when the
model's owner has chosen to run it there, in the server's. Names and behaviour are Triton's (python_backend, r24.10 and later); what
differs is said where it differs.
"""

from __future__ import annotations

import sys

from shoal_dataplane.backends.python.pb_utils.datatypes import (
    TRITON_STRING_TO_NUMPY,
    deserialize_bytes_tensor,
    numpy_to_triton_type,
    serialize_byte_tensor,
    triton_string_to_numpy,
    triton_to_numpy_type,
)
from shoal_dataplane.backends.python.pb_utils.errors import TritonError, TritonModelException
from shoal_dataplane.backends.python.pb_utils.logger import Logger, LogLevel
from shoal_dataplane.backends.python.pb_utils.metrics import Metric, MetricFamily
from shoal_dataplane.backends.python.pb_utils.model_config import (
    ModelConfig,
    get_input_config_by_name,
    get_output_config_by_name,
    using_decoupled_model_transaction_policy,
)
from shoal_dataplane.backends.python.pb_utils.request import (
    TRITONSERVER_MEMORY_CPU,
    TRITONSERVER_MEMORY_GPU,
    TRITONSERVER_REQUEST_FLAG_SEQUENCE_END,
    TRITONSERVER_REQUEST_FLAG_SEQUENCE_START,
    TRITONSERVER_REQUEST_RELEASE_ALL,
    TRITONSERVER_REQUEST_RELEASE_RESCHEDULE,
    TRITONSERVER_RESPONSE_COMPLETE_FINAL,
    InferenceRequest,
    InferenceResponse,
    InferenceTrace,
    MemoryType,
    PreferredMemory,
    get_input_tensor_by_name,
    get_output_tensor_by_name,
)
from shoal_dataplane.backends.python.pb_utils.server import get_model_dir, is_model_ready, load_model, unload_model
from shoal_dataplane.backends.python.pb_utils.tensor import Tensor

__all__ = [
    "TRITONSERVER_MEMORY_CPU",
    "TRITONSERVER_MEMORY_GPU",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START",
    "TRITONSERVER_REQUEST_RELEASE_ALL",
    "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE",
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL",
    "TRITON_STRING_TO_NUMPY",
    "InferenceRequest",
    "InferenceResponse",
    "InferenceTrace",
    "LogLevel",
    "Logger",
    "MemoryType",
    "Metric",
    "MetricFamily",
    "ModelConfig",
    "PreferredMemory",
    "Tensor",
    "TritonError",
    "TritonModelException",
    "deserialize_bytes_tensor",
    "get_input_config_by_name",
    "get_input_tensor_by_name",
    "get_model_dir",
    "get_output_config_by_name",
    "get_output_tensor_by_name",
    "is_model_ready",
    "load_model",
    "numpy_to_triton_type",
    "serialize_byte_tensor",
    "triton_string_to_numpy",
    "triton_to_numpy_type",
    "unload_model",
    "using_decoupled_model_transaction_policy",
]

MODULE_NAMES = ("triton_python_backend_utils", "c_python_backend_utils")


def install() -> None:
    """Make this module importable under Triton's name (and that of its compiled half, which some models import)."""
    for name in MODULE_NAMES:
        sys.modules.setdefault(name, sys.modules[__name__])
