"""The model repository: which models there are, when they are loaded and unloaded, and what state they are in (triton.md A)."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from shoal_dataplane.core.errors import ServingError, invalid, unavailable
from shoal_dataplane.options import ControlMode, RepositoryOptions
from shoal_dataplane.repository.backend_fields import BackendFor
from shoal_dataplane.repository.completion import Completer
from shoal_dataplane.repository.devices import gpu_count
from shoal_dataplane.repository.layout import (
    DUPLICATE_REASON,
    ModelLocation,
    Scan,
    check_model_name,
    check_repository,
    scan,
)
from shoal_dataplane.repository.lifecycle import Lifecycle, Listener
from shoal_dataplane.repository.loading import Loader
from shoal_dataplane.repository.override import parse_load_parameters
from shoal_dataplane.repository.poll import ChangeDetector
from shoal_dataplane.repository.records import Kind, Operation, VersionState, describe
from shoal_dataplane.repository.snapshot import signature, take_snapshot
from shoal_dataplane.repository.threads import run_all
from shoal_dataplane.repository.types import (
    IndexEntry,
    ModelState,
    Publisher,
    RepositoryParameter,
    ServableFactory,
)

logger = logging.getLogger(__name__)

ALL_MODELS = "*"
_NOT_EXPLICIT = "explicit model load / unload is not allowed if polling is enabled"


class ModelRepository:
    """Loads the models of `options.paths` and of `sources` (models that a manifest declares; they are loaded at start in every mode).

    Mode none loads everything once; poll follows the files; explicit loads `options.load_models`, and then what `load` and `unload` say.
    `factory` builds the versions and `publisher` routes to them; both are called on repository threads, never with a lock held.
    `listener` is told of every change of a version's state. A replaced or unloaded version gets `drain_seconds` to finish what it
    runs; a change of the files counts once it is `settle_seconds` old. `clock` is monotonic, in seconds.

    Raises ServingError(INVALID_ARGUMENT) for options that contradict each other and for a path that is no folder.
    """

    def __init__(
        self,
        options: RepositoryOptions,
        factory: ServableFactory,
        publisher: Publisher,
        backend_for: BackendFor,
        sources: Sequence[ModelLocation] = (),
        listener: Listener | None = None,
        *,
        gpu_count: Callable[[], int] = gpu_count,
        drain_seconds: float = 60.0,
        settle_seconds: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        _check_options(options, sources)
        self._options = options
        self._sources = tuple(sources)
        loader = Loader(options, self._sources, Completer(options, backend_for, gpu_count), factory)
        self._lifecycle = Lifecycle(loader, publisher, listener, drain_seconds)
        self._settle_seconds = settle_seconds
        self._clock = clock
        self._detector = ChangeDetector(settle_seconds)
        self._homes: dict[str, Path | None] = {}  # the repository in which a name was seen last
        self._stopping = threading.Event()
        self._initial_done = threading.Event()
        self._initial_models: tuple[str, ...] = ()
        self._initial_failures: list[IndexEntry] = []
        self._not_loadable: dict[str, str] = {}  # why a model that should be loaded cannot even be tried, by its name

    # -- the first load

    def start(self) -> None:
        """Begin to load the initial models, in the background."""
        self._spawn("initial", self._load_initial)

    def wait_initial(self, timeout: float | None = None) -> bool:
        """Wait until every initial model is loaded or has failed; False when `timeout` seconds passed."""
        return self._initial_done.wait(timeout)

    def initial_models(self) -> tuple[str, ...]:
        """Names of the initial models, for a progress bar; empty until the repositories have been listed, a moment after `start`."""
        return self._initial_models

    def initial_failures(self) -> list[IndexEntry]:
        """What of the initial models was not ready when the first load ended."""
        return list(self._initial_failures)

    def _load_initial(self) -> None:
        try:
            names = self._initial_names()
            self._initial_models = tuple(names)
            operations = [Operation(name, Kind.LOAD) for name in names]
            self._lifecycle.submit(*operations)
            if self._options.control_mode is ControlMode.POLL:
                self._spawn("poll", self._poll_loop)
            self._execute_all(operations, "shoal-initial")
            for operation in operations:
                self._note_initial(operation)
            wanted = set(names)
            self._initial_failures += [
                row for row in self.unready() if row.name in wanted or row.name in self._not_loadable
            ]
        except ServingError as error:  # closed meanwhile
            self._initial_failures.append(IndexEntry("", "", ModelState.UNAVAILABLE, error.message))
        except Exception as error:
            logger.exception("the initial load failed")
            self._initial_failures.append(
                IndexEntry("", "", ModelState.UNAVAILABLE, f"the initial load failed: {error}")
            )
        finally:
            self._initial_done.set()

    def _initial_names(self) -> list[str]:
        explicit = self._options.control_mode is ControlMode.EXPLICIT
        declared = {location.name for location in self._sources}
        if explicit and ALL_MODELS not in self._options.load_models:
            return sorted(declared.union(self._options.load_models))
        found = self._scan()
        self._note_scan(found)
        for path, reason in found.unreadable.items():
            text = f"failed to poll model repository '{path}': {reason}"
            self._initial_failures.append(IndexEntry(str(path), "", ModelState.UNAVAILABLE, text))
        if self._options.control_mode is ControlMode.POLL:
            self._detector.take(_signatures(found.models.values()))
        return sorted(found.models)

    def _note_initial(self, operation: Operation) -> None:
        """Remember a model that was asked for and is not there: nothing else knows its name."""
        try:
            operation.wait()
        except ServingError as error:
            if not self._knows(operation.name):
                logger.error("%s", error.message)
                self._not_loadable[operation.name] = describe(error)

    # -- explicit control

    def load(self, name: str, parameters: Mapping[str, RepositoryParameter] | None = None) -> None:
        """Load or reload a model (explicit mode), and wait until its new versions serve; versions that they replace may still be
        finishing. Success without doing anything when nothing changed since it was loaded. `parameters`: see override.

        Raises ServingError: UNAVAILABLE in another mode or while closing, INTERNAL when it is in no repository, INVALID_ARGUMENT for a
        name or parameter and when loading failed (UNIMPLEMENTED if only because of a feature that is not supported).
        """
        self._check_explicit()
        check_model_name(name)
        operation = Operation(name, Kind.LOAD, parse_load_parameters(parameters or {}))
        self._lifecycle.start(operation)
        operation.wait()
        self._not_loadable.pop(name, None)

    def unload(self, name: str, unload_dependents: bool = False) -> None:
        """Unload a model (explicit mode), and wait until what it runs is finished and its memory is free. Success for a model that is
        not loaded. `unload_dependents` concerns the steps of ensembles, of which there are none.

        Raises ServingError(UNAVAILABLE) in another mode or while closing.
        """
        self._check_explicit()
        self._not_loadable.pop(name, None)
        if not self._knows(name):
            return
        operation = Operation(name, Kind.UNLOAD)
        self._lifecycle.start(operation)
        operation.wait()

    def _check_explicit(self) -> None:
        if self._options.control_mode is not ControlMode.EXPLICIT:
            raise unavailable(_NOT_EXPLICIT)

    def _knows(self, name: str) -> bool:
        return name in self._lifecycle.rows()

    # -- polling

    def poll(self) -> bool:
        """Look at the files once and start what follows from it, without waiting for it. True when something is still changing. Mode
        poll calls this by itself."""
        found = self._scan()
        self._note_scan(found)
        signatures = _signatures(found.models.values())
        for name, taken in self._detector.taken().items():
            if self._homes.get(name) in found.unreadable:  # a volume that is away for a moment takes no model down
                signatures.setdefault(name, taken)
        changes = self._detector.observe(signatures, self._clock())
        for name in sorted(changes.removed):
            self._lifecycle.start(Operation(name, Kind.REMOVE))
        loads = [
            Operation(name, Kind.LOAD) for name in sorted(changes.changed) if not self._lifecycle.awaits_load(name)
        ]
        self._lifecycle.submit(*loads)
        if loads:
            self._spawn("reload", functools.partial(self._execute_all, loads, "shoal-reload"))
        return changes.unsettled

    def _poll_loop(self) -> None:
        seconds = self._options.poll_seconds
        while not self._stopping.wait(max(seconds, 0.1)):
            unsettled = False
            try:
                unsettled = self.poll()
            except Exception:
                if not self._stopping.is_set():
                    logger.exception("polling the model repository failed")
            seconds = min(self._settle_seconds, self._options.poll_seconds) if unsettled else self._options.poll_seconds

    # -- what there is

    def index(self, ready_only: bool = False) -> list[IndexEntry]:
        """Every model of every repository, and what else is loaded, by name (triton.md A17). Lists the folders as they are now."""
        found = self._scan()
        rows = self._lifecycle.rows()
        index: list[IndexEntry] = []
        for name in sorted(found.names() | rows.keys() | self._not_loadable.keys()):
            if name in found.duplicates:
                index.append(IndexEntry(name, "", ModelState.UNAVAILABLE, DUPLICATE_REASON))
            elif rows.get(name):
                index += rows[name]
            elif name in self._not_loadable:
                index.append(IndexEntry(name, "", ModelState.UNAVAILABLE, self._not_loadable[name]))
            else:
                index.append(IndexEntry(name, "", "", ""))
        return [row for row in index if not ready_only or row.state == ModelState.READY]

    def unready(self) -> list[IndexEntry]:
        """What keeps the server from being ready under strict readiness: everything that was loaded, or should be, and is neither ready
        nor unloaded as asked (triton.md J2). Cheap: looks at no file."""
        rows = self._lifecycle.unready()
        named = {row.name for row in rows}
        return rows + [row for row in self._refused() if row.name not in named]

    def states(self) -> list[IndexEntry]:
        """The lines of the index for what was loaded, or should be. Cheap: looks at no file."""
        rows = self._lifecycle.rows()
        return sorted(
            [row for lines in rows.values() for row in lines]
            + [row for row in self._refused() if not rows.get(row.name)],
            key=lambda row: (row.name, int(row.version or 0)),
        )

    def state(self, name: str, version: int) -> VersionState | None:
        """State and reason of one version, None when it was never loaded."""
        return self._lifecycle.state(name, version)

    # -- the end

    def close(self, timeout: float) -> bool:
        """Stop polling and loading, finish what is queued and running, unload everything; see Lifecycle.close."""
        self._stopping.set()
        return self._lifecycle.close(timeout)

    # -- helpers

    def _refused(self) -> list[IndexEntry]:
        """The lines of models that should be loaded and cannot even be tried."""
        return [
            IndexEntry(name, "", ModelState.UNAVAILABLE, reason)
            for name, reason in sorted(self._not_loadable.copy().items())
        ]

    def _scan(self) -> Scan:
        return scan(self._options.paths, self._sources)

    def _note_scan(self, found: Scan) -> None:
        for name in found.duplicates - self._not_loadable.keys():
            logger.error("failed to poll model '%s': not unique across all model repositories", name)
        self._not_loadable = dict.fromkeys(found.duplicates, DUPLICATE_REASON)
        away = {name: home for name, home in self._homes.items() if home in found.unreadable}
        there = {name: location.repository for name, location in found.models.items()}
        self._homes = {**away, **there}

    def _execute_all(self, operations: Iterable[Operation], name: str) -> None:
        calls = [functools.partial(self._lifecycle.execute, operation) for operation in operations]
        run_all(calls, max(1, self._options.load_threads), name)

    @staticmethod
    def _spawn(name: str, call: Callable[[], None]) -> None:
        threading.Thread(target=call, name=f"shoal-repository-{name}", daemon=True).start()


def _signatures(locations: Iterable[ModelLocation]) -> dict[str, bytes]:
    return {location.name: signature(take_snapshot(location)) for location in locations}


def _check_options(options: RepositoryOptions, sources: Sequence[ModelLocation]) -> None:
    for path in options.paths:
        check_repository(path)
    if options.load_models and options.control_mode is not ControlMode.EXPLICIT:
        raise invalid("Use of '--load-model' requires setting '--model-control-mode=explicit' as well.")
    if ALL_MODELS in options.load_models and len(set(options.load_models)) > 1:
        raise invalid("Wildcard model name '*' must be the ONLY startup model if specified at all.")
    for name in options.load_models:
        check_model_name(name)
    seen: set[str] = set()
    for location in sources:
        if location.name in seen:
            raise invalid(f"model '{location.name}' is declared twice")
        seen.add(location.name)
