"""Request parameters: the reserved ones become fields, wrong ones are refused, the rest reach the model."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_dataplane.codec.parameters import read_parameters
from shoal_dataplane.core.errors import Code, ServingError
from shoal_dataplane.core.request import InferRequest
from shoal_dataplane.core.response import InferResponse


class Handle:
    def respond(self, request: InferRequest, response: InferResponse) -> None: ...


def applied(**values: Any) -> InferRequest:
    request = InferRequest("m", "", {}, Handle())
    read_parameters(values).apply(request)
    return request


def test_without_parameters_a_request_stays_as_it_is() -> None:
    request = applied()
    assert (request.priority, request.timeout_us, request.correlation_id) == (0, 0, 0)
    assert not request.parameters
    assert read_parameters({}).is_default()


def test_reserved_names_become_fields_and_do_not_reach_the_model() -> None:
    request = applied(
        priority=2**64 - 1, timeout=5, sequence_id="x" * 128, sequence_start=True, sequence_end=True, mine=1.5, s="x"
    )
    assert (request.priority, request.timeout_us) == (2**64 - 1, 5)
    assert request.correlation_id == "x" * 128
    assert request.sequence_start
    assert request.sequence_end
    assert request.parameters == {"mine": 1.5, "s": "x"}


def test_the_empty_final_response_is_the_doors_matter() -> None:
    read = read_parameters({"triton_enable_empty_final_response": True})
    assert read.empty_final_response
    assert not read.custom


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("priority", -1),
        ("priority", 2**64),
        ("priority", True),
        ("priority", 1.0),
        ("priority", "1"),
        ("timeout", -1),
        ("timeout", 2**63),
        ("timeout", 1.5),
        ("sequence_id", -1),
        ("sequence_id", 2**64),
        ("sequence_id", 1.5),
        ("sequence_id", False),
        ("sequence_id", "é" * 65),
        ("sequence_start", 1),
        ("sequence_end", "true"),
        ("triton_enable_empty_final_response", 1),
        ("triton_x", 1),
    ],
)
def test_a_reserved_parameter_of_the_wrong_kind_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(
        ServingError, match="string correlation ID" if name == "sequence_id" and isinstance(value, str) else name
    ) as caught:
        read_parameters({name: value})
    assert caught.value.code is Code.INVALID_ARGUMENT


NAMES = ("priority", "timeout", "sequence_id", "sequence_start", "sequence_end", "triton_x", "headers", "own")


@given(st.dictionaries(st.sampled_from(NAMES), st.booleans() | st.integers() | st.floats() | st.text(max_size=200)))
def test_any_values_give_parameters_or_a_serving_error(values: dict[str, Any]) -> None:
    code = Code.OK
    try:
        assert set(read_parameters(values).custom) <= {"headers", "own"}
    except ServingError as error:
        code = error.code
    assert code in (Code.OK, Code.INVALID_ARGUMENT)
