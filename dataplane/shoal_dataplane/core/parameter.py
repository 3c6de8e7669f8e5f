"""The plain values that requests and responses carry beside tensors."""

from __future__ import annotations

Parameter = bool | int | float | str
