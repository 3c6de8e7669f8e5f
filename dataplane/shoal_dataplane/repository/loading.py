"""The slow half of a load: find the files, read the configuration, build the versions. Nothing here changes what is served."""

from __future__ import annotations

import functools
import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.core.errors import Code, ServingError, internal, invalid
from shoal_dataplane.options import RepositoryOptions
from shoal_dataplane.repository.completion import Completer, name_config, written_config
from shoal_dataplane.repository.layout import (
    CONFIG_FILE,
    CONFIG_FOLDER,
    ModelLocation,
    find,
    select_versions,
    versions,
)
from shoal_dataplane.repository.override import Override, Workspace
from shoal_dataplane.repository.records import Serving, describe
from shoal_dataplane.repository.snapshot import Snapshot, signature, take_snapshot
from shoal_dataplane.repository.support import refuse_unsupported
from shoal_dataplane.repository.threads import run_all
from shoal_dataplane.repository.types import ServableFactory

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Found:
    """The files of a model as they are now. `workspace` holds them when a load request brought them."""

    location: ModelLocation
    snapshot: Snapshot
    workspace: Workspace | None = None

    def signature(self) -> bytes:
        """Equal for equal files."""
        return signature(self.snapshot)


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What a load is going to serve: the configuration as written, and the versions that its policy chooses, each with a fingerprint
    that stays the same as long as it need not be built again. `available` are all version folders."""

    location: ModelLocation
    written: mc.ModelConfig
    versions: dict[int, Path]
    fingerprints: dict[int, bytes]
    available: frozenset[int]


class BuildResult(NamedTuple):
    """What became of one version, and how long it took."""

    outcome: Serving | ServingError
    seconds: float


class Loader:
    """Thread-safe. At most `options.load_threads` versions are built at a time, over all models."""

    def __init__(
        self,
        options: RepositoryOptions,
        declared: Sequence[ModelLocation],
        completer: Completer,
        factory: ServableFactory,
    ) -> None:
        self._options = options
        self._declared = declared
        self._completer = completer
        self._factory = factory
        self._workers = max(1, options.load_threads)
        self._slots = threading.BoundedSemaphore(self._workers)

    def find(self, name: str, override: Override | None) -> Found:
        """Find a model's files, or write those of an override. Raises ServingError: in no repository, or in several."""
        if override is not None and override.files:
            workspace = Workspace(override.files)
            return Found(ModelLocation(name, workspace.path, workspace.path), {}, workspace)
        location = find(name, self._options.paths, self._declared)
        return Found(location, take_snapshot(location))

    def exists(self, name: str) -> bool:
        """Is the model still in a repository or manifest?"""
        try:
            find(name, self._options.paths, self._declared)
        except ServingError:
            return False
        return True

    def plan(self, found: Found, override: Override | None) -> LoadPlan:
        """Read the configuration and choose the versions. Raises ServingError."""
        location = found.location
        if override is None:
            written = written_config(location, self._options)
        else:
            written = mc.ModelConfig()
            written.CopyFrom(override.config)
            if location.is_file:
                written.default_model_filename = location.path.name
            name_config(written, location)
        refuse_unsupported(written)
        if not written.HasField("version_policy"):
            written.version_policy.latest.num_versions = 1
        try:
            available = versions(location)
        except OSError as error:
            raise invalid(f"cannot read the model folder '{location.path}': {error.strerror}") from None
        chosen = select_versions(written.version_policy, available, location.name)
        snapshot = found.snapshot or take_snapshot(location)
        return LoadPlan(
            location,
            written,
            {version: available[version] for version in chosen},
            {version: _fingerprint(location, written, version, snapshot) for version in chosen},
            frozenset(available),
        )

    def build(
        self, plan: LoadPlan, chosen: Iterable[int], outdated: Callable[[], bool], started: Callable[[int], None]
    ) -> dict[int, BuildResult]:
        """Build some versions of a plan, in parallel. `started` is told when the turn of one has come; a version whose turn comes while
        `outdated` holds is not built and not in the result."""
        results: dict[int, BuildResult] = {}

        def build_one(version: int) -> None:
            with self._slots:
                if outdated():
                    return
                started(version)
                begin = time.monotonic()
                outcome = self._build_version(plan, version)
                results[version] = BuildResult(outcome, time.monotonic() - begin)

        calls = [functools.partial(build_one, version) for version in chosen]
        run_all(calls, self._workers, f"shoal-load-{plan.location.name}")
        return results

    def _build_version(self, plan: LoadPlan, version: int) -> Serving | ServingError:
        location = plan.location
        attempts = 1 + max(0, self._options.load_retries)
        failure = internal("not attempted")
        for attempt in range(1, attempts + 1):
            try:
                source = self._completer.complete(plan.written, version, location.model_dir, plan.versions[version])
                return Serving(self._factory.build(source), source, plan.fingerprints[version])
            except ServingError as error:
                failure = error
            except BaseException as error:  # a model's code may raise anything, SystemExit too
                logger.exception("loading '%s' version %d raised", location.name, version)
                failure = internal(f"{type(error).__name__}: {error}")
            attempted = f" (attempt {attempt} of {attempts})" if attempts > 1 else ""
            logger.error("failed to load '%s' version %d%s: %s", location.name, version, attempted, describe(failure))
        return failure


def load_failed(name: str, failures: dict[int, ServingError]) -> ServingError:
    """Triton's error for a load of which some versions failed (triton.md A12): INVALID_ARGUMENT, or UNIMPLEMENTED where that is why."""
    only_unsupported = all(error.code is Code.UNIMPLEMENTED for error in failures.values())
    parts = (
        f"version {version} is at UNAVAILABLE state: {describe(failures[version])};" for version in sorted(failures)
    )
    return ServingError(
        Code.UNIMPLEMENTED if only_unsupported else Code.INVALID_ARGUMENT,
        f"load failed for model '{name}': {''.join(parts)}",
    )


def _fingerprint(location: ModelLocation, written: mc.ModelConfig, version: int, snapshot: Snapshot) -> bytes:
    """What one version is built from: the configuration but for the policy that chose it, its folder, and what versions share (labels,
    warm-up data). Comments in config.pbtxt and other versions do not count."""
    config = mc.ModelConfig()
    config.CopyFrom(written)
    config.ClearField("version_policy")

    def counts(path: str) -> bool:
        top = path.split("/", 1)[0]
        return top == str(version) or not (top.isdigit() or top in (CONFIG_FILE, CONFIG_FOLDER))

    digest = hashlib.blake2b(digest_size=16)
    digest.update(signature(snapshot, counts))
    digest.update(str(location.path).encode(errors="surrogateescape"))
    digest.update(config.SerializeToString(deterministic=True))
    return digest.digest()
