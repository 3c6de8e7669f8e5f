"""From a path to what it names (triton.md I1). Model names arrive percent-encoded: tritonclient quotes them."""

from __future__ import annotations

import enum
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import unquote


class Action(enum.Enum):
    """What a path asks for."""

    SERVER_METADATA = enum.auto()
    LIVE = enum.auto()
    READY = enum.auto()
    MODEL_METADATA = enum.auto()
    MODEL_READY = enum.auto()
    MODEL_CONFIG = enum.auto()
    MODEL_STATISTICS = enum.auto()
    INFER = enum.auto()
    GENERATE = enum.auto()
    GENERATE_STREAM = enum.auto()
    INDEX = enum.auto()
    LOAD = enum.auto()
    UNLOAD = enum.auto()
    METRICS = enum.auto()
    STARTUP_PROBE = enum.auto()
    LIVE_PROBE = enum.auto()
    READY_PROBE = enum.auto()
    TRACE = enum.auto()
    LOGGING = enum.auto()
    SHARED_MEMORY = enum.auto()


class Route(NamedTuple):
    """An action, the methods it takes (HEAD goes wherever GET goes), and what the path says: a model, a version, a repository."""

    action: Action
    methods: tuple[str, ...]
    model: str = ""
    version: str = ""
    repository: str = ""


_GET: Final = ("GET", "HEAD")
_POST: Final = ("POST",)
_BOTH: Final = ("GET", "HEAD", "POST")

_OF_MODEL: Final = {
    "": (Action.MODEL_METADATA, _GET),
    "ready": (Action.MODEL_READY, _GET),
    "config": (Action.MODEL_CONFIG, _GET),
    "stats": (Action.MODEL_STATISTICS, _GET),
    "infer": (Action.INFER, _POST),
    "generate": (Action.GENERATE, _POST),
    "generate_stream": (Action.GENERATE_STREAM, _POST),
}
_OF_SERVER: Final = {
    ("v2",): Route(Action.SERVER_METADATA, _GET),
    ("v2", "health", "live"): Route(Action.LIVE, _GET),
    ("v2", "health", "ready"): Route(Action.READY, _GET),
    ("v2", "models", "stats"): Route(Action.MODEL_STATISTICS, _GET),
    ("v2", "logging"): Route(Action.LOGGING, _BOTH),
    ("v2", "trace", "setting"): Route(Action.TRACE, _BOTH),
    ("metrics",): Route(Action.METRICS, _GET),
}
_OF_METRICS_PORT: Final = {
    "/metrics": Route(Action.METRICS, _GET),
    "/startupz": Route(Action.STARTUP_PROBE, _GET),
    "/livez": Route(Action.LIVE_PROBE, _GET),
    "/readyz": Route(Action.READY_PROBE, _GET),
}


def find_route(target: str) -> Route | None:
    """Return what a request target (path and query) of the HTTP port names, None when nothing."""
    return _find(target.partition("?")[0])


@lru_cache(maxsize=1024)
def _find(path: str) -> Route | None:
    if not path.startswith("/"):
        return None
    parts = tuple(unquote(part) for part in path[1:].split("/"))
    known = _OF_SERVER.get(parts)
    if known is not None:
        return known
    if len(parts) < 3 or parts[0] != "v2" or "" in parts:
        return None
    if parts[1] == "models":
        return _model_route(parts[2], parts[3:])
    if parts[1] == "repository":
        return _repository_route(parts[2:])
    if parts[1] in ("systemsharedmemory", "cudasharedmemory"):
        region = parts[2:-1]
        if parts[-1] in ("status", "register", "unregister") and (
            not region or (region[0] == "region" and len(region) == 2)
        ):
            return Route(Action.SHARED_MEMORY, _BOTH)
    return None


def _model_route(model: str, rest: tuple[str, ...]) -> Route | None:
    version = ""
    if rest == ("trace", "setting"):
        return Route(Action.TRACE, _BOTH, model)
    if len(rest) >= 2 and rest[0] == "versions":
        version = rest[1]
        if not (version.isascii() and version.isdigit()):
            return None
        rest = rest[2:]
    if len(rest) > 1:
        return None
    found = _OF_MODEL.get(rest[0] if rest else "")
    return Route(found[0], found[1], model, version) if found is not None else None


def _repository_route(rest: tuple[str, ...]) -> Route | None:
    """[repository/]index, [repository/]models/model/(load|unload)."""
    repository = ""
    if len(rest) in (2, 4):
        repository, rest = rest[0], rest[1:]
    if rest == ("index",):
        return Route(Action.INDEX, _POST, repository=repository)
    if len(rest) == 3 and rest[0] == "models" and rest[2] in ("load", "unload"):
        return Route(Action.LOAD if rest[2] == "load" else Action.UNLOAD, _POST, rest[1], repository=repository)
    return None


def find_metrics_route(target: str) -> Route | None:
    """Return what a request target of the metrics port names, None when nothing."""
    return _OF_METRICS_PORT.get(target.partition("?")[0])
