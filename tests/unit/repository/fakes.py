"""Small stand-ins for the rooms around the repository. Everything that would take time waits for an event that the test sets."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.backends.base import Backend, Instance, InstanceSpec, ModelContext
from shoal_dataplane.core.errors import ServingError, invalid
from shoal_dataplane.core.model_spec import ModelSpec, compile_spec
from shoal_dataplane.core.request import InferRequest
from shoal_dataplane.execution.source import VersionSource
from shoal_dataplane.options import ControlMode, RepositoryOptions
from shoal_dataplane.repository.layout import ModelLocation
from shoal_dataplane.repository.lifecycle import Listener
from shoal_dataplane.repository.manager import ModelRepository
from shoal_dataplane.repository.records import LoadEvent, Operation
from shoal_dataplane.repository.types import ModelState, Servable

PATIENCE = 20.0
"""Seconds after which a test that waits for an event fails; never reached when the code is right."""

CONFIG = """
backend: "fake"
input { name: "IN" data_type: TYPE_FP32 dims: 4 }
output { name: "OUT" data_type: TYPE_FP32 dims: 4 }
"""


class FakeBackend:
    """Completes max_batch_size from the model file, when that holds a number."""

    default_filename = "model.txt"
    default_execution = "auto"

    def __init__(self) -> None:
        self.options: list[dict[str, str]] = []
        self.completed: list[Path] = []

    def auto_complete(self, config: mc.ModelConfig, version_dir: Path, backend_options: dict[str, str]) -> None:
        self.options.append(backend_options)
        self.completed.append(version_dir)
        text = (version_dir / config.default_model_filename).read_text()
        if text == "corrupt":
            raise invalid(f"'{version_dir / config.default_model_filename}' is corrupt")
        if text == "decoupled":
            config.model_transaction_policy.decoupled = True
        if text.isdigit() and not config.max_batch_size:
            config.max_batch_size = int(text)

    def load(self, context: ModelContext, instance: InstanceSpec) -> Instance:
        raise NotImplementedError


class FakeServable:
    """Idle unless `busy` is set; then it drains once `idle` is set."""

    def __init__(self, source: VersionSource, content: str) -> None:
        self.name = source.name
        self.version = source.version
        self.source = source
        self.content = content
        self.is_healthy = True
        self.idle = threading.Event()
        self.idle.set()
        self.draining = threading.Event()
        self.drained = False
        self.closing = threading.Event()
        self.closes = 0
        self.close_gate: threading.Event | None = None
        self.fails = ""  # "drain" or "close"

    @property
    def spec(self) -> ModelSpec:
        return compile_spec(self.source.config, self.version)

    def enqueue(self, request: InferRequest) -> None:
        raise NotImplementedError

    def cancel(self, request: InferRequest) -> None:
        raise NotImplementedError

    def drain(self, timeout: float) -> bool:
        self.draining.set()
        if self.fails == "drain":
            raise RuntimeError("boom")
        self.drained = self.idle.wait(timeout)
        return self.drained

    def close(self) -> None:
        self.closing.set()
        if self.close_gate is not None:
            self.close_gate.wait()
        self.closes += 1
        if self.fails == "close":
            raise RuntimeError("boom")

    def healthy(self) -> bool:
        return self.is_healthy


class FakeFactory:
    """Builds at once, unless the test holds a build back or lets it fail."""

    def __init__(self) -> None:
        self.built: list[FakeServable] = []
        self.errors: dict[tuple[str, int], BaseException] = {}
        self.attempts = Counter[tuple[str, int]]()
        self._begun: dict[tuple[str, int], threading.Event] = {}
        self._gates: dict[tuple[str, int], threading.Event] = {}
        self._lock = threading.Lock()
        self._building = 0
        self.most_building = 0

    def hold(self, name: str, version: int = 1) -> threading.Event:
        """Keep the next builds of a version from ending until the event that is returned is set."""
        self._begun[name, version] = threading.Event()
        return self._gates.setdefault((name, version), threading.Event())

    def wait_begun(self, name: str, version: int = 1) -> None:
        """Wait until a build that is held has begun."""
        assert self._begun[name, version].wait(PATIENCE)

    def release(self, name: str, version: int = 1) -> None:
        """Let builds that are held, and those after them, end."""
        self._gates.pop((name, version)).set()

    def build(self, source: VersionSource) -> Servable:
        key = (source.name, source.version)
        with self._lock:
            self.attempts[key] += 1
            self._building += 1
            self.most_building = max(self.most_building, self._building)
        try:
            gate = self._gates.get(key)
            if gate is not None:
                self._begun[key].set()
                assert gate.wait(PATIENCE)
            error = self.errors.get(key)
            if error is not None:
                raise error
            file = source.version_dir / source.config.default_model_filename
            servable = FakeServable(source, file.read_text())
            with self._lock:
                self.built.append(servable)
            return servable
        finally:
            with self._lock:
                self._building -= 1

    def last(self, name: str, version: int = 1) -> FakeServable:
        """The newest build of a version."""
        return [s for s in self.built if (s.name, s.version) == (name, version)][-1]

    def open(self) -> list[tuple[str, int]]:
        """Names and versions of what was built and is not closed."""
        return sorted((s.name, s.version) for s in self.built if not s.closes)


class FakePublisher:
    """Remembers what is routed, and every publication of each model, as {version: content}."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[int, FakeServable]] = {}
        self.history: dict[str, list[dict[int, str]]] = {}
        self.waiting: dict[str, set[int]] = {}
        self.forgotten: list[str] = []

    def publish(self, name: str, versions: Mapping[int, Servable]) -> None:
        table = {number: s for number, s in versions.items() if isinstance(s, FakeServable)}
        self.tables[name] = table
        self.history.setdefault(name, []).append({number: s.content for number, s in table.items()})

    def set_waiting(self, name: str, versions: set[int]) -> None:
        self.waiting[name] = versions

    def forget(self, name: str) -> None:
        self.forgotten.append(name)
        self.tables.pop(name, None)

    def serving(self, name: str) -> dict[int, str]:
        """Contents of the versions that are routed now."""
        return {number: s.content for number, s in sorted(self.tables.get(name, {}).items())}


