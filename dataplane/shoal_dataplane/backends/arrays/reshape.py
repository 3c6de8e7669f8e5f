"""The `reshape` of an input or output (triton.md B2): what the model sees in the place of the configured dims."""

from __future__ import annotations

from collections.abc import Sequence

from shoal_dataplane.core.errors import invalid


class Reshape:
    """From shapes that fit one list of dimensions to shapes that fit another, both without the batch dimension.

    Dimensions of -1 correspond in order, as in Triton (core: infer_request.cc): the first -1 of `target` takes the size that the
    first -1 of `source` has. That element counts agree is checked with the configuration.
    """

    __slots__ = ("_fixed", "_sources", "_target")

    def __init__(self, source: Sequence[int], target: Sequence[int], name: str = "") -> None:
        """`name` is the tensor's, for the error. Raises ServingError(INVALID_ARGUMENT) when one side has more -1 than the other."""
        self._target = tuple(target)
        self._sources = [index for index, size in enumerate(source) if size == -1]
        if len(self._sources) != self._target.count(-1):
            raise invalid(
                f"the dims {list(source)} and the reshape {list(target)} of tensor '{name}' differ in the number of their variable "
                f"dimensions: {len(self._sources)} and {self._target.count(-1)}"
            )
        self._fixed = not self._sources

    def __call__(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape in the place of `shape`, which fits the source."""
        if self._fixed:
            return self._target
        variable = iter(self._sources)
        return tuple(shape[next(variable)] if size == -1 else size for size in self._target)
