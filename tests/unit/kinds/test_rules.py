"""Rules over several fields."""

from __future__ import annotations

from typing import Any

import pytest

from shoal_api.kinds import InferenceModel, check, dotted
from shoal_api.kinds.convert import convert


def problems(**spec: Any) -> list[str]:
    values = {
        "apiVersion": "serving.shoal.dev/v1alpha1",
        "kind": "InferenceModel",
        "metadata": {"name": "m"},
        "spec": {"model": {"uri": "file://m"}, **spec},
    }
    model, wrong = convert(values, InferenceModel)
    assert model is not None, wrong
    return [f"{dotted(p.path)}: {p.message}" for p in check(model)]


def batching(**fields: Any) -> list[str]:
    return problems(config={"maxBatchSize": 8, "dynamicBatching": fields})


def test_a_plain_model_breaks_no_rule() -> None:
    assert problems() == []


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ({}, "spec.model: exactly one of source and uri is needed, got neither"),
        (
            {"uri": "file://m", "source": {"local": {"path": "m"}}},
            "spec.model: exactly one of source and uri is needed, got both",
        ),
        ({"source": {}}, "spec.model.source: exactly one of local, http is needed, got none"),
        ({"uri": "models/m"}, "spec.model.uri: 'models/m' is no URI: expected file://PATH or https://..."),
        ({"uri": "file://"}, "spec.model.uri: file:// needs a path; a relative one starts at the manifest's folder"),
        ({"uri": "s3://bucket/m"}, "spec.model.uri: 's3://' is not honoured yet by this release"),
        ({"uri": "flie://m"}, "spec.model.uri: unknown scheme 'flie'; did you mean 'file'?"),
        ({"uri": "https:///x.onnx", "digest": "sha256:" + "0" * 64}, "spec.model.uri: 'https:///x.onnx' names no host"),
        (
            {"uri": "https://[x/y.onnx", "digest": "sha256:" + "0" * 64},
            "spec.model.uri: 'https://[x/y.onnx' names no host",
        ),
        (
            {"uri": "https://h/x.onnx"},
            "spec.model.uri: a model over HTTP needs spec.model.digest (sha256:..., as `shoal digest` prints it)",
        ),
    ],
)
def test_the_source_is_one_and_complete(model: dict[str, Any], expected: str) -> None:
    assert problems(model=model) == [expected]


def test_tensors_have_unique_names_and_dimensions_that_can_be() -> None:
    tensors = [{"name": "x", "dataType": "FP32", "dims": [0, 1]}, {"name": "x", "dataType": "FP32", "dims": [1]}]
    assert problems(config={"outputs": tensors}) == [
        "spec.config.outputs[1].name: duplicate name 'x'",
        "spec.config.outputs[0].dims: a dimension is a size of at least 1, or -1 for any size; got 0",
    ]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"preferredBatchSizes": [4, 9]}, "preferredBatchSizes[1]: 9 is above maxBatchSize 8"),
        ({"priorityLevels": 2}, "defaultPriority: expected 1 to priorityLevels (2), got 0"),
        ({"priorityLevels": 2, "defaultPriority": 3}, "defaultPriority: expected 1 to priorityLevels (2), got 3"),
        ({"defaultPriority": 1}, "defaultPriority: needs priorityLevels"),
        (
            {"preserveOrdering": True, "priorityLevels": 2, "defaultPriority": 1},
            "preserveOrdering: cannot be together with more than one priority level",
        ),
        (
            {"preserveOrdering": True, "queuePolicy": {"timeoutAction": "Delay", "defaultTimeoutMicroseconds": 1}},
            "preserveOrdering: cannot be together with a queuePolicy that delays requests",
        ),
    ],
)
def test_batching_rules(fields: dict[str, Any], expected: str) -> None:
    assert batching(**fields) == [f"spec.config.dynamicBatching.{expected}"]


def test_instance_groups_name_gpus_once_and_only_for_gpus() -> None:
    groups = [{"kind": "CPU", "gpus": [0]}, {"kind": "GPU", "gpus": [1, 1]}]
    assert problems(config={"instanceGroups": groups}) == [
        "spec.config.instanceGroups[0].gpus: an instance group of kind CPU has no GPUs",
        "spec.config.instanceGroups[1].gpus: a GPU is named twice",
    ]


def test_warmup_has_one_kind_of_data_and_fixed_dimensions() -> None:
    inputs = {"x": {"dataType": "FP32", "dims": [-1], "zeroData": True, "randomData": True}}
    assert problems(config={"maxBatchSize": 1, "warmup": [{"name": "w", "batchSize": 2, "inputs": inputs}]}) == [
        "spec.config.warmup[0].batchSize: 2 is above maxBatchSize 1",
        "spec.config.warmup[0].inputs.x: exactly one of zeroData, randomData, inputDataFile is needed, got zeroData and randomData",
        "spec.config.warmup[0].inputs.x.dims: a warm-up input has fixed dimensions of at least 1",
    ]


def test_a_version_policy_is_one_of_three() -> None:
    assert problems(versionPolicy={}) == [
        "spec.versionPolicy: exactly one of latest, all, specific is needed, got none"
    ]
    assert problems(versionPolicy={"all": {}}) == []
    assert problems(versionPolicy={"specific": {"versions": [1, 1]}}) == [
        "spec.versionPolicy.specific.versions: a version is named twice"
    ]