class Events:
    """A listener that a test can wait on."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.seen: list[LoadEvent] = []

    def __call__(self, event: LoadEvent) -> None:
        with self._changed:
            self.seen.append(event)
            self._changed.notify_all()

    def wait(self, name: str, state: ModelState, version: int | None = 1, times: int = 1) -> LoadEvent:
        """Wait until a version has come into a state for the `times`-th time."""

        def found() -> list[LoadEvent]:
            return [e for e in self.seen if (e.name, e.version, e.state) == (name, version, state)]

        with self._changed:
            assert self._changed.wait_for(lambda: len(found()) >= times, PATIENCE), (
                f"{name}:{version} {state}: {self.seen}"
            )
            return found()[times - 1]


class Bench:
    """A repository folder, a ModelRepository over it, and the fakes around it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.factory = FakeFactory()
        self.publisher = FakePublisher()
        self.backend = FakeBackend()
        self.events = Events()
        self.listener: Listener = self.events
        self.now = 0.0
        self.repositories: list[ModelRepository] = []
        self._came = threading.Condition()
        self._operations = Counter[str]()

    def model(
        self, name: str, *versions: int, config: str = CONFIG, content: str = "weights", where: Path | None = None
    ) -> Path:
        """Write a model folder."""
        folder = (where or self.path) / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.pbtxt").write_text(config)
        for version in versions or (1,):
            self.version(folder, version, content)
        return folder

    @staticmethod
    def version(folder: Path, version: int, content: str) -> None:
        """Write, or replace, one version: the file is a new one, so that a change shows whatever the clock's resolution."""
        (folder / str(version)).mkdir(exist_ok=True)
        fresh = folder / str(version) / "fresh"
        fresh.write_text(content)
        fresh.rename(folder / str(version) / "model.txt")

    def backend_for(self, name: str) -> Backend:
        if name in ("fake", "python", "onnxruntime", "pytorch"):
            return self.backend
        raise invalid(f"this server has no backend '{name}'")

    def repository(
        self,
        mode: ControlMode = ControlMode.NONE,
        *,
        paths: tuple[Path, ...] | None = None,
        sources: tuple[ModelLocation, ...] = (),
        gpus: int = 0,
        drain_seconds: float = PATIENCE,
        **options: Any,
    ) -> ModelRepository:
        """A repository that has not been started."""
        repository = ModelRepository(
            RepositoryOptions(paths=(self.path,) if paths is None else paths, control_mode=mode, **options),
            self.factory,
            self.publisher,
            self.backend_for,
            sources,
            self.listener,
            gpu_count=lambda: gpus,
            drain_seconds=drain_seconds,
            clock=lambda: self.now,
        )
        self.repositories.append(repository)
        lifecycle = repository._lifecycle
        submit = lifecycle.submit

        def submit_and_count(*operations: Operation) -> None:
            submit(*operations)
            with self._came:
                self._operations.update(operation.name for operation in operations)
                self._came.notify_all()

        lifecycle.submit = submit_and_count  # type: ignore[method-assign]
        return repository

    def came(self, name: str) -> int:
        """How many operations on a model have come."""
        with self._came:
            return self._operations[name]

    def wait_came(self, name: str, count: int) -> None:
        """Wait until `count` operations on a model have come, each of which has its turn by then."""
        with self._came:
            assert self._came.wait_for(lambda: self._operations[name] >= count, PATIENCE)

    def started(self, mode: ControlMode = ControlMode.NONE, **options: Any) -> ModelRepository:
        """A repository whose first load has ended."""
        repository = self.repository(mode, **options)
        repository.start()
        assert repository.wait_initial(PATIENCE)
        return repository


def in_thread(call: Callable[[], object]) -> tuple[threading.Thread, list[BaseException]]:
    """Run a call on a thread; the list gets what it raises."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, raised


def refusal(call: Callable[[], object]) -> ServingError | None:
    """The ServingError that a call ends with, if any."""
    try:
        call()
    except ServingError as error:
        return error
    return None


def join(thread: threading.Thread) -> None:
    """Wait for a thread that must end."""
    thread.join(PATIENCE)
    assert not thread.is_alive()
