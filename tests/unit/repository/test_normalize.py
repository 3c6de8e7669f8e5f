"""What a configuration leaves open is filled as Triton fills it; an overlay replaces field by field."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings

from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.repository.config_pbtxt import parse_config
from shoal_dataplane.repository.devices import gpu_count
from shoal_dataplane.repository.normalize import config_fields_set, lay_over, normalize
from tests.unit.repository.messages import configs

GPU, CPU, MODEL = mc.ModelInstanceGroup.KIND_GPU, mc.ModelInstanceGroup.KIND_CPU, mc.ModelInstanceGroup.KIND_MODEL


def normalized(text: str, gpus: int = 0) -> mc.ModelConfig:
    config = parse_config('name: "m" ' + text)
    normalize(config, gpus)
    return config


def groups(text: str, gpus: int = 0) -> list[tuple[str, int, int, list[int]]]:
    return [(g.name, g.kind, g.count, list(g.gpus)) for g in normalized(text, gpus).instance_group]


def test_no_policy_is_the_latest_version() -> None:
    assert normalized("").version_policy.latest.num_versions == 1
    assert normalized("version_policy { all { } }").version_policy.WhichOneof("policy_choice") == "all"


def test_the_preferred_batch_size_is_the_largest_unless_given() -> None:
    assert list(normalized("max_batch_size: 8 dynamic_batching { }").dynamic_batching.preferred_batch_size) == [8]
    assert list(normalized("dynamic_batching { }").dynamic_batching.preferred_batch_size) == []
    given_size = normalized("max_batch_size: 8 dynamic_batching { preferred_batch_size: 2 }")
    assert list(given_size.dynamic_batching.preferred_batch_size) == [2]
    assert not normalized("max_batch_size: 8").HasField("dynamic_batching")


def test_pinned_memory_is_on_unless_switched_off() -> None:
    optimization = normalized("optimization { input_pinned_memory { enable: false } }").optimization
    assert (optimization.input_pinned_memory.enable, optimization.output_pinned_memory.enable) == (False, True)


def test_no_instance_group_is_one_named_like_the_model() -> None:
    assert groups("") == [("m", CPU, 1, [])]
    assert groups("", gpus=2) == [("m", GPU, 1, [0, 1])]


def test_groups_without_a_name_are_numbered() -> None:
    text = 'instance_group [ { kind: KIND_CPU count: 2 }, { name: "own" kind: KIND_MODEL }, { kind: KIND_CPU } ]'
    assert groups(text) == [("m_0", CPU, 2, []), ("own", MODEL, 1, []), ("m_2", CPU, 1, [])]


def test_auto_is_gpu_where_every_listed_gpu_is_there_and_cpu_elsewhere() -> None:
    assert groups("instance_group { gpus: [ 1 ] }", gpus=2) == [("m_0", GPU, 1, [1])]
    assert groups("instance_group { gpus: [ 1, 2 ] }", gpus=2) == [("m_0", CPU, 1, [])]
    assert groups("instance_group { gpus: [ 1 ] }", gpus=0) == [("m_0", CPU, 1, [])]


def test_gpu_without_a_list_is_every_gpu() -> None:
    assert groups("instance_group { kind: KIND_GPU count: 2 }", gpus=3) == [("m_0", GPU, 2, [0, 1, 2])]
    assert groups("instance_group { kind: KIND_GPU }", gpus=0) == [("m_0", GPU, 1, [])]


def test_an_overlay_is_laid_over_field_by_field() -> None:
    config = parse_config(
        'backend: "a" max_batch_size: 4 input { name: "x" } '
        "dynamic_batching { max_queue_delay_microseconds: 5 preserve_ordering: true default_queue_policy { max_queue_size: 1 } } "
        'parameters { key: "k" value { string_value: "1" } } parameters { key: "l" value { string_value: "2" } } '
        'metric_tags { key: "t" value: "1" }'
    )
    lay_over(
        config,
        parse_config(
            'max_batch_size: 16 input { name: "y" } input { name: "z" } '
            "dynamic_batching { max_queue_delay_microseconds: 9 default_queue_policy { allow_timeout_override: true } } "
            'parameters { key: "l" value { string_value: "3" } } metric_tags { key: "u" value: "2" } response_cache { }'
        ),
    )
    assert (config.backend, config.max_batch_size) == ("a", 16)
    assert [tensor.name for tensor in config.input] == ["y", "z"]
    assert (config.dynamic_batching.max_queue_delay_microseconds, config.dynamic_batching.preserve_ordering) == (
        9,
        True,
    )
    assert config.dynamic_batching.default_queue_policy.max_queue_size == 1
    assert config.dynamic_batching.default_queue_policy.allow_timeout_override
    assert {key: value.string_value for key, value in config.parameters.items()} == {"k": "1", "l": "3"}
    assert dict(config.metric_tags) == {"t": "1", "u": "2"}
    assert config.HasField("response_cache")


def test_an_overlay_replaces_the_scheduler_of_another_kind() -> None:
    config = parse_config("sequence_batching { max_sequence_idle_microseconds: 5 }")
    lay_over(config, parse_config("dynamic_batching { }"))
    assert config.WhichOneof("scheduling_choice") == "dynamic_batching"


@settings(max_examples=60, deadline=None)
@given(configs())
def test_an_overlay_over_nothing_or_over_itself_is_itself(config: mc.ModelConfig) -> None:
    below = mc.ModelConfig()
    lay_over(below, config)
    assert below == config
    lay_over(below, config)
    assert below == config


def test_the_fields_that_are_set_are_listed_by_path() -> None:
    config = parse_config(
        'name: "m" optimization { cuda { graphs: true } priority: PRIORITY_MAX } input { name: "x" format: FORMAT_NHWC dims: 1 } '
        "instance_group { rate_limiter { } } model_warmup { inputs { key: 'a' value { } } }"
    )
    assert config_fields_set(config) == [
        "name",
        "input[0].name",
        "input[0].format",
        "input[0].dims",
        "optimization.priority",
        "optimization.cuda.graphs",
        "instance_group[0].rate_limiter",
        "model_warmup[0].inputs",
    ]


class TestGpuCount:
    def test_the_device_files_are_counted(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        assert gpu_count(tmp_path) == 0
        for name in ("nvidia0", "nvidia3", "nvidiactl", "nvidia-uvm", "nvidia-caps"):
            (tmp_path / name).touch()
        assert gpu_count(tmp_path) == 2
        assert gpu_count(tmp_path / "none") == 0

    def test_the_process_sees_what_cuda_would_show_it(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("nvidia0", "nvidia1"):
            (tmp_path / name).touch()
        for visible, count in {"": 0, "0": 1, "1,0": 2, "-1": 0, "0,7,1": 1, "GPU-ab": 1, "MIG-1": 1, "x": 0}.items():
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
            assert gpu_count(tmp_path) == count, visible
