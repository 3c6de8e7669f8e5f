"""A configuration that cannot work is refused at load, in Triton's words; one that asks for what is not there yet is refused by name."""

from __future__ import annotations

import pytest

from shoal_dataplane.core.errors import Code
from shoal_dataplane.repository.config_pbtxt import parse_config
from shoal_dataplane.repository.normalize import normalize
from shoal_dataplane.repository.support import fields_without_effect, refuse_unsupported
from shoal_dataplane.repository.validate import MAX_INSTANCES, validate
from tests.unit.repository.fakes import refusal

IO = 'input { name: "x" data_type: TYPE_FP32 dims: 4 } output { name: "y" data_type: TYPE_FP32 dims: 4 } '
DELAY = "{ timeout_action: DELAY default_timeout_microseconds: 5 }"


def problem(text: str, gpus: int = 0) -> str:
    config = parse_config('name: "m" ' + text)
    normalize(config, gpus)
    error = refusal(lambda: validate(config, gpus))
    assert error is None or error.code is Code.INVALID_ARGUMENT
    return error.message if error is not None else ""


def test_a_plain_configuration_is_valid() -> None:
    assert problem(IO) == ""
    assert (
        problem(IO + "max_batch_size: 8 dynamic_batching { preferred_batch_size: [ 4, 8 ] preserve_ordering: true }")
        == ""
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("max_batch_size: -1", "'max_batch_size' must be non-negative value for m"),
        (
            "max_batch_size: 4 dynamic_batching { preferred_batch_size: 0 }",
            "dynamic batching preferred size must be positive for m",
        ),
        (
            "max_batch_size: 4 dynamic_batching { preferred_batch_size: 8 }",
            "dynamic batching preferred size must be <= max batch size for m",
        ),
        ("dynamic_batching { priority_levels: 3 }", "default priority level must be in range [1, 3] for m"),
        (
            "dynamic_batching { priority_levels: 3 default_priority_level: 4 }",
            "default priority level must be in range [1, 3] for m",
        ),
        (
            "dynamic_batching { priority_levels: 3 default_priority_level: 1 priority_queue_policy { key: 4 value { } } }",
            "priority queue policy must have priority level in range [1, 3] for m",
        ),
        (
            "dynamic_batching { preserve_ordering: true priority_levels: 2 default_priority_level: 1 }",
            "Only one priority level is allowed when 'preserve_ordering' is true for m",
        ),
        (
            f"dynamic_batching {{ preserve_ordering: true default_queue_policy {DELAY} }}",
            "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for m",
        ),
        (
            "dynamic_batching { preserve_ordering: true priority_levels: 1 default_priority_level: 1 "
            f"priority_queue_policy {{ key: 1 value {DELAY} }} }}",
            "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for m",
        ),
    ],
)
def test_a_scheduler_that_contradicts_itself_is_refused(text: str, expected: str) -> None:
    assert problem(text) == expected


def test_priority_levels_beyond_32_bits_are_fine() -> None:
    assert problem(f"dynamic_batching {{ priority_levels: {1 << 40} default_priority_level: {1 << 39} }}") == ""


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("", "model input must specify 'name' for m"),
        ('name: "x"', "model input 'x' must specify 'data_type' for m"),
        ('name: "x" data_type: TYPE_FP32', "model input 'x' must specify 'dims' for m"),
        (
            'name: "x" data_type: TYPE_FP32 dims: 0',
            "model input 'x' dimension must be integer >= 1, or -1 to indicate a variable-size dimension for m",
        ),
        (
            'name: "x" data_type: TYPE_FP32 dims: 1 reshape { }',
            "model input 'x' cannot have empty reshape for non-batching model as scalar tensors are not supported for m",
        ),
        (
            'name: "x" data_type: TYPE_FP32 dims: 1 reshape { shape: -2 }',
            "model input 'x' reshape dimensions must be integer >= 1, or -1 to indicate a variable-size dimension for m",
        ),
        (
            'name: "x" data_type: TYPE_FP32 dims: [ 2, 3 ] reshape { shape: [ 7 ] }',
            "model input 'x' has different size for dims and reshape for m",
        ),
        (
            'name: "x" data_type: TYPE_FP32 dims: [ 2, -1 ] reshape { shape: [ 2 ] }',
            "model input 'x' has different size for dims and reshape for m",
        ),
        (
            'name: "x" data_type: TYPE_FP32 dims: [ 2, -1, -1 ] reshape { shape: [ 2, -1 ] }',
            "model input 'x' has different number of variable-size dimensions for dims and reshape for m",
        ),
        (
            'name: "x" data_type: TYPE_FP32 dims: [ 2, -1, 3 ] reshape { shape: [ 3, -1, 2 ] }',
            "model input 'x' has different size for dims and reshape for m",
        ),
    ],
)
def test_a_tensor_that_cannot_exist_is_refused(fields: str, expected: str) -> None:
    assert problem(f"input {{ {fields} }}") == expected
    assert problem(f"output {{ {fields} }}") == expected.replace("model input", "model output")


