"""A running HTTP door on free ports of the loopback, in front of a small data plane."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from shoal_dataplane.options import HttpOptions, MetricsOptions
from shoal_dataplane.server.http import HttpDoor
from tests.unit.server.http_service import FakeService, add_models

OpenDoor = Callable[..., HttpDoor]


@pytest.fixture
def http_service() -> Iterator[FakeService]:
    service = FakeService()
    add_models(service)
    service.loop.start()
    yield service
    service.load_gate.set()
    service.loop.stop()


@pytest.fixture
def open_door(http_service: FakeService) -> Iterator[OpenDoor]:
    """Start doors with the given options of HttpOptions; they are stopped at the end."""
    doors: list[HttpDoor] = []

    def open_one(**options: object) -> HttpDoor:
        door = HttpDoor(
            http_service,
            HttpOptions(**{"address": "127.0.0.1", "port": 0, **options}),  # type: ignore[arg-type]  # of any field
            MetricsOptions(address="127.0.0.1", port=0),
        )
        doors.append(door)
        door.start()
        return door

    yield open_one
    for door in doors:
        door.stop()


@pytest.fixture
def http_door(open_door: OpenDoor) -> HttpDoor:
    return open_door()
