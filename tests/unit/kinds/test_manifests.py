"""Reading manifests: what is accepted, and that whatever is wrong is named with its place."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal_api.kinds import InferenceModel, ManifestError, load_manifests
from shoal_api.kinds.document import MAX_BYTES, read_documents

HEAD = "apiVersion: serving.shoal.dev/v1alpha1\nkind: InferenceModel\n"
GOOD = HEAD + "metadata: {name: m}\nspec:\n  model: {uri: 'file://m'}\n"


def write(folder: Path, text: str, name: str = "models.yaml") -> Path:
    file = folder / name
    file.write_text(text)
    return file


def errors(folder: Path, text: str) -> list[str]:
    file = write(folder, text)
    with pytest.raises(ManifestError) as raised:
        load_manifests([file])
    return [line.removeprefix(f"{file}:") for line in raised.value.lines]


def test_every_field_of_a_full_manifest_arrives(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        HEAD
        + """\
metadata:
  name: minilm
  namespace: search
  labels: {team: search}
  annotations: {note: hello}
spec:
  backend: ONNX
  model:
    source: {http: {url: "https://example.invalid/model.onnx", sha256: "SHA"}}
    name: Mini_LM.v2
    digest: sha256:DIGEST
  versionPolicy: {specific: {versions: [1, 3]}}
  config:
    maxBatchSize: 8
    inputs:
    - {name: ids, dataType: INT64, dims: [-1]}
    outputs:
    - {name: out, dataType: BYTES, dims: [1, 2]}
    dynamicBatching:
      preferredBatchSizes: [4, 8]
      maxQueueDelayMicroseconds: 100
      priorityLevels: 2
      defaultPriority: 1
      queuePolicy: {timeoutAction: Delay, defaultTimeoutMicroseconds: 5, allowTimeoutOverride: true, maxQueueSize: 9}
    instanceGroups:
    - {kind: GPU, count: 2, gpus: [0, 1]}
    warmup:
    - {name: w, batchSize: 2, count: 3, inputs: {ids: {dataType: INT64, dims: [4], randomData: true}}}
    parameters: {SHOAL_EXECUTION: thread}
