"""The kinds that a user declares, typed, and how manifests of them are read."""

from shoal_api.kinds.common import API_VERSION, KINDS, Metadata
from shoal_api.kinds.inference_model import InferenceModel
from shoal_api.kinds.manifest import SERVED, Manifest, load_manifests
from shoal_api.kinds.problems import ManifestError, Origin, Problem, dotted, located, near
from shoal_api.kinds.rules import check

__all__ = [
    "API_VERSION",
    "KINDS",
    "SERVED",
    "InferenceModel",
    "Manifest",
    "ManifestError",
    "Metadata",
    "Origin",
    "Problem",
    "check",
    "dotted",
    "load_manifests",
    "located",
    "near",
]
