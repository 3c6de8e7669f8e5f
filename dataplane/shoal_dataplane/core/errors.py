"""Errors that reach a caller: a gRPC status code, a sentence, and a short reason for the metrics."""

from __future__ import annotations

import enum


class Code(enum.IntEnum):
    """Canonical gRPC status codes (google.rpc.Code)."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class Reason(enum.StrEnum):
    """Why a request was not answered: the `reason` label of the refusal and failure counters. Part of the metrics contract."""

    INVALID = "invalid"
    UNKNOWN_MODEL = "unknown_model"
    NOT_READY = "not_ready"
    QUEUE_FULL = "queue_full"
    QUEUE_TIMEOUT = "queue_timeout"
    DEADLINE = "deadline"
    CANCELLED = "cancelled"
    BACKEND = "backend"
    SHUTTING_DOWN = "shutting_down"
    UNSUPPORTED = "unsupported"
    OTHER = "other"


class ServingError(Exception):
    """A request, a load or a configuration that is refused or failed; its text is shown to the caller as it is."""

    def __init__(self, code: Code, message: str, reason: Reason = Reason.OTHER) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.reason = reason

    def __reduce__(self) -> tuple[type[ServingError], tuple[Code, str, Reason]]:
        return (ServingError, (self.code, self.message, self.reason))


def invalid(message: str) -> ServingError:
    """The caller's request is wrong and will be wrong again."""
    return ServingError(Code.INVALID_ARGUMENT, message, Reason.INVALID)


def not_found(message: str) -> ServingError:
    """The named model or version does not exist here."""
    return ServingError(Code.NOT_FOUND, message, Reason.UNKNOWN_MODEL)


def unavailable(message: str, reason: Reason = Reason.NOT_READY) -> ServingError:
    """Not now; the same request may succeed later."""
    return ServingError(Code.UNAVAILABLE, message, reason)


def unimplemented(message: str) -> ServingError:
    """Understood, but this server does not do it."""
    return ServingError(Code.UNIMPLEMENTED, message, Reason.UNSUPPORTED)


def internal(message: str, reason: Reason = Reason.BACKEND) -> ServingError:
    """The server or the model failed; the caller did nothing wrong."""
    return ServingError(Code.INTERNAL, message, reason)


def cancelled(message: str = "the request was cancelled by its caller") -> ServingError:
    """The caller went away."""
    return ServingError(Code.CANCELLED, message, Reason.CANCELLED)