""".replace("SHA", "a" * 64).replace("DIGEST", "b" * 64),
    )
    (found,) = load_manifests([file])
    model = found.model
    assert isinstance(model, InferenceModel)
    assert model.served_name == "Mini_LM.v2"
    assert model.metadata.labels == {"team": "search"}
    assert model.spec.model.source is not None
    assert model.spec.model.source.http is not None
    assert model.spec.model.source.http.sha256 == "a" * 64
    config = model.spec.config
    assert config is not None
    assert config.max_batch_size == 8
    assert config.inputs[0].dims == [-1]
    assert config.outputs[0].data_type == "BYTES"
    assert config.dynamic_batching is not None
    assert config.dynamic_batching.queue_policy is not None
    assert config.dynamic_batching.queue_policy.timeout_action == "Delay"
    assert config.instance_groups[0].gpus == [0, 1]
    assert config.warmup[0].inputs["ids"].random_data
    assert config.parameters == {"SHOAL_EXECUTION": "thread"}
    assert model.spec.version_policy is not None
    assert model.spec.version_policy.specific is not None
    assert model.spec.version_policy.specific.versions == [1, 3]


def test_documents_and_files_are_read_in_order_and_empty_documents_passed_over(tmp_path: Path) -> None:
    write(tmp_path, GOOD.replace("name: m", "name: b") + "---\n---\n" + GOOD.replace("name: m", "name: c"), "2.yaml")
    write(tmp_path, GOOD.replace("name: m", "name: a"), "1.yml")
    write(tmp_path, "not yaml: [", ".hidden.yaml")
    write(tmp_path, "not yaml: [", "notes.txt")
    found = load_manifests([tmp_path])
    assert [m.model.metadata.name for m in found] == ["a", "b", "c"]
    assert [m.origin.document for m in found] == [1, 1, 3]


def test_json_is_yaml(tmp_path: Path) -> None:
    text = '{"apiVersion": "serving.shoal.dev/v1alpha1", "kind": "InferenceModel", "metadata": {"name": "m"}, "spec": {"model": {"uri": "file://m"}}}'
    assert len(load_manifests([write(tmp_path, text, "m.json")])) == 1


def test_an_error_names_file_line_document_object_field_and_the_near_name(tmp_path: Path) -> None:
    text = GOOD + "---\n" + GOOD.replace("name: m", "name: other") + "  config:\n    maxBatchSze: 4\n"
    assert errors(tmp_path, text) == [
        "13: document 2 (InferenceModel other): spec.config.maxBatchSze: unknown field; did you mean 'maxBatchSize'?"
    ]


def test_all_problems_are_reported_at_once_in_the_order_of_their_lines(tmp_path: Path) -> None:
    text = (
        HEAD
        + "metadata: {name: m, labls: {}}\nspec:\n  backend: Pytorch\n  model: {uri: 'file://m'}\n  config: {maxBatchSize: eight}\n"
    )
    assert errors(tmp_path, text) == [
        "3: document 1 (InferenceModel m): metadata.labls: unknown field; did you mean 'labels'?",
        "5: document 1 (InferenceModel m): spec.backend: 'Pytorch' is none of PyTorch, ONNX, Python",
        "7: document 1 (InferenceModel m): spec.config.maxBatchSize: expected int, got str 'eight'",
    ]


def test_an_element_of_a_list_is_named_by_its_index_and_line(tmp_path: Path) -> None:
    text = (
        GOOD
        + "  config:\n    inputs:\n    - {name: a, dataType: FP32, dims: [1]}\n    - {name: b, dataType: FP33, dims: [1, -2]}\n"
    )
    lines = errors(tmp_path, text)
    assert lines[0].startswith(
        "9: document 1 (InferenceModel m): spec.config.inputs[1].dataType: 'FP33' is none of BOOL, "
    )
    assert lines[1] == "9: document 1 (InferenceModel m): spec.config.inputs[1].dims[1]: expected int >= -1, got int -2"


@pytest.mark.parametrize(
    ("addition", "path"),
    [
        ("  lora: {enabled: true}\n", "spec.lora"),
        ("  replicas: 2\n", "spec.replicas"),
        ("  hostRef: {name: x}\n", "spec.hostRef"),
        ("  config: {sequenceBatching: {}}\n", "spec.config.sequenceBatching"),
        ("  config: {responseCache: true}\n", "spec.config.responseCache"),
    ],
)
def test_a_field_of_a_later_release_is_refused_as_such(tmp_path: Path, addition: str, path: str) -> None:
    (line,) = errors(tmp_path, GOOD + addition)
    assert line.endswith(f"{path}: not honoured yet by this release; leave it out")


@pytest.mark.parametrize("backend", ["LLM", "Container"])
def test_a_backend_of_a_later_release_is_refused_as_such(tmp_path: Path, backend: str) -> None:
    (line,) = errors(tmp_path, GOOD + f"  backend: {backend}\n")
    assert line.endswith(f"spec.backend: '{backend}' is not honoured yet by this release")


@pytest.mark.parametrize("source", ["hf: {repo: x}", "s3: {bucket: x}", "pvc: {claimName: x}", "configMap: {name: x}"])
def test_a_source_of_a_later_release_is_refused_as_such(tmp_path: Path, source: str) -> None:
    text = GOOD.replace("uri: 'file://m'", f"source: {{{source}}}")
    assert any(
        "not honoured yet by this release" in line and "spec.model.source." in line for line in errors(tmp_path, text)
    )


@pytest.mark.parametrize("kind", ["AdapterSet", "Ensemble", "BatchInference"])
def test_a_kind_that_is_not_served_yet_is_refused_as_such(tmp_path: Path, kind: str) -> None:
    (line,) = errors(tmp_path, GOOD.replace("InferenceModel", kind))
    assert line == f"2: document 1: kind: {kind} is not served yet by this release; it serves InferenceModel"


def test_unknown_kinds_and_groups_are_named(tmp_path: Path) -> None:
    assert errors(tmp_path, GOOD.replace("InferenceModel", "InferencModel")) == [
        "2: document 1: kind: unknown kind 'InferencModel'; did you mean 'InferenceModel' or 'BatchInference'?"
    ]
    assert errors(tmp_path, GOOD.replace("serving.shoal.dev/v1alpha1", "v1")) == [
        "1: document 1: apiVersion: 'v1' is not served here; expected serving.shoal.dev/v1alpha1"
    ]
    assert "no apiVersion" in errors(tmp_path, "kind: InferenceModel\n")[0]


def test_status_is_not_for_users(tmp_path: Path) -> None:
    (line,) = errors(tmp_path, GOOD + "status: {}\n")
    assert line.endswith("status: written by the operator; leave it out")


def test_two_models_of_one_served_name_are_refused_with_both_places(tmp_path: Path) -> None:
    text = GOOD + "---\n" + GOOD.replace("name: m", "name: n").replace("uri:", "name: m, uri:")
    (line,) = errors(tmp_path, text)
    assert line == (
        "11: document 2 (InferenceModel n): spec.model.name: a model is served as 'm' already: "
        f"{tmp_path / 'models.yaml'}:5 (document 1)"
    )


@pytest.mark.parametrize("name", ["Upper", "-a", "a-", "a.b", "a/b", "..", "a" * 41, '"a\\n"', "''", "7", "null"])
def test_an_object_name_that_is_no_label_is_refused(tmp_path: Path, name: str) -> None:
    assert any("metadata.name" in line for line in errors(tmp_path, GOOD.replace("name: m", f"name: {name}")))


@pytest.mark.parametrize("name", ["../x", "a/b", "a..", ".hidden", "x\\n"])
def test_a_served_name_that_is_no_folder_name_is_refused(tmp_path: Path, name: str) -> None:
    assert any("spec.model.name" in line for line in errors(tmp_path, GOOD.replace("uri:", f'name: "{name}", uri:')))


def test_required_fields_are_named_when_missing_or_null(tmp_path: Path) -> None:
    assert errors(tmp_path, HEAD + "metadata: {}\nspec: null\n") == [
        "3: document 1 (InferenceModel): metadata.name: required, and missing",
        "4: document 1 (InferenceModel): spec: required, and missing",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\na: 2\n", "2: duplicate key 'a'"),
        ("a: {b: 1, b: 2}\n", "1: duplicate key 'b'"),
        ("1: x\n", "1: a key must be a string, got '1'; put it in quotes"),
        ("on: x\n", "1: a key must be a string, got 'on'; put it in quotes"),
        ("- a\n", "1: document 1: expected a mapping with apiVersion and kind, got a list"),
        ("just text\n", "1: document 1: expected a mapping with apiVersion and kind, got a single value"),
        ("a: [1, 2\nb: 3\n", "2: not valid YAML: expected ',' or ']', but got ':'"),
        (
            "a: !!python/object:os.system {}\n",
            "1: not valid YAML: could not determine a constructor for the tag 'tag:yaml.org,2002:"
            "python/object:os.system'",
        ),
        ("a: &x [*x]\n", "1: fields nested more than 100 deep"),
    ],
)
def test_text_that_is_no_manifest_is_refused_with_its_line(tmp_path: Path, text: str, expected: str) -> None:
    assert errors(tmp_path, text) == [expected]


def test_nested_anchors_cannot_fill_the_memory(tmp_path: Path) -> None:
    levels = "\n".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]" for n in range(1, 12))
    assert "more than 100000 fields" in errors(tmp_path, f"l0: &l0 x\n{levels}\n")[0]


def test_deep_nesting_is_refused(tmp_path: Path) -> None:
    assert "nested too deeply" in errors(tmp_path, "a: " + "[" * 5000)[0]


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    large = write(tmp_path, "#" * (MAX_BYTES + 1), "large.yaml")
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"a: \xff\xfe\n")
    with pytest.raises(ManifestError) as raised:
        load_manifests([large, binary, tmp_path / "missing.yaml"])
    text = str(raised.value)
    assert "a manifest file has at most" in text
    assert f"{binary}: not UTF-8 text (byte 3)" in text
    assert f"{tmp_path / 'missing.yaml'}: cannot be read: No such file" in text


def test_nothing_to_serve_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, "# only a comment\n")
    with pytest.raises(ManifestError, match="no manifests in"):
        load_manifests([tmp_path])


def test_merge_keys_and_anchors_work(tmp_path: Path) -> None:
    text = GOOD + "  config:\n    inputs:\n    - &t {name: a, dataType: FP32, dims: [1]}\n    - {<<: *t, name: b}\n"
    (found,) = load_manifests([write(tmp_path, text)])
    assert found.model.spec.config is not None
    assert [t.name for t in found.model.spec.config.inputs] == ["a", "b"]


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)
keys = st.sampled_from(["apiVersion", "kind", "metadata", "spec", "model", "config", "uri", "inputs", "name", "dims"])
documents = st.recursive(values, lambda inner: st.dictionaries(keys, inner, max_size=4), max_leaves=20)


@settings(max_examples=60, deadline=None)
@given(documents)
def test_no_value_makes_the_reader_fail_otherwise_than_with_a_manifest_error(document: object) -> None:
    with tempfile.TemporaryDirectory() as folder:
        spec = {
            "apiVersion": "serving.shoal.dev/v1alpha1",
            "kind": "InferenceModel",
            "metadata": {"name": "m"},
            "spec": document,
        }
        file = write(Path(folder), yaml.safe_dump(spec, allow_unicode=True))
        with pytest.raises(ManifestError):
            load_manifests([file])


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_make_the_parser_fail_otherwise_than_with_a_manifest_error(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "m.yaml"
        file.write_bytes(content)
        with contextlib.suppress(ManifestError):
            list(read_documents(file))
