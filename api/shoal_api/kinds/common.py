"""What all kinds share: the API group, names, metadata."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

API_VERSION = "serving.shoal.dev/v1alpha1"
KINDS = ("InferenceModel", "AdapterSet", "Ensemble", "BatchInference")
"""The kinds of the group. Those that this release serves are in `shoal_api.kinds.SERVED`."""

ObjectName = Annotated[
    str,
    Meta(
        pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$",
        max_length=40,
        description="A DNS label of at most 40 characters, so that the names made from it stay within 63.",
    ),
]
ShortText = Annotated[str, Meta(max_length=256)]
Text = Annotated[str, Meta(max_length=4096)]
FilePath = Annotated[str, Meta(min_length=1, max_length=4096)]
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$", description="SHA-256, 64 lower-case hexadecimal digits.")]
Digest = Annotated[str, Meta(pattern=r"^sha256:[0-9a-f]{64}$", description="As `shoal digest PATH` prints it.")]


class Kind(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    """Base of every struct of the API: camelCase on the wire, unknown fields refused, absent fields left out again."""


class Metadata(Kind, frozen=True):
    """The part of Kubernetes' ObjectMeta that a user writes."""

    name: ObjectName
    namespace: ObjectName | None = None
    labels: dict[ShortText, ShortText] = {}
    annotations: dict[ShortText, str] = {}
