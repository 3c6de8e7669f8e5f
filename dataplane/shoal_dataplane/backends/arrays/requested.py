"""Which outputs a batch needs."""

from __future__ import annotations

from collections.abc import Sequence

from shoal_dataplane.core.request import InferRequest


def requested_outputs(requests: Sequence[InferRequest], names: Sequence[str]) -> Sequence[str]:
    """Return those of `names` that a request of the batch asks for, in order; all of them when one asks for none in particular."""
    if len(names) == 1:
        return names
    wanted: set[str] = set()
    for request in requests:
        if not request.outputs:
            return names
        wanted.update(request.outputs)
    return names if len(wanted) >= len(names) else [name for name in names if name in wanted]
