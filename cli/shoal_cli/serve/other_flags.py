"""Triton's flags that this server does not act on: accepted where that changes nothing for a client, refused where it would.

A flag that restricts access, or that changes what a client gets back, is never ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from shoal_cli.serve.flags import Flag, Kind


@dataclass(frozen=True)
class Other:
    """`why` it means nothing here, or why it is refused. A flag with a `harmless` pattern is refused unless its value matches."""

    flag: Flag
    why: str
    harmless: str | None = None


class FlagError(ValueError):
    """A command line that cannot be honoured."""


def _accepted(name: str, why: str, *, repeatable: bool = False) -> Other:
    return Other(Flag(name, Kind.TEXT, "", why, repeatable=repeatable), why)


def _refused(name: str, why: str, harmless: str, *, repeatable: bool = False, boolean: bool = False) -> Other:
    kind = Kind.BOOL if boolean else Kind.TEXT
    return Other(Flag(name, kind, "", why, repeatable=repeatable), why, harmless)


_NEVER = r"(?!)"
_OFF = r"False"
_THREADS = "its threads are chosen by itself"
_POOL = "no memory is set aside in advance"
_ANOTHER_DOOR = "that front end is not served"
_TRACING = "tracing is not served yet"
_CACHE = "the response cache is not served yet"

OTHERS: Final = (
    _accepted("backend-directory", "backends are Python modules, not shared libraries"),
    _accepted("buffer-manager-thread-count", _THREADS),
    _accepted("cache-directory", "there are no cache libraries to load"),
    _accepted("cuda-memory-pool-byte-size", _POOL, repeatable=True),
    _accepted("cuda-virtual-address-size", _POOL, repeatable=True),
    _accepted("enable-peer-access", "the frameworks arrange access between GPUs"),
    _accepted("grpc-infer-allocation-pool-size", _POOL),
    _accepted("grpc-infer-thread-count", _THREADS),
    _accepted("grpc-max-response-pool-size", _POOL),
    _accepted("host-policy", "instances are not bound to NUMA nodes or cores", repeatable=True),
    _accepted("http-thread-count", _THREADS),
    _accepted("metrics-config", "latency histograms are always exported, summaries never", repeatable=True),
    _accepted("pinned-memory-pool-byte-size", _POOL),
    _accepted("rate-limit-resource", "it has no meaning while rate limiting is off", repeatable=True),
    _accepted("repoagent-directory", "there are no repository agents to load"),
    _accepted("sagemaker-port", _ANOTHER_DOOR),
    _accepted("sagemaker-safe-port-range", _ANOTHER_DOOR),
    _accepted("sagemaker-thread-count", _ANOTHER_DOOR),
    _accepted("trace-count", "it has no meaning while tracing is off"),
    _accepted("trace-log-frequency", "it has no meaning while tracing is off"),
    _accepted("trace-rate", "it has no meaning while tracing is off"),
    _accepted("vertex-ai-default-model", _ANOTHER_DOOR),
    _accepted("vertex-ai-port", _ANOTHER_DOOR),
    _accepted("vertex-ai-thread-count", _ANOTHER_DOOR),
    _refused("allow-client-shm", "shared memory of clients is not served", _OFF, boolean=True),
    _refused("allow-sagemaker", _ANOTHER_DOOR, _OFF, boolean=True),
    _refused("allow-vertex-ai", _ANOTHER_DOOR, _OFF, boolean=True),
    _refused("cache-config", _CACHE, _NEVER, repeatable=True),
    _refused("grpc-restricted-protocol", "access would not be restricted: that is not served yet", _NEVER, repeatable=True),
    _refused("http-restricted-api", "access would not be restricted: that is not served yet", _NEVER, repeatable=True),
    _refused("model-load-gpu-limit", "loads are not refused by GPU memory yet", _NEVER, repeatable=True),
    _refused("model-namespacing", "model names are unique over all repositories", _OFF, boolean=True),
    _refused("rate-limit", "rate limiting is not served yet", r"off"),
    _refused("response-cache-byte-size", _CACHE, r"0+"),
    _refused("trace-config", _TRACING, r"level=OFF|rate=\d+|count=-?\d+|mode=triton", repeatable=True),
    _refused("trace-file", _TRACING, _NEVER),
    _refused("trace-level", _TRACING, r"OFF", repeatable=True),
)  # fmt: skip


def refuse(values: Mapping[str, Any]) -> None:
    """Raise FlagError for the first flag whose absence would change what a client gets, naming it and why."""
    for other in OTHERS:
        if other.harmless is None:
            continue
        for value in _given(values, other):
            if re.fullmatch(other.harmless, str(value)) is None:
                shown = str(value).lower() if other.flag.kind is Kind.BOOL else value
                raise FlagError(
                    f"--{other.flag.name}={shown} is refused: {other.why}. Start without it, or stay with Triton for this"
                )


def ignored(values: Mapping[str, Any]) -> list[str]:
    """Return, for the log, the flags that were given and mean nothing here: "--http-thread-count (its threads ...)"."""
    names = [f"--{o.flag.name} ({o.why})" for o in OTHERS if o.harmless is None and _given(values, o)]
    if not values.get("grpc_use_ssl") and not values.get("grpc_use_ssl_mutual"):
        certificates = [key for key in ("grpc_server_cert", "grpc_server_key", "grpc_root_cert") if values.get(key)]
        names += [f"--{key.replace('_', '-')} (TLS is off without --grpc-use-ssl)" for key in certificates]
    return names


def _given(values: Mapping[str, Any], other: Other) -> Sequence[Any]:
    value = values.get(other.flag.key)
    if value is None:
        return ()
    return tuple(value) if other.flag.repeatable and isinstance(value, Iterable) else (value,)
