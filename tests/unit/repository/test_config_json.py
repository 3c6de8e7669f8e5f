"""The JSON form of a configuration is Triton's, out and in."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal_api.protocol import POOL
from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.core.errors import Code, ServingError
from shoal_dataplane.repository.config_json import config_to_json, parse_config_json
from shoal_dataplane.repository.config_pbtxt import parse_config
from shoal_dataplane.repository.normalize import normalize
from tests.unit.repository.fakes import refusal
from tests.unit.repository.messages import configs

# What Triton 2.51 answered to GET /v2/models/{m}/config for these configurations.
TRITON_MINI = (
    '{"name":"mini","platform":"","backend":"python","runtime":"","version_policy":{"latest":{"num_versions":1}},"max_batch_size":0,'
    '"input":[{"name":"IN","data_type":"TYPE_FP32","format":"FORMAT_NONE","dims":[4],"is_shape_tensor":false,"allow_ragged_batch":false,'
    '"optional":false,"is_non_linear_format_io":false}],"output":[{"name":"OUT","data_type":"TYPE_FP32","dims":[4],"label_filename":"",'
    '"is_shape_tensor":false,"is_non_linear_format_io":false}],"batch_input":[],"batch_output":[],"optimization":{"priority":'
    '"PRIORITY_DEFAULT","input_pinned_memory":{"enable":true},"output_pinned_memory":{"enable":true},"gather_kernel_buffer_threshold":0,'
    '"eager_batching":false},"instance_group":[{"name":"mini","kind":"KIND_CPU","count":1,"gpus":[],"secondary_devices":[],"profile":[],'
    '"passive":false,"host_policy":""}],"default_model_filename":"model.py","cc_model_filenames":{},"metric_tags":{},"parameters":{},'
    '"model_warmup":[]}'
)
TRITON_DYNAMIC = (
    '{"preferred_batch_size":[8],"max_queue_delay_microseconds":100,"preserve_ordering":false,"priority_levels":0,'
    '"default_priority_level":0,"priority_queue_policy":{}}'
)
TRITON_INSTANCES = (
    '[{"name":"mini_0","kind":"KIND_CPU","count":2,"gpus":[],"secondary_devices":[],"profile":[],"passive":false,"host_policy":""},'
    '{"name":"other","kind":"KIND_CPU","count":1,"gpus":[],"secondary_devices":[],"profile":[],"passive":false,"host_policy":""}]'
)
MINI = """
name: "mini" backend: "python" default_model_filename: "model.py"
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] } ]
"""


def normalized(text: str) -> dict[str, Any]:
    config = parse_config(text)
    normalize(config, gpus=0)
    return config_to_json(config)


def test_a_minimal_configuration_reads_as_in_triton_in_its_order() -> None:
    assert json.dumps(normalized(MINI), separators=(",", ":")) == TRITON_MINI


def test_schedulers_and_instances_read_as_in_triton() -> None:
    shown = normalized(
        MINI
        + "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 100 }"
        + 'instance_group [ { kind: KIND_CPU count: 2 }, { name: "other" kind: KIND_CPU count: 1 } ]'
        + 'parameters { key: "foo" value { string_value: "bar" } } response_cache { enable: false }'
    )
    assert json.dumps(shown["dynamic_batching"], separators=(",", ":")) == TRITON_DYNAMIC
    assert json.dumps(shown["instance_group"], separators=(",", ":")) == TRITON_INSTANCES
    assert shown["parameters"] == {"foo": {"string_value": "bar"}}
    assert shown["response_cache"] == {"enable": False}


@settings(max_examples=60, deadline=None)
@given(configs())
def test_what_is_shown_can_be_loaded_again(config: mc.ModelConfig) -> None:
    assert parse_config_json(json.dumps(config_to_json(config))) == config


@settings(max_examples=60, deadline=None)
@given(configs(), st.booleans())
def test_protobufs_own_json_can_be_loaded(config: mc.ModelConfig, snake: bool) -> None:
    text = json_format.MessageToJson(config, preserving_proto_field_name=snake, descriptor_pool=POOL)
    assert parse_config_json(text) == config


def test_numbers_stay_what_they_are_in_json() -> None:
    config = mc.ModelConfig()
    config.sequence_batching.direct.minimum_slot_utilization = 0.1
    config.model_metrics.metric_control.add().histogram_options.buckets.extend(
        [0.1, float("inf"), float("-inf"), float("nan")]
    )
    config.version_policy.specific.versions.append(1 << 60)
    shown = config_to_json(config)
    assert shown["sequence_batching"]["direct"]["minimum_slot_utilization"] == 0.1
    assert shown["model_metrics"]["metric_control"][0]["histogram_options"]["buckets"] == [
        0.1,
        "Infinity",
        "-Infinity",
        "NaN",
    ]
    assert shown["version_policy"]["specific"]["versions"] == [1 << 60]
    assert json.loads(json.dumps(shown, allow_nan=False))


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