def test_a_reshape_may_move_elements_between_variable_dimensions() -> None:
    tensor = 'input {{ name: "x" data_type: TYPE_FP32 dims: {} reshape {{ shape: {} }} }}'
    assert problem(tensor.format("[ 2, 4, -1, 6 ]", "[ 8, -1, 1, 6 ]")) == ""
    assert problem("max_batch_size: 2 " + tensor.format("1", "[ ]")) == ""


def test_a_name_given_to_two_tensors_is_refused() -> None:
    assert (
        problem(IO + 'input { name: "x" data_type: TYPE_FP32 dims: 1 }') == "model input 'x' is specified 2 times for m"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            'batch_input { kind: BATCH_ITEM_SHAPE target_name: "s" data_type: TYPE_INT32 }',
            "batch input kind 'BATCH_ITEM_SHAPE' expects 1 source input, got 0 for m",
        ),
        (
            'batch_input { target_name: "s" data_type: TYPE_INT64 source_input: "x" }',
            "batch input data type must be TYPE_INT32 or TYPE_FP32 for m",
        ),
        (
            'batch_input { data_type: TYPE_INT32 source_input: "x" }',
            "batch input kind 'BATCH_ELEMENT_COUNT' must specify 'target_name' for m",
        ),
        (
            'batch_input { target_name: "s" data_type: TYPE_INT32 source_input: "z" }',
            "unknown source input name 'z' for m",
        ),
        (
            'batch_output { target_name: "y" source_input: [ "x", "x" ] }',
            "batch output kind 'BATCH_SCATTER_WITH_INPUT_SHAPE' expects 1 source input, got 2 for m",
        ),
        ('batch_output { target_name: "z" source_input: "x" }', "unknown target output name 'z' for m"),
        ('batch_output { target_name: "y" source_input: "z" }', "unknown source input name 'z' for m"),
        (
            'batch_output { target_name: [ "y", "y" ] source_input: "x" }',
            "target output name 'y' can only be specified once for m",
        ),
    ],
)
def test_a_tensor_made_of_a_batch_needs_its_source(text: str, expected: str) -> None:
    assert problem(IO + text) == expected


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        (
            "data_type: TYPE_FP32 dims: -1 zero_data: true",
            "expects all variable-size dimensions are specified for input 'x'",
        ),
        ("dims: 1 zero_data: true", "expects input 'x' to have data_type set"),
        ("data_type: TYPE_FP32 dims: 1", "expects input 'x' to have input_data_type set"),
        (
            'data_type: TYPE_FP32 dims: 1 input_data_file: "../x"',
            "expects a path inside the 'warmup' folder for input 'x'",
        ),
    ],
)
def test_a_warmup_that_cannot_run_is_refused_unless_it_is_skipped(inputs: str, expected: str) -> None:
    sample = 'model_warmup {{ name: "w" batch_size: {} inputs {{ key: "x" value {{ {} }} }} }}'
    assert f"warmup setting {expected} of sample 'w' for m" in problem(IO + sample.format(1, inputs))
    assert problem(IO + sample.format(0, inputs)) == ""


@pytest.mark.parametrize(
    ("control", "expected"),
    [
        ("", "metric control must specify 'metric_identifier'"),
        ("metric_identifier { }", "metric identifier must specify non-empty 'family'"),
        ('metric_identifier { family: "f" }', "metric control must specify 'histogram_options'"),
        (
            'metric_identifier { family: "f" } histogram_options { }',
            "histogram options must specify non-empty 'buckets'",
        ),
        (
            'metric_identifier { family: "f" } histogram_options { buckets: [ 2, 1 ] }',
            "histogram options must specify 'buckets' in rising order for m",
        ),
        ('metric_identifier { family: "f" } histogram_options { buckets: [ 1, 2 ] }', ""),
    ],
)
def test_a_metric_control_is_complete_or_refused(control: str, expected: str) -> None:
    assert problem(f"model_metrics {{ metric_control {{ {control} }} }}") == expected


