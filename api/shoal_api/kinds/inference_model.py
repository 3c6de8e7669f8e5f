"""InferenceModel: a base model. What it is made of, how it batches, where it runs.

The fields here are those that this release honours; `later.py` lists the others of the design, so that a manifest that uses
one gets a clear answer. Every list and string is bounded: the same types become the CRD's schema, whose cost the API server limits.
"""

from __future__ import annotations

import enum
from typing import Annotated

from msgspec import Meta

from shoal_api.kinds.common import Digest, FilePath, Kind, Metadata, Sha256, ShortText, Text

Count = Annotated[int, Meta(ge=1, le=4096)]
BatchSize = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Size = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Microseconds = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Dim = Annotated[int, Meta(ge=-1, le=2**63 - 1, description="-1 is any size.")]
Dims = Annotated[list[Dim], Meta(min_length=1, max_length=32)]
TensorName = Annotated[str, Meta(min_length=1, max_length=256)]
Version = Annotated[int, Meta(ge=0, le=2**63 - 1)]
ServedName = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_])?$",
        max_length=256,
        description="The name in requests. It is a folder's name in a model repository as well.",
    ),
]


class Backend(enum.StrEnum):
    """What runs the model."""

    PYTORCH = "PyTorch"
    ONNX = "ONNX"
    PYTHON = "Python"


class TensorType(enum.StrEnum):
    """Element types, by their names on the wire (KServe v2)."""

    BOOL = "BOOL"
    UINT8 = "UINT8"
    UINT16 = "UINT16"
    UINT32 = "UINT32"
    UINT64 = "UINT64"
    INT8 = "INT8"
    INT16 = "INT16"
    INT32 = "INT32"
    INT64 = "INT64"
    FP16 = "FP16"
    BF16 = "BF16"
    FP32 = "FP32"
    FP64 = "FP64"
    BYTES = "BYTES"


class LocalSource(Kind, frozen=True):
    """A file or folder on the machine that serves; a relative path starts at the manifest's folder. For `shoal serve`."""

    path: FilePath


class HttpSource(Kind, frozen=True):
    """One file over HTTP or HTTPS, named by its content."""

    url: Annotated[str, Meta(pattern=r"^https?://[^\s]+$", max_length=2048)]
    sha256: Sha256


class Source(Kind, frozen=True):
    """Where the model is. Exactly one of the fields."""

    local: LocalSource | None = None
    http: HttpSource | None = None


class Model(Kind, frozen=True):
    """Exactly one of `source` and `uri`, its short form: `file://PATH`, or `https://...` together with `digest`.

    It holds one model: a Triton model folder (used as it is, with `spec.config` laid over its config.pbtxt), or a single
    model.pt, model.pt2, model.onnx or model.py, which becomes version 1.
    """

    source: Source | None = None
    uri: Annotated[str, Meta(min_length=1, max_length=2048)] | None = None
    name: ServedName | None = None
    digest: Digest | None = None


class TensorSpec(Kind, frozen=True):
    """One input or output; `dims` without the batch dimension when maxBatchSize is above 0."""

    name: TensorName
    data_type: TensorType
    dims: Dims


class TimeoutAction(enum.StrEnum):
    """What happens to a request that waited too long: it is refused, or served after all the others."""

    REJECT = "Reject"
    DELAY = "Delay"


class QueuePolicy(Kind, frozen=True):
    """Bounds of the queue. 0 is no timeout and no limit."""

    timeout_action: TimeoutAction = TimeoutAction.REJECT
    default_timeout_microseconds: Microseconds = 0
    allow_timeout_override: bool = False
    max_queue_size: Size = 0


class DynamicBatching(Kind, frozen=True):
    """Requests that are waiting run together. Without `maxQueueDelayMicroseconds` none waits for company."""

    preferred_batch_sizes: Annotated[list[Count], Meta(max_length=64)] = []
    max_queue_delay_microseconds: Microseconds = 0
    preserve_ordering: bool = False
    priority_levels: Size = 0
    default_priority: Size = 0
    queue_policy: QueuePolicy | None = None


class DeviceKind(enum.StrEnum):
    """Where instances run."""

    CPU = "CPU"
    GPU = "GPU"


class InstanceGroup(Kind, frozen=True):
    """`count` copies of the model, for each GPU of `gpus` (all GPUs when it is empty) or on the CPU."""

    kind: DeviceKind
    count: Count = 1
    gpus: Annotated[list[Annotated[int, Meta(ge=0, le=1024)]], Meta(max_length=64)] = []


class WarmupInput(Kind, frozen=True):
    """The content of one input. Exactly one of `zeroData`, `randomData` and `inputDataFile` (a file in the model's warmup folder)."""

    data_type: TensorType
    dims: Dims
    zero_data: bool = False
    random_data: bool = False
    input_data_file: FilePath | None = None


class Warmup(Kind, frozen=True):
    """A request that every instance answers `count` times before the model is ready."""

    name: ShortText
    inputs: dict[TensorName, WarmupInput]
    batch_size: Count = 1
    count: Count = 1


class Config(Kind, frozen=True):
    """How the model is served, in the words of Triton's model configuration. What is absent comes from the model itself: of a model
    that does not batch, `maxBatchSize` is left out."""

    max_batch_size: BatchSize | None = None
    inputs: Annotated[list[TensorSpec], Meta(max_length=1024)] = []
    outputs: Annotated[list[TensorSpec], Meta(max_length=1024)] = []
    dynamic_batching: DynamicBatching | None = None
    instance_groups: Annotated[list[InstanceGroup], Meta(max_length=64)] = []
    warmup: Annotated[list[Warmup], Meta(max_length=64)] = []
    parameters: dict[ShortText, Text] = {}


class LatestVersions(Kind, frozen=True):
    """The `num` highest version numbers."""

    num: Count = 1


class AllVersions(Kind, frozen=True):
    """Every version in the model's folder."""


class SpecificVersions(Kind, frozen=True):
    """These versions."""

    versions: Annotated[list[Version], Meta(min_length=1, max_length=256)]


class VersionPolicy(Kind, frozen=True):
    """Which versions of a model folder are served: exactly one of the fields. Absent: the latest."""

    latest: LatestVersions | None = None
    all: AllVersions | None = None
    specific: SpecificVersions | None = None


class InferenceModelSpec(Kind, frozen=True):
    """What is wanted. `backend` absent: as the model's files say."""

    model: Model
    backend: Backend | None = None
    config: Config | None = None
    version_policy: VersionPolicy | None = None


class InferenceModel(Kind, frozen=True):
    """One base model."""

    api_version: str
    kind: str
    metadata: Metadata
    spec: InferenceModelSpec

    @property
    def served_name(self) -> str:
        """The name in requests: `spec.model.name`, else the object's own name."""
        return self.spec.model.name or self.metadata.name
