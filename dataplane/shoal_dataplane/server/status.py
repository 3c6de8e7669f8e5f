"""From an error's code to the status of an HTTP response."""

from __future__ import annotations

from typing import Final

from shoal_dataplane.core.errors import Code

# Where Triton has the code, its status (triton.md I2); the others as google.rpc.Code says.
_HTTP: Final = {
    Code.OK: 200,
    Code.CANCELLED: 400,
    Code.UNKNOWN: 400,
    Code.INVALID_ARGUMENT: 400,
    Code.DEADLINE_EXCEEDED: 504,
    Code.NOT_FOUND: 404,
    Code.ALREADY_EXISTS: 400,
    Code.PERMISSION_DENIED: 403,
    Code.RESOURCE_EXHAUSTED: 429,
    Code.FAILED_PRECONDITION: 400,
    Code.ABORTED: 409,
    Code.OUT_OF_RANGE: 400,
    Code.UNIMPLEMENTED: 501,
    Code.INTERNAL: 500,
    Code.UNAVAILABLE: 503,
    Code.DATA_LOSS: 500,
    Code.UNAUTHENTICATED: 401,
}


def http_status(code: Code) -> int:
    """Return the HTTP status of an error with this code."""
    return _HTTP[code]
