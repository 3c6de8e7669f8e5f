"""Limits that hold for a request over every protocol."""

from __future__ import annotations

from typing import Final

MAX_TENSORS: Final = 4096
"""Inputs or outputs that one request may list. No model has as many; a request that lists 10^5 is refused before they are read."""