def test_instances_run_on_devices_that_are_there() -> None:
    assert problem("instance_group { kind: KIND_GPU }") == (
        "instance group m_0 of model m has kind KIND_GPU but no GPUs are available"
    )
    assert problem("instance_group { kind: KIND_GPU gpus: 2 }", gpus=2) == (
        "instance group m_0 of model m specifies invalid or unsupported gpu id 2. GPUs are: 0, 1"
    )
    assert problem("instance_group { kind: KIND_CPU gpus: 0 }", gpus=2) == (
        "instance group m_0 of model m has kind KIND_CPU but specifies one or more GPUs"
    )
    assert problem("instance_group { kind: KIND_MODEL gpus: 0 }", gpus=2) == (
        "instance group m_0 of model m has kind KIND_MODEL but specifies one or more GPUs"
    )
    assert problem("instance_group { kind: KIND_GPU gpus: [ 0, 1 ] }", gpus=2) == ""


def test_more_instances_than_any_machine_runs_are_refused() -> None:
    assert problem(f"instance_group {{ kind: KIND_CPU count: {MAX_INSTANCES} }}") == ""
    assert "at most 1024 are allowed" in problem("instance_group { kind: KIND_CPU count: 2000000000 }")


def test_a_model_with_passive_instances_only_is_refused() -> None:
    assert "is passive" in problem("instance_group { kind: KIND_CPU passive: true }")
    assert problem("instance_group [ { kind: KIND_CPU passive: true }, { kind: KIND_CPU } ]") == ""


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('platform: "ensemble"', "'ensemble_scheduling' (platform \"ensemble\")"),
        ("ensemble_scheduling { }", "'ensemble_scheduling' (platform \"ensemble\")"),
        ("sequence_batching { }", "'sequence_batching'"),
        ("model_transaction_policy { decoupled: true }", "'model_transaction_policy.decoupled'"),
        ("response_cache { enable: true }", "'response_cache.enable'"),
        (
            'instance_group [ { }, { rate_limiter { resources { name: "r" count: 1 } } } ]',
            "'instance_group[1].rate_limiter.resources'",
        ),
    ],
)
def test_what_is_not_supported_yet_is_refused_by_its_field(text: str, field: str) -> None:
    error = refusal(lambda: refuse_unsupported(parse_config('name: "m" ' + text)))
    assert error is not None
    assert error.code is Code.UNIMPLEMENTED
    assert error.message == f"the configuration of model 'm' sets {field}, which is not supported yet"


def test_what_is_switched_off_is_no_reason_to_refuse() -> None:
    refuse_unsupported(parse_config("response_cache { enable: false } model_transaction_policy { decoupled: false }"))


def test_fields_without_a_meaning_here_are_named() -> None:
    config = parse_config(
        'runtime: "r" optimization { cuda { graphs: true } } model_operations { op_library_filename: "a.so" } '
        'input { name: "x" format: FORMAT_NCHW is_shape_tensor: true } output { name: "y" is_non_linear_format_io: true } '
        'instance_group { profile: "1" host_policy: "h" rate_limiter { priority: 2 } secondary_devices { device_id: 1 } } '
        'cc_model_filenames { key: "7.5" value: "m" } model_repository_agents { agents { name: "checksum" } } '
        'parameters { key: "TRITON_BATCH_STRATEGY_PATH" value { string_value: "b.so" } }'
    )
    assert fields_without_effect(config) == [
        "runtime",
        "input[0].format",
        "input[0].is_shape_tensor",
        "output[0].is_non_linear_format_io",
        "optimization.cuda.graphs",
        "instance_group[0].rate_limiter.priority",
        "instance_group[0].secondary_devices[0].device_id",
        "instance_group[0].profile",
        "instance_group[0].host_policy",
        "cc_model_filenames",
        "model_operations.op_library_filename",
        "model_repository_agents.agents[0].name",
        "parameters['TRITON_BATCH_STRATEGY_PATH']",
    ]
    assert fields_without_effect(parse_config('name: "m" max_batch_size: 1 dynamic_batching { } ' + IO)) == []
