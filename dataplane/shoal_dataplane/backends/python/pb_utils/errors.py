"""How a Python model reports a failure."""

from __future__ import annotations

import enum

from shoal_dataplane.core.errors import Code, ServingError


class ErrorCode(enum.IntEnum):
    """TRITONSERVER_Error_Code."""

    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7


_TO_CODE = {
    ErrorCode.UNKNOWN: Code.UNKNOWN,
    ErrorCode.INTERNAL: Code.INTERNAL,
    ErrorCode.NOT_FOUND: Code.NOT_FOUND,
    ErrorCode.INVALID_ARG: Code.INVALID_ARGUMENT,
    ErrorCode.UNAVAILABLE: Code.UNAVAILABLE,
    ErrorCode.UNSUPPORTED: Code.UNIMPLEMENTED,
    ErrorCode.ALREADY_EXISTS: Code.ALREADY_EXISTS,
    ErrorCode.CANCELLED: Code.CANCELLED,
}
_FROM_CODE = {code: error_code for error_code, code in _TO_CODE.items()} | {
    Code.DEADLINE_EXCEEDED: ErrorCode.UNAVAILABLE,
    Code.RESOURCE_EXHAUSTED: ErrorCode.UNAVAILABLE,
}


class TritonError:
    """The error of one response. Not an exception: it is given to InferenceResponse."""

    UNKNOWN = ErrorCode.UNKNOWN
    INTERNAL = ErrorCode.INTERNAL
    NOT_FOUND = ErrorCode.NOT_FOUND
    INVALID_ARG = ErrorCode.INVALID_ARG
    UNAVAILABLE = ErrorCode.UNAVAILABLE
    UNSUPPORTED = ErrorCode.UNSUPPORTED
    ALREADY_EXISTS = ErrorCode.ALREADY_EXISTS
    CANCELLED = ErrorCode.CANCELLED

    __slots__ = ("_code", "_message")

    def __init__(self, message: str, code: int = ErrorCode.INTERNAL) -> None:
        self._message = str(message)
        self._code = ErrorCode(code)

    def __repr__(self) -> str:
        return f"TritonError({self._message!r}, TritonError.{self._code.name})"

    def __str__(self) -> str:
        return self._message

    def code(self) -> ErrorCode:
        return self._code

    def message(self) -> str:
        return self._message


class TritonModelException(Exception):
    """What the functions of this module raise."""


def to_serving_error(error: TritonError) -> ServingError:
    """The error as the server's callers see it."""
    return ServingError(_TO_CODE[error.code()], error.message())


def from_serving_error(error: ServingError) -> TritonError:
    """The error as a model sees it."""
    return TritonError(error.message, _FROM_CODE.get(error.code, ErrorCode.UNKNOWN))
