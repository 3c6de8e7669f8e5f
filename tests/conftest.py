"""Options and marks that the tests share."""

from __future__ import annotations

import ctypes.util

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("shoal")
    group.addoption(
        "--target",
        choices=("shoal", "triton"),
        default="shoal",
        help="the server that tests/protocol runs against; triton wants PEERS (see tests/conformance/run.sh)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "differs(id, run=True): asserts what Shoal does and Triton does not; the row `id` of docs/reference/differences.md says why. "
        "Against Triton it must fail, or is skipped with run=False",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if ctypes.util.find_library("cuda") is not None:
        return
    skip = pytest.mark.skip(reason="no CUDA device here")
    for item in items:
        if item.get_closest_marker("gpu") is not None:
            item.add_marker(skip)
