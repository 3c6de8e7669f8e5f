"""Waiting for something to be so, with a deadline and an error that says what did not come."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_for(what: str, condition: Callable[[], T], seconds: float = 20.0, period: float = 0.01) -> T:
    """Call `condition` until it returns something true, and return that. Raises TimeoutError naming `what`."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not so after {seconds:.0f} s")
        time.sleep(period)
