"""One inference request on its one way: door, routing, scheduler, backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from shoal_dataplane.core.parameter import Parameter

if TYPE_CHECKING:
    from shoal_dataplane.core.model_spec import ModelSpec
    from shoal_dataplane.core.response import InferResponse
    from shoal_dataplane.core.tensors import Tensor


class ReplyHandle(Protocol):
    """How an answer finds its caller. Given to the request at the door."""

    def respond(self, request: InferRequest, response: InferResponse) -> None:
        """Take one response. Called on the core loop's thread; exactly one call has `response.final` set, and it is the last."""


class Target(Protocol):
    """What routing found: one loaded version of a model."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> int: ...

    @property
    def spec(self) -> ModelSpec: ...

    def enqueue(self, request: InferRequest) -> None:
        """Queue a normalised request. Raises ServingError when the queue refuses it. Core loop's thread only."""

    def cancel(self, request: InferRequest) -> None:
        """The caller is gone (or its deadline passed): answer CANCELLED if queued, tell the backend if running. Core loop's thread only."""


class Signature:
    """The outcome of the last normalisation of one request header: valid as long as the target's `spec` is the same object."""

    __slots__ = ("batch_key", "batch_size", "spec")

    def __init__(self) -> None:
        self.spec: ModelSpec | None = None
        self.batch_size = 1
        self.batch_key: Any = None


class InferRequest:
    """A request, filled by the door, completed by routing (`target`, `batch_size`, `batch_key`), timed by the scheduler.

    `inputs` maps input names to tensors in the order sent. `outputs` are the requested output names, None for all.
    `parameters` are the caller's own parameters (the reserved ones are fields here). `priority` 0 means the model's default level.
    `timeout_us` 0 means the model's default. `deadline_ns` is absolute on the loop's monotonic clock, None for none.
    `metadata` holds what the hot path carries for later rooms: "authorization", "traceparent" and forwarded headers, in lower case.
    `batch_size` is the first dimension shared by all inputs (1 for a model that does not batch). `batch_key` is equal for two
    requests exactly when the dynamic batcher may put them in one batch (shapes of the non-ragged inputs, set of optional inputs).
    `signature` is shared by requests whose headers are the same to the byte, None where the door does not know; routing keeps there
    what it found out about such a header.
    """

    __slots__ = (
        "arrival_ns",
        "batch_key",
        "batch_size",
        "cancelled",
        "correlation_id",
        "deadline_ns",
        "handle",
        "id",
        "inputs",
        "metadata",
        "model_name",
        "model_version",
        "outputs",
        "parameters",
        "priority",
        "queued_ns",
        "sequence_end",
        "sequence_start",
        "signature",
        "state",
        "target",
        "timeout_us",
    )

    def __init__(
        self,
        model_name: str,
        model_version: str,
        inputs: dict[str, Tensor],
        handle: ReplyHandle,
        *,
        id: str = "",
        outputs: tuple[str, ...] | None = None,
        parameters: Mapping[str, Parameter] = {},
        arrival_ns: int = 0,
    ) -> None:
        self.model_name = model_name
        self.model_version = model_version
        self.inputs = inputs
        self.handle = handle
        self.id = id
        self.outputs = outputs
        self.parameters = parameters
        self.arrival_ns = arrival_ns
        self.priority = 0
        self.timeout_us = 0
        self.deadline_ns: int | None = None
        self.metadata: Mapping[str, str] = {}
        self.correlation_id: int | str = 0
        self.sequence_start = False
        self.sequence_end = False
        self.cancelled = False
        self.batch_size = 1
        self.batch_key: Any = None
        self.target: Target | None = None
        self.signature: Signature | None = None
        self.queued_ns = 0
        self.state: Any = None  # the scheduler's own, while the request is in its queue
