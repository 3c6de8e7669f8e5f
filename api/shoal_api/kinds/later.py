"""Fields and values of the design that this release does not honour. A manifest that has one is refused, and told so: a field that
nothing acts on would be a promise that is not kept."""

from __future__ import annotations

FIELDS: dict[tuple[str, ...], frozenset[str]] = {
    ("spec",): frozenset(
        {
            "access",
            "cache",
            "container",
            "credentials",
            "hostRef",
            "image",
            "lora",
            "monitoring",
            "networkPolicy",
            "parallelism",
            "podDisruptionBudget",
            "podTemplate",
            "replicas",
            "resources",
            "rollout",
            "scaling",
            "service",
            "suspend",
            "tracing",
        }
    ),
    ("spec", "model", "source"): frozenset({"configMap", "hf", "oci", "pvc", "s3"}),
    ("spec", "config"): frozenset({"continuousBatching", "rateLimiter", "responseCache", "sequenceBatching"}),
}
"""Names by the path of the object that they are in."""

VALUES: dict[tuple[str, ...], frozenset[str]] = {("spec", "backend"): frozenset({"Container", "LLM"})}
"""Values of an enumeration, by its path."""

URI_SCHEMES = frozenset({"configmap", "hf", "oci", "pvc", "s3"})
