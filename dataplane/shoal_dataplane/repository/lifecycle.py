"""Load, replace and unload models while they serve.

Operations on one model run one after the other, in the order in which they came; those on different models run side by side. A load
builds every new version beside the old ones, and only when all are ready swaps them in with one call of the publisher; then it drains
and closes what was replaced. A load that fails, or that a newer operation makes pointless, leaves everything as it was (triton.md A11).
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Mapping

from shoal_dataplane.core.errors import Reason, ServingError, internal, invalid, unavailable
from shoal_dataplane.repository.loading import BuildResult, Found, Loader, LoadPlan, load_failed
from shoal_dataplane.repository.records import (
    UNLOADED,
    Kind,
    LoadEvent,
    ModelEntry,
    Operation,
    Serving,
    VersionState,
    describe,
)
from shoal_dataplane.repository.support import fields_without_effect
from shoal_dataplane.repository.threads import run_all
from shoal_dataplane.repository.types import IndexEntry, ModelState, Publisher

logger = logging.getLogger(__name__)

Listener = Callable[[LoadEvent], None]
"""Told of every change of state. Called on repository threads, several at a time; must not block."""

_CLOSE_WORKERS = 32
_CLOSE_GRACE_SECONDS = 2.0
_OUTDATED = "Newer operation has been applied to the model lifecycle, current load operation is out-dated."


class Lifecycle:
    """Thread-safe. No lock is held while a model is built, drained or closed."""

    def __init__(self, loader: Loader, publisher: Publisher, listener: Listener | None, drain_seconds: float) -> None:
        self._loader = loader
        self._publisher = publisher
        self._listener = listener
        self._drain_seconds = drain_seconds
        self._changed = threading.Condition()  # guards what follows and all that the entries hold
        self._entries: dict[str, ModelEntry] = {}
        self._closing = False
        self._routing = threading.Lock()  # one publication at a time; taken before _changed, never after
        self._unrouted = False

    # -- operations

    def start(self, operation: Operation) -> None:
        """Run an operation on a thread of its own. Raises ServingError(UNAVAILABLE) when the repository is closing."""
        self.submit(operation)
        name = f"shoal-{operation.kind.value}-{operation.name}"
        try:
            threading.Thread(target=self.execute, args=(operation,), name=name, daemon=True).start()
        except RuntimeError as error:  # no more threads: the turn must not stay taken
            with self._changed:
                self._entries[operation.name].queue.remove(operation)
                self._changed.notify_all()
            raise unavailable(f"cannot {operation.kind.value} model '{operation.name}': {error}") from error

    def submit(self, *operations: Operation) -> None:
        """Give operations their turn, all or none; whoever submits sees to it that `execute` runs for each. Raises as `start`."""
        with self._changed:
            if self._closing:
                raise unavailable(
                    "the server is shutting down and loads or unloads no more models", Reason.SHUTTING_DOWN
                )
            for operation in operations:
                entry = self._entries.setdefault(operation.name, ModelEntry(operation.name))
                if operation.supersedes:
                    for earlier in entry.queue:
                        earlier.outdated = earlier.outdated or earlier.kind is Kind.LOAD
                entry.queue.append(operation)

    def execute(self, operation: Operation) -> None:
        """Wait for the operation's turn, run it on this thread, and answer it."""
        with self._changed:
            entry = self._entries[operation.name]
            self._changed.wait_for(lambda: entry.queue[0] is operation)
            outdated = operation.outdated
        try:
            if outdated:
                raise _outdated(operation.name)
            if operation.kind is Kind.LOAD:
                self._load(entry, operation)
            else:
                self._unload(entry, gone=operation.kind is Kind.REMOVE)
            operation.answer()
        except ServingError as error:
            operation.answer(error)
        except Exception as error:
            logger.exception("%s of model '%s' failed", operation.kind.value, operation.name)
            operation.answer(
                internal(f"{operation.kind.value} of model '{operation.name}' failed: {error}", Reason.OTHER)
            )
        finally:
            with self._changed:
                entry.queue.popleft()
                if entry.forgettable():
                    del self._entries[operation.name]
                self._changed.notify_all()

    def awaits_load(self, name: str) -> bool:
        """Is a plain load of this model queued that has not begun? It will see the files as they are when it begins."""
        with self._changed:
            entry = self._entries.get(name)
            queue = list(entry.queue)[1:] if entry is not None else []
            return any(operation.kind is Kind.LOAD and operation.override is None for operation in queue)

    # -- what there is

    def rows(self) -> dict[str, list[IndexEntry]]:
        """The index's lines of every model that was ever loaded, or failed to."""
        with self._changed:
            return {name: entry.rows() for name, entry in self._entries.items()}

    def unready(self) -> list[IndexEntry]:
        """The index's lines of what should serve and does not."""
        with self._changed:
            return [row for _, entry in sorted(self._entries.items()) for row in entry.unready()]

    def state(self, name: str, version: int) -> VersionState | None:
        """The state of one version, None when nothing is known of it."""
        with self._changed:
            entry = self._entries.get(name)
            return entry.states.get(version) if entry is not None else None

    # -- load

    def _load(self, entry: ModelEntry, operation: Operation) -> None:
        found = self._loader.find(entry.name, operation.override)
        signature = found.signature() if operation.override is None else None
        if signature is not None and signature == entry.signature:
            return  # nothing changed since it was loaded
        try:
            plan = self._plan(entry, operation, found)
            retired = self._replace(entry, operation, plan)
        except BaseException:
            if found.workspace is not None:
                found.workspace.remove()
                self._forget_absent(entry)
            raise
        old_workspace, entry.workspace = entry.workspace, found.workspace
        entry.signature = signature
        operation.answer()
        self._retire(entry, retired)
        if old_workspace is not None:
            old_workspace.remove()

    def _plan(self, entry: ModelEntry, operation: Operation, found: Found) -> LoadPlan:
        try:
            return self._loader.plan(found, operation.override)
        except ServingError as error:
            reason = describe(error)
            logger.error("failed to load '%s': %s", entry.name, reason)
            if operation.override is None:
                with self._changed:
                    entry.failure = "" if entry.serving else reason
                self._emit(entry.name, None, ModelState.UNAVAILABLE, reason)
            raise ServingError(
                error.code, f"load failed for model '{entry.name}': {error.message}", error.reason
            ) from error

    def _replace(self, entry: ModelEntry, operation: Operation, plan: LoadPlan) -> dict[int, Serving]:
        """Serve what the plan says. Returns what is no longer served. Raises ServingError; then what was served still is."""
        with self._changed:
            kept = {v: old for v, old in entry.serving.items() if plan.fingerprints.get(v) == old.fingerprint}
            fresh = [version for version in plan.versions if version not in kept]
            entry.failure = ""
            entry.set_states((v for v in fresh if v not in entry.serving), ModelState.LOADING)
        self._show_waiting(entry)
        results = self._build(operation, plan, fresh)
        failures = {v: result.outcome for v, result in results.items() if isinstance(result.outcome, ServingError)}
        built = {v: result.outcome for v, result in results.items() if isinstance(result.outcome, Serving)}
        with self._changed:
            error = None
            if operation.outdated:
                error = _outdated(entry.name)
            elif failures:
                error = load_failed(entry.name, failures)
            else:
                retired = {v: old for v, old in entry.serving.items() if v not in kept}
                entry.serving = {**kept, **built}
        if error is not None:
            self._abandon(entry, fresh, built, results)
            raise error
        for old in kept.values():  # the same model, chosen by another policy: its configuration must not say otherwise
            old.source.config.version_policy.CopyFrom(plan.written.version_policy)
        self._route(entry)
        with self._changed:
            gone = [version for version in retired if version not in entry.serving]
            entry.states = {v: s for v, s in entry.states.items() if v in plan.available and not s.failed}
            entry.set_states(entry.serving, ModelState.READY)
            entry.set_states(gone, ModelState.UNLOADING)
        self._show_waiting(entry)
        for version in sorted(built):
            logger.info("successfully loaded '%s' version %d in %.2f s", entry.name, version, results[version].seconds)
            self._emit(entry.name, version, ModelState.READY, seconds=results[version].seconds)
        return retired

    def _build(self, operation: Operation, plan: LoadPlan, fresh: list[int]) -> dict[int, BuildResult]:
        name = operation.name
        ignored = fields_without_effect(plan.written) if fresh else []
        if ignored:
            logger.info(
                "model '%s': these fields of its configuration have no effect here: %s", name, ", ".join(ignored)
            )

        def started(version: int) -> None:
            logger.info("loading: %s:%d", name, version)
            self._emit(name, version, ModelState.LOADING)

        return self._loader.build(plan, fresh, lambda: operation.outdated, started)

    def _abandon(
        self,
        entry: ModelEntry,
        fresh: list[int],
        built: Mapping[int, Serving],
        results: Mapping[int, BuildResult],
    ) -> None:
        """A load failed or is outdated: free what was built, and say what became of each version."""
        run_all(
            [functools.partial(self._close, entry.name, v, new) for v, new in built.items()],
            _CLOSE_WORKERS,
            "shoal-close",
        )
        events: list[tuple[int, str, float]] = []
        with self._changed:
            for version in fresh:
                outcome, seconds = results.get(version, (None, 0.0))
                reason = describe(outcome) if isinstance(outcome, ServingError) else UNLOADED
                events.append((version, reason, seconds))
                if version not in entry.serving:
                    entry.states[version] = VersionState(ModelState.UNAVAILABLE, reason)
        self._show_waiting(entry)
        for version, reason, seconds in events:
            self._emit(entry.name, version, ModelState.UNAVAILABLE, reason, seconds)

    # -- unload

    def _unload(self, entry: ModelEntry, gone: bool) -> None:
        with self._changed:
            retired, entry.serving = entry.serving, {}
            entry.failure = ""
            entry.set_states(entry.states, ModelState.UNAVAILABLE, UNLOADED)
            entry.set_states(retired, ModelState.UNLOADING)
        entry.signature = None
        self._route(entry)
        self._show_waiting(entry)
        self._retire(entry, retired)
        if entry.workspace is not None:
            entry.workspace.remove()
            entry.workspace = None
        self._forget_absent(entry, gone)

    def _forget_absent(self, entry: ModelEntry, gone: bool = False) -> None:
        """Keep nothing of a model that serves nothing and is in no repository: names that only requests know must not pile up."""
        if not entry.serving and (gone or not self._loader.exists(entry.name)):
            with self._changed:
                entry.states.clear()
                entry.failure = ""
            self._publisher.forget(entry.name)

    def _retire(self, entry: ModelEntry, retired: Mapping[int, Serving]) -> None:
        """Let versions that are no longer routed to finish their requests, then free them."""

        def retire(version: int, old: Serving) -> None:
            gone = version not in entry.serving  # and not replaced by a new build of the same version
            if gone:
                self._emit(entry.name, version, ModelState.UNLOADING)
            if not self._drain(entry.name, version, old, self._drain_seconds):
                logger.warning(
                    "'%s' version %d still ran requests after %.0f s", entry.name, version, self._drain_seconds
                )
            self._close(entry.name, version, old)
            if gone:
                with self._changed:
                    entry.states[version] = VersionState(ModelState.UNAVAILABLE, UNLOADED)
                self._emit(entry.name, version, ModelState.UNAVAILABLE, UNLOADED)

        if retired:
            run_all([functools.partial(retire, v, old) for v, old in retired.items()], _CLOSE_WORKERS, "shoal-unload")
            self._show_waiting(entry)

    @staticmethod
    def _drain(name: str, version: int, serving: Serving, seconds: float) -> bool:
        try:
            return serving.servable.drain(seconds)
        except Exception:
            logger.exception("draining '%s' version %d raised", name, version)
            return True

    @staticmethod
    def _close(name: str, version: int, serving: Serving) -> None:
        try:
            serving.servable.close()
        except Exception:
            logger.exception("closing '%s' version %d raised", name, version)
        logger.info("successfully unloaded '%s' version %d", name, version)

    # -- the end

    def close(self, timeout: float) -> bool:
        """Refuse further operations, wait until no request is queued or running, then unload everything.

        To be called once the doors let no request in any more. Until everything is idle models stay routed, because a model that runs may
        call another one. Returns within `timeout` seconds and a little more for freeing; False when something was still running then.
        """
        deadline = time.monotonic() + timeout

        def left() -> float:
            return max(0.0, deadline - time.monotonic())

        with self._changed:
            self._closing = True
            entries = list(self._entries.values())
            for entry in entries:
                for operation in entry.queue:
                    operation.outdated = True
            live = [(entry.name, version, serving) for entry in entries for version, serving in entry.serving.items()]
            self._changed.notify_all()
        idle: list[bool] = []

        def drain(name: str, version: int, serving: Serving) -> None:
            idle.append(self._drain(name, version, serving, left()))

        drained = run_all(
            [functools.partial(drain, *item) for item in live], _CLOSE_WORKERS, "shoal-drain", left()
        ) and all(idle)
        with self._routing:
            self._unrouted = True
        closings: list[Callable[[], None]] = []
        for entry in entries:
            self._route(entry)
            with self._changed:
                serving, entry.serving = entry.serving, {}
                entry.set_states(serving, ModelState.UNLOADING)
            closings.append(functools.partial(self._close_entry, entry, serving))
        closed = run_all(closings, _CLOSE_WORKERS, "shoal-close", left() + _CLOSE_GRACE_SECONDS)
        with self._changed:
            ended = self._changed.wait_for(lambda: not any(entry.queue for entry in entries), left())
        return drained and closed and ended

    def _close_entry(self, entry: ModelEntry, serving: Mapping[int, Serving]) -> None:
        for version, old in serving.items():
            self._close(entry.name, version, old)
            with self._changed:
                entry.states[version] = VersionState(ModelState.UNAVAILABLE, UNLOADED)
            self._emit(entry.name, version, ModelState.UNAVAILABLE, UNLOADED)
        if entry.workspace is not None:
            entry.workspace.remove()

    # -- what others see

    def _route(self, entry: ModelEntry) -> None:
        """Route requests to what the entry serves."""
        with self._routing:
            with self._changed:
                table = {} if self._unrouted else {version: s.servable for version, s in entry.serving.items()}
            self._publisher.publish(entry.name, table)

    def _show_waiting(self, entry: ModelEntry) -> None:
        with self._changed:
            waiting = entry.waiting()
        self._publisher.set_waiting(entry.name, waiting)

    def _emit(self, name: str, version: int | None, state: ModelState, reason: str = "", seconds: float = 0.0) -> None:
        if self._listener is None:
            return
        try:
            self._listener(LoadEvent(name, version, state, reason, seconds))
        except Exception:
            logger.exception("a listener of the repository raised")


def _outdated(name: str) -> ServingError:
    return invalid(f"load failed for model '{name}': {_OUTDATED}")
