"""The servers that the protocol tests ask. Most tests share one, in explicit mode, and load into it the models that they need."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.protocol.harness.repository import Repository
from tests.protocol.harness.server import ServedProcess, Server
from tests.protocol.harness.targets import Target

Deploy = Callable[..., str]
Serve = Callable[..., ServedProcess]

EXPLICIT = ("--model-control-mode=explicit",)


@pytest.fixture(scope="session")
def target(request: pytest.FixtureRequest) -> Target:
    """What the suite runs against: shoal, or triton with --target=triton."""
    return Target(request.config.getoption("--target"))


@pytest.fixture(scope="session")
def server(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The shared server. It starts without models.

    SHOAL_TEST_ENDPOINT=GRPC,HTTP,METRICS (ports on this machine) takes one that runs already, in explicit mode over the folder
    SHOAL_TEST_REPOSITORY; tests that start servers of their own do so all the same.
    """
    endpoint = os.environ.get("SHOAL_TEST_ENDPOINT")
    if endpoint:
        ports = [int(port) for port in endpoint.split(",")]
        running = Server(target, Repository(Path(os.environ["SHOAL_TEST_REPOSITORY"])), *ports)
        yield running
        running.close()
        return
    folder = tmp_path_factory.mktemp("shared")
    flags = [*EXPLICIT, "--exit-timeout-secs=10"]
    with ServedProcess(target, Repository(folder / "models"), folder / "server.log", flags) as started:
        yield started.wait_ready()


@pytest.fixture(scope="module")
def deploy(server: Server) -> Iterator[Deploy]:
    """Write a model into the shared server's repository and load it; the arguments are those of Repository.model. Unloaded after the
    module's tests."""
    names: list[str] = []

    def write_and_load(name: str, *arguments: Any, **settings: Any) -> str:
        server.repository.model(name, *arguments, **settings)
        names.append(name)
        server.load(name)
        return name

    yield write_and_load
    for name in names:
        server.unload(name)
        server.repository.remove(name)


@pytest.fixture(scope="module")
def start(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """Start a server of one's own: start(write, *flags, **environment), where write(repository) makes its models. Stopped after the
    module's tests, the last first, if it has not been."""
    servers: list[ServedProcess] = []

    def begin(
        write: Callable[[Repository], object] | None = None, flags: Sequence[str] = EXPLICIT, **environment: str
    ) -> ServedProcess:
        folder = tmp_path_factory.mktemp("server")
        repository = Repository(folder / "models")
        if write is not None:
            write(repository)
        started = ServedProcess(target, repository, folder / "server.log", flags, environment)
        servers.append(started)
        return started

    yield begin
    with contextlib.ExitStack() as stack:
        for started in servers:
            if started.process.returncode is None:
                stack.push(started)


class Gate:
    """Holds a request in the gate model, until it is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def parameters(self) -> dict[str, str]:
        return {"gate": str(self.path)}

    def entered(self) -> bool:
        return self.path.with_name(self.path.name + ".entered").exists()

    def open(self) -> None:
        self.path.touch()


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Callable[[str], Gate]]:
    """Make gates; all are open after the test."""
    gates: list[Gate] = []

    def make(name: str = "gate") -> Gate:
        gates.append(Gate(tmp_path / name))
        return gates[-1]

    yield make
    for each in gates:
        each.open()


@pytest.fixture(autouse=True)
def _note_differences(request: pytest.FixtureRequest, target: Target) -> Iterator[None]:
    """Write into the report which differences a test has looked at, for tests/conformance/compare.py."""
    target.compared.clear()
    yield
    request.node.user_properties.extend(("differs", difference) for difference in sorted(target.compared))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test marked `differs` asserts what Shoal does: against Triton it has to fail, or the difference is none."""
    mark = item.get_closest_marker("differs")
    if mark is None:
        return
    item.user_properties.append(("differs", mark.args[0]))
    if item.config.getoption("--target") == "shoal":
        return
    if not mark.kwargs.get("run", True):
        pytest.skip(f"differs: {mark.args[0]}")
    item.add_marker(pytest.mark.xfail(reason=f"differs: {mark.args[0]}", strict=True))
