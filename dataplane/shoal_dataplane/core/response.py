"""One response of a model to one request."""

from __future__ import annotations

from collections.abc import Mapping

from shoal_dataplane.core.errors import ServingError
from shoal_dataplane.core.parameter import Parameter
from shoal_dataplane.core.tensors import Tensor


class InferResponse:
    """Output tensors, or an error. A model that is not decoupled gives one response a request, with `final` set.

    Output tensors carry the batch dimension and come in the order of the model's configuration; the scheduler's side has already
    dropped those that the request did not ask for.
    """

    __slots__ = ("error", "final", "outputs", "parameters")

    def __init__(
        self,
        outputs: list[Tensor],
        error: ServingError | None = None,
        parameters: Mapping[str, Parameter] | None = None,
        final: bool = True,
    ) -> None:
        self.outputs = outputs
        self.error = error
        self.parameters = parameters
        self.final = final


def failure(error: ServingError) -> InferResponse:
    """The final response of a request that failed."""
    return InferResponse([], error)
