"""A configuration as JSON is read as Triton reads it."""

from __future__ import annotations

import json
import math

import pytest
from google.protobuf import json_format
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal_api.protocol import POOL
from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.codec.proto_json import to_json
from shoal_dataplane.core.errors import Code, ServingError
from shoal_dataplane.repository.config_json import parse_config_json
from tests.unit.repository.fakes import refusal
from tests.unit.repository.messages import configs


@settings(max_examples=60, deadline=None)
@given(configs())
def test_what_the_config_endpoint_shows_can_be_loaded(config: mc.ModelConfig) -> None:
    assert parse_config_json(json.dumps(to_json(config))) == config


def test_numbers_that_json_does_not_have_are_read_in_protobufs_spelling() -> None:
    buckets = {"metric_control": [{"histogram_options": {"buckets": [0.1, "Infinity", "-Infinity"]}}]}
    config = parse_config_json(json.dumps({"model_metrics": buckets}))
    assert list(config.model_metrics.metric_control[0].histogram_options.buckets) == [0.1, math.inf, -math.inf]


@settings(max_examples=60, deadline=None)
@given(configs(), st.booleans())
def test_protobufs_own_json_can_be_loaded(config: mc.ModelConfig, snake: bool) -> None:
    text = json_format.MessageToJson(config, preserving_proto_field_name=snake, descriptor_pool=POOL)
    assert parse_config_json(text) == config


def test_both_spellings_enums_in_any_case_and_numbers_as_strings() -> None:
    config = parse_config_json(
        '{"maxBatchSize": "3", "input": [{"name": "a", "data_type": "type_fp32", "dims": ["1", 2]}],'
        ' "dynamic_batching": {"priorityQueuePolicy": {"2": {"timeout_action": "delay"}}}, "output": null}'
    )
    assert config.max_batch_size == 3
    assert (config.input[0].data_type, list(config.input[0].dims)) == (mc.TYPE_FP32, [1, 2])
    assert config.dynamic_batching.priority_queue_policy[2].timeout_action == mc.ModelQueuePolicy.DELAY


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "Expecting value"),
        ("{", "Expecting property name"),
        ("[1]", "expected a JSON object, found list"),
        ('{"max_batchsize": 1}', "ModelConfig has no field 'max_batchsize'; did you mean 'max_batch_size'?"),
        ('{"input": [{"nam": "x"}]}', "ModelInput has no field 'nam'; did you mean 'name'?"),
        ('{"name": "a", "name": "b"}', "the key 'name' is given twice"),
        ('{"max_batch_size": "x"}', "max_batch_size"),
        ('{"max_batch_size": 1e400}', "max_batch_size"),
        ('{"name": 1}', "name"),
        ('{"input": {"name": "x"}}', "input"),
        ('{"parameters": [1]}', "parameters"),
        ('{"dynamic_batching": 3}', "dynamic_batching"),
        ('{"dynamic_batching": {}, "sequence_batching": {}}', "scheduling_choice"),
        ('{"input": [{"data_type": "TYPE_FP31"}]}', "'TYPE_FP31' is not a value of DataType; did you mean 'TYPE_FP32'"),
        ('{"input": [{"data_type": 99}]}', "99 is not a value of DataType"),
        ('{"name": "\\ud800"}', "name"),
        ('{"input": ' * 100_000, "nested too deeply"),
    ],
)
def test_a_mistake_is_named(text: str, problem: str) -> None:
    with pytest.raises(ServingError) as caught:
        parse_config_json(text)
    assert caught.value.code is Code.INVALID_ARGUMENT
    assert caught.value.message.startswith("Invalid config override: ")
    assert problem in caught.value.message


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "input", "dims", "parameters", "reshape", "instance_group", "kind", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["input", "max_batch_size", "instance_group", "parameters", "optimization"]), _JSON, max_size=3
    )
)
def test_any_json_is_read_or_refused(document: dict[str, object]) -> None:
    error = refusal(lambda: parse_config_json(json.dumps(document)))
    assert error is None or error.code is Code.INVALID_ARGUMENT
