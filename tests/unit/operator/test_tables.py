"""What a manifest means: the entry of the desired table, in Triton's configuration words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format

from shoal_api.kinds import InferenceModel
from shoal_api.kinds.convert import convert
from shoal_api.protocol import model_config_pb2 as mc
from shoal_operator.tables import HttpFile, LocalPath, ModelEntry, plan_model

BASE = Path("/manifests")


def plan(**spec: Any) -> ModelEntry:
    values = {
        "apiVersion": "serving.shoal.dev/v1alpha1",
        "kind": "InferenceModel",
        "metadata": {"name": "m"},
        "spec": {"model": {"uri": "file://m"}, **spec},
    }
    model, problems = convert(values, InferenceModel)
    assert model is not None, problems
    return plan_model(model, BASE)


def overlay(**spec: Any) -> mc.ModelConfig:
    return plan(**spec).overlay


def parsed(text: str) -> mc.ModelConfig:
    return text_format.Parse(text, mc.ModelConfig())


def test_what_is_absent_is_left_open() -> None:
    assert overlay() == parsed('name: "m"')
    assert overlay(config={}) == parsed('name: "m"')


def test_every_field_has_its_place_in_the_configuration() -> None:
    config = overlay(
        backend="PyTorch",
        versionPolicy={"latest": {"num": 2}},
        config={
            "maxBatchSize": 8,
            "inputs": [{"name": "x", "dataType": "FP32", "dims": [-1, 4]}],
            "outputs": [{"name": "y", "dataType": "BYTES", "dims": [1]}],
            "dynamicBatching": {
                "preferredBatchSizes": [4],
                "maxQueueDelayMicroseconds": 7,
                "priorityLevels": 3,
                "defaultPriority": 2,
                "queuePolicy": {
                    "timeoutAction": "Delay",
                    "defaultTimeoutMicroseconds": 5,
                    "allowTimeoutOverride": True,
                    "maxQueueSize": 6,
                },
            },
            "instanceGroups": [{"kind": "GPU", "count": 2, "gpus": [0, 1]}, {"kind": "CPU"}],
            "warmup": [
                {
                    "name": "w",
                    "batchSize": 2,
                    "count": 3,
                    "inputs": {
                        "x": {"dataType": "FP32", "dims": [1, 4], "zeroData": True},
                        "r": {"dataType": "INT8", "dims": [1], "randomData": True},
                        "f": {"dataType": "BF16", "dims": [1], "inputDataFile": "f.bin"},
                    },
                }
            ],
            "parameters": {"K": "V"},
        },
    )
    assert config == parsed(
        """
        name: "m" backend: "pytorch" max_batch_size: 8
        version_policy { latest { num_versions: 2 } }
        input { name: "x" data_type: TYPE_FP32 dims: [-1, 4] }
        output { name: "y" data_type: TYPE_STRING dims: [1] }
        dynamic_batching {
          preferred_batch_size: 4 max_queue_delay_microseconds: 7 priority_levels: 3 default_priority_level: 2
          default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 5 allow_timeout_override: true max_queue_size: 6 }
        }
        instance_group { kind: KIND_GPU count: 2 gpus: [0, 1] }
        instance_group { kind: KIND_CPU count: 1 }
        model_warmup {
          name: "w" batch_size: 2 count: 3
          inputs { key: "x" value { data_type: TYPE_FP32 dims: [1, 4] zero_data: true } }
          inputs { key: "r" value { data_type: TYPE_INT8 dims: [1] random_data: true } }
          inputs { key: "f" value { data_type: TYPE_BF16 dims: [1] input_data_file: "f.bin" } }
        }
        parameters { key: "K" value { string_value: "V" } }
        """
    )


def test_empty_dynamic_batching_still_asks_for_it() -> None:
    assert overlay(config={"dynamicBatching": {}}).HasField("dynamic_batching")


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        ({"latest": {}}, "latest { num_versions: 1 }"),
        ({"all": {}}, "all { }"),
        ({"specific": {"versions": [3, 1]}}, "specific { versions: [3, 1] }"),
    ],
)
def test_version_policies(policy: dict[str, Any], text: str) -> None:
    assert overlay(versionPolicy=policy).version_policy == parsed(f"version_policy {{ {text} }}").version_policy


@pytest.mark.parametrize(("backend", "name"), [("PyTorch", "pytorch"), ("ONNX", "onnxruntime"), ("Python", "python")])
def test_backends_have_tritons_names(backend: str, name: str) -> None:
    assert overlay(backend=backend).backend == name


def test_every_data_type_has_its_name_in_the_configuration() -> None:
    names = [
        "BOOL",
        "UINT8",
        "UINT16",
        "UINT32",
        "UINT64",
        "INT8",
        "INT16",
        "INT32",
        "INT64",
        "FP16",
        "BF16",
        "FP32",
        "FP64",
        "BYTES",
    ]
    config = overlay(config={"inputs": [{"name": n, "dataType": n, "dims": [1]} for n in names]})
    expected = [f"TYPE_{'STRING' if n == 'BYTES' else n}" for n in names]
    assert [mc.DataType.Name(tensor.data_type) for tensor in config.input] == expected


@pytest.mark.parametrize(
    ("model", "source"),
    [
        ({"uri": "file://models/m"}, LocalPath(BASE / "models/m")),
        ({"uri": "file:///abs/m"}, LocalPath(Path("/abs/m"))),
        ({"uri": "file://with%20space"}, LocalPath(BASE / "with space")),
        ({"source": {"local": {"path": "../m"}}}, LocalPath(BASE / "../m")),
        ({"source": {"http": {"url": "http://h/m.onnx", "sha256": "a" * 64}}}, HttpFile("http://h/m.onnx", "a" * 64)),
        ({"uri": "https://h/m.onnx", "digest": "sha256:" + "b" * 64}, HttpFile("https://h/m.onnx", "b" * 64)),
    ],
)
def test_sources(model: dict[str, Any], source: object) -> None:
    assert plan(model=model).source == source


def test_a_model_that_breaks_a_rule_is_not_planned() -> None:
    with pytest.raises(ValueError, match=r"spec.model.uri: 's3://' is not honoured yet"):
        plan(model={"uri": "s3://x"})


def test_the_served_name_is_the_entrys_and_the_configurations() -> None:
    entry = plan(model={"uri": "file://m", "name": "Other"})
    assert (entry.name, entry.overlay.name) == ("Other", "Other")
