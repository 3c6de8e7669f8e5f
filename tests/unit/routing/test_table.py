"""The routing table: versions, the latest one, and the right refusal for everything else (triton.md A6)."""

from __future__ import annotations

from typing import Any

import pytest

from shoal_dataplane.core.errors import Code, ServingError
from shoal_dataplane.routing.table import RoutingTable


def target(label: str) -> Any:
    return label


def refusal(table: RoutingTable, name: str, version: str) -> tuple[Code, str]:
    with pytest.raises(ServingError) as caught:
        table.resolve(name, version)
    return caught.value.code, caught.value.message


def test_no_version_means_the_highest_ready_one() -> None:
    table = RoutingTable()
    table.publish("m", {1: target("one"), 10: target("ten"), 9: target("nine")})
    assert table.resolve("m", "") == "ten"
    assert table.resolve("m", "-1") == "ten"
    assert table.resolve("m", "9") == "nine"


def test_a_publish_replaces_all_versions_at_once() -> None:
    table = RoutingTable()
    table.publish("m", {1: target("one"), 2: target("two")})
    table.publish("m", {1: target("new one")})
    assert table.resolve("m", "") == "new one"
    assert refusal(table, "m", "2")[0] is Code.NOT_FOUND


def test_unknown_model_and_unknown_version_are_not_found() -> None:
    table = RoutingTable()
    table.publish("m", {1: target("one")})
    assert refusal(table, "x", "") == (Code.NOT_FOUND, "Request for unknown model: 'x' is not found")
    assert refusal(table, "m", "7") == (Code.NOT_FOUND, "Request for unknown model: 'm' version 7 is not found")


def test_a_model_that_is_loading_is_unavailable_not_unknown() -> None:
    table = RoutingTable()
    table.set_waiting("m", {1})
    code, text = refusal(table, "m", "")
    assert code is Code.UNAVAILABLE
    assert text == "Request for unknown model: 'm' version 1 is not at ready state"


def test_an_unloaded_model_has_no_available_versions() -> None:
    table = RoutingTable()
    table.publish("m", {1: target("one")})
    table.publish("m", {})
    assert refusal(table, "m", "") == (Code.NOT_FOUND, "Request for unknown model: 'm' has no available versions")
    table.forget("m")
    assert refusal(table, "m", "")[1] == "Request for unknown model: 'm' is not found"


@pytest.mark.parametrize("version", ["one", "1.0", "-2", " 1", "९", "1" * 40])
def test_a_version_that_is_no_number_is_an_invalid_argument(version: str) -> None:
    table = RoutingTable()
    table.publish("m", {1: target("one")})
    code, text = refusal(table, "m", version)
    assert code is Code.INVALID_ARGUMENT
    assert version in text
