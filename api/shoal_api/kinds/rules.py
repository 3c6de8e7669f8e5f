"""Rules over several fields of an InferenceModel, which types alone cannot say. They become the CRD's CEL rules; the operator and
`shoal serve` check them as well, because an object may come past an API server that had no such rule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import urlsplit

from shoal_api.kinds import later
from shoal_api.kinds.inference_model import (
    Config,
    DynamicBatching,
    InferenceModel,
    InstanceGroup,
    Model,
    TensorSpec,
    VersionPolicy,
    Warmup,
)
from shoal_api.kinds.problems import FieldPath, Problem, near

URI_SCHEMES = frozenset({"file", "http", "https"})

_SPEC: FieldPath = ("spec",)


def check(model: InferenceModel) -> list[Problem]:
    """Return what breaks a rule; an empty list when the model may be planned."""
    spec = model.spec
    problems = list(_model(spec.model, (*_SPEC, "model")))
    if spec.config is not None:
        problems += _config(spec.config, (*_SPEC, "config"))
    if spec.version_policy is not None:
        problems += _version_policy(spec.version_policy, (*_SPEC, "versionPolicy"))
    return problems


def _model(model: Model, path: FieldPath) -> Iterator[Problem]:
    if (model.source is None) == (model.uri is None):
        yield Problem(
            f"exactly one of source and uri is needed, got {'neither' if model.uri is None else 'both'}", path
        )
    if model.source is not None:
        yield from _exactly_one({"local": model.source.local, "http": model.source.http}, (*path, "source"))
    if model.uri is not None:
        yield from _uri(model.uri, model.digest, (*path, "uri"))


def _uri(uri: str, digest: str | None, path: FieldPath) -> Iterator[Problem]:
    scheme, colon, rest = uri.partition("://")
    if not colon:
        yield Problem(f"'{uri}' is no URI: expected file://PATH or https://...", path)
    elif scheme in later.URI_SCHEMES:
        yield Problem(f"'{scheme}://' is not honoured yet by this release", path)
    elif scheme not in URI_SCHEMES:
        yield Problem(f"unknown scheme '{scheme}'{near(scheme, URI_SCHEMES)}", path)
    elif scheme == "file":
        if not rest:
            yield Problem("file:// needs a path; a relative one starts at the manifest's folder", path)
    else:
        try:
            host = urlsplit(uri).hostname
        except ValueError:
            host = None
        if not host:
            yield Problem(f"'{uri}' names no host", path)
        if digest is None:
            yield Problem("a model over HTTP needs spec.model.digest (sha256:..., as `shoal digest` prints it)", path)


def _config(config: Config, path: FieldPath) -> Iterator[Problem]:
    for field, tensors in (("inputs", config.inputs), ("outputs", config.outputs)):
        yield from _tensors(tensors, (*path, field))
    if config.dynamic_batching is not None:
        yield from _dynamic_batching(config.dynamic_batching, config.max_batch_size, (*path, "dynamicBatching"))
    for index, group in enumerate(config.instance_groups):
        yield from _instance_group(group, (*path, "instanceGroups", index))
    for index, warmup in enumerate(config.warmup):
        yield from _warmup(warmup, config, (*path, "warmup", index))
    yield from _unique([w.name for w in config.warmup], (*path, "warmup"))


def _tensors(tensors: Sequence[TensorSpec], path: FieldPath) -> Iterator[Problem]:
    yield from _unique([tensor.name for tensor in tensors], path)
    for index, tensor in enumerate(tensors):
        if 0 in tensor.dims:
            yield Problem("a dimension is a size of at least 1, or -1 for any size; got 0", (*path, index, "dims"))


def _dynamic_batching(batching: DynamicBatching, max_batch_size: int | None, path: FieldPath) -> Iterator[Problem]:
    if max_batch_size is not None:
        for index, size in enumerate(batching.preferred_batch_sizes):
            if size > max_batch_size:
                yield Problem(f"{size} is above maxBatchSize {max_batch_size}", (*path, "preferredBatchSizes", index))
    levels, default = batching.priority_levels, batching.default_priority
    if levels and not 1 <= default <= levels:
        yield Problem(f"expected 1 to priorityLevels ({levels}), got {default}", (*path, "defaultPriority"))
    if not levels and default:
        yield Problem("needs priorityLevels", (*path, "defaultPriority"))
    if batching.preserve_ordering and levels > 1:
        yield Problem("cannot be together with more than one priority level", (*path, "preserveOrdering"))
    policy = batching.queue_policy
    if (
        batching.preserve_ordering
        and policy is not None
        and policy.timeout_action == "Delay"
        and policy.default_timeout_microseconds
    ):
        yield Problem("cannot be together with a queuePolicy that delays requests", (*path, "preserveOrdering"))


def _instance_group(group: InstanceGroup, path: FieldPath) -> Iterator[Problem]:
    if group.gpus and group.kind == "CPU":
        yield Problem("an instance group of kind CPU has no GPUs", (*path, "gpus"))
    if len(set(group.gpus)) != len(group.gpus):
        yield Problem("a GPU is named twice", (*path, "gpus"))


def _warmup(warmup: Warmup, config: Config, path: FieldPath) -> Iterator[Problem]:
    if config.max_batch_size and warmup.batch_size > config.max_batch_size:
        yield Problem(f"{warmup.batch_size} is above maxBatchSize {config.max_batch_size}", (*path, "batchSize"))
    for name, content in warmup.inputs.items():
        here = (*path, "inputs", name)
        given = {
            "zeroData": content.zero_data or None,
            "randomData": content.random_data or None,
            "inputDataFile": content.input_data_file,
        }
        yield from _exactly_one(given, here)
        if any(dim < 1 for dim in content.dims):
            yield Problem("a warm-up input has fixed dimensions of at least 1", (*here, "dims"))


def _version_policy(policy: VersionPolicy, path: FieldPath) -> Iterator[Problem]:
    yield from _exactly_one({"latest": policy.latest, "all": policy.all, "specific": policy.specific}, path)
    if policy.specific is not None and len(set(policy.specific.versions)) != len(policy.specific.versions):
        yield Problem("a version is named twice", (*path, "specific", "versions"))


def _exactly_one(fields: Mapping[str, object], path: FieldPath) -> Iterator[Problem]:
    given = [name for name, value in fields.items() if value is not None]
    if len(given) != 1:
        yield Problem(f"exactly one of {', '.join(fields)} is needed, got {' and '.join(given) or 'none'}", path)


def _unique(names: Sequence[str], path: FieldPath) -> Iterator[Problem]:
    seen: set[str] = set()
    for index, name in enumerate(names):
        if name in seen:
            yield Problem(f"duplicate name '{name}'", (*path, index, "name"))
        seen.add(name)
