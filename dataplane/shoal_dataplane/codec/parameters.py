"""Request parameters: the reserved names become fields of the request, the rest reach the model (triton.md I7, I11, I12, I13).

Shared by the doors: gRPC's InferParameter values and HTTP's JSON values arrive here as plain bool, int, float and str.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal_dataplane.core.errors import invalid
from shoal_dataplane.core.parameter import Parameter
from shoal_dataplane.core.request import InferRequest

MAX_CORRELATION_ID_BYTES = 128
_UINT64_LIMIT = 1 << 64
_INT64_LIMIT = 1 << 63


@dataclass(frozen=True, slots=True)
class RequestParameters:
    """What a request's parameters say. `custom` are the caller's own, in the order sent."""

    priority: int = 0
    timeout_us: int = 0
    correlation_id: int | str = 0
    sequence_start: bool = False
    sequence_end: bool = False
    empty_final_response: bool = False
    custom: Mapping[str, Parameter] = field(default_factory=dict)

    def is_default(self) -> bool:
        """Is there nothing to set on a request?"""
        return self == _DEFAULT

    def apply(self, request: InferRequest) -> None:
        """Set the fields of `request`."""
        request.priority = self.priority
        request.timeout_us = self.timeout_us
        request.correlation_id = self.correlation_id
        request.sequence_start = self.sequence_start
        request.sequence_end = self.sequence_end
        request.parameters = self.custom


_DEFAULT = RequestParameters()


def read_parameters(values: Mapping[str, Parameter]) -> RequestParameters:
    """Sort the parameters of a request.

    Raises ServingError(INVALID_ARGUMENT) for a reserved parameter of the wrong type or value and for unknown `triton_*` names.
    """
    if not values:
        return _DEFAULT
    custom: dict[str, Parameter] = {}
    priority = timeout_us = 0
    correlation_id: int | str = 0
    flags = {"sequence_start": False, "sequence_end": False, "triton_enable_empty_final_response": False}
    for name, value in values.items():
        if name == "priority":
            priority = _unsigned(name, value, _UINT64_LIMIT)
        elif name == "timeout":
            timeout_us = _unsigned(name, value, _INT64_LIMIT)
        elif name == "sequence_id":
            correlation_id = _correlation_id(value)
        elif name in flags:
            if not isinstance(value, bool):
                raise invalid(f"invalid value type for '{name}' parameter, expected bool, got {value!r}")
            flags[name] = value
        elif name.startswith("triton_"):
            raise invalid(f"parameter keys starting with 'triton_' are reserved for Triton usage, got '{name}'")
        else:
            custom[name] = value
    return RequestParameters(
        priority,
        timeout_us,
        correlation_id,
        flags["sequence_start"],
        flags["sequence_end"],
        flags["triton_enable_empty_final_response"],
        custom,
    )


def _unsigned(name: str, value: Parameter, limit: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise invalid(f"invalid value type for '{name}' parameter, expected int64 or uint64, got {value!r}")
    if not 0 <= value < limit:
        raise invalid(f"invalid value {value} for '{name}' parameter, expected 0 <= {name} < {limit}")
    return value


def _correlation_id(value: Parameter) -> int | str:
    if isinstance(value, str):
        if len(value.encode()) > MAX_CORRELATION_ID_BYTES:
            raise invalid(
                f"string correlation ID cannot be longer than {MAX_CORRELATION_ID_BYTES} bytes, got {len(value.encode())}"
            )
        return value
    if isinstance(value, bool) or not isinstance(value, int):
        raise invalid(f"invalid value type for 'sequence_id' parameter, expected int64 or string, got {value!r}")
    if not 0 <= value < _UINT64_LIMIT:
        raise invalid(f"invalid value {value} for 'sequence_id' parameter, expected 0 <= sequence_id < {_UINT64_LIMIT}")
    return value
