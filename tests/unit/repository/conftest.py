from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.repository.fakes import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    path = tmp_path / "models"
    path.mkdir()
    bench = Bench(path)
    yield bench
    for repository in bench.repositories:
        repository.close(1.0)
