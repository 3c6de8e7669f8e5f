"""Messages in the JSON of Triton's HTTP server."""

from __future__ import annotations

import json

import msgspec
from google.protobuf import text_format

from shoal_api.protocol import inference_pb2 as pb
from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.codec.proto_json import to_json


def test_a_configuration_is_told_as_triton_tells_it() -> None:
    config = text_format.Parse(
        'name: "inst" backend: "python" max_batch_size: 8 version_policy { latest { num_versions: 1 } }'
        'input { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] } output { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] }'
        "optimization { input_pinned_memory { enable: true } output_pinned_memory { enable: true } }"
        "dynamic_batching { preferred_batch_size: [ 8 ] max_queue_delay_microseconds: 100 }"
        'instance_group { name: "inst_0" kind: KIND_CPU count: 2 } default_model_filename: "model.py"'
        'parameters { key: "foo" value { string_value: "bar" } } response_cache { }',
        mc.ModelConfig(),
    )
    # As Triton 2.51 answers GET /v2/models/inst/config for this configuration.
    expected = json.loads(
        '{"name":"inst","platform":"","backend":"python","runtime":"","version_policy":{"latest":{"num_versions":1}},"max_batch_size":8,'
        '"input":[{"name":"IN","data_type":"TYPE_FP32","format":"FORMAT_NONE","dims":[4],"is_shape_tensor":false,'
        '"allow_ragged_batch":false,"optional":false,"is_non_linear_format_io":false}],"output":[{"name":"OUT","data_type":"TYPE_FP32",'
        '"dims":[4],"label_filename":"","is_shape_tensor":false,"is_non_linear_format_io":false}],"batch_input":[],"batch_output":[],'
        '"optimization":{"priority":"PRIORITY_DEFAULT","input_pinned_memory":{"enable":true},"output_pinned_memory":{"enable":true},'
        '"gather_kernel_buffer_threshold":0,"eager_batching":false},"dynamic_batching":{"preferred_batch_size":[8],'
        '"max_queue_delay_microseconds":100,"preserve_ordering":false,"priority_levels":0,"default_priority_level":0,'
        '"priority_queue_policy":{}},"instance_group":[{"name":"inst_0","kind":"KIND_CPU","count":2,"gpus":[],"secondary_devices":[],'
        '"profile":[],"passive":false,"host_policy":""}],"default_model_filename":"model.py","cc_model_filenames":{},"metric_tags":{},'
        '"parameters":{"foo":{"string_value":"bar"}},"model_warmup":[],"response_cache":{"enable":false}}'
    )
    assert json.loads(msgspec.json.encode(to_json(config))) == expected


def test_statistics_show_every_duration_and_numbers_as_numbers() -> None:
    statistics = pb.ModelStatisticsResponse()
    statistics.model_stats.add(name="m", version="1", last_inference=2**53 + 1)
    (shown,) = to_json(statistics, unset_messages=True)["model_stats"]
    zero = {"count": 0, "ns": 0}
    names = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")
    assert shown["inference_stats"] == dict.fromkeys(names, zero)
    assert shown["last_inference"] == 2**53 + 1
    assert (shown["batch_stats"], shown["response_stats"], shown["memory_usage"]) == ([], {}, [])


def test_an_enum_value_of_a_later_version_is_a_number() -> None:
    group = mc.ModelInstanceGroup()
    group.MergeFromString(b"\x20\x63")  # kind: 99
    assert to_json(group)["kind"] == 99
