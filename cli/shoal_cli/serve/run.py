"""One server from start to end: fetch, load, say what is served, wait for a signal, drain."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import FrameType

import click

from shoal_cli.fetch.store import FetchError, Progress, cache_root
from shoal_cli.serve.report import Reporter
from shoal_cli.serve.sources import locate
from shoal_cli.serve.summary import print_summary
from shoal_dataplane.core.errors import ServingError
from shoal_dataplane.dataplane import DataPlane
from shoal_dataplane.options import ServerOptions
from shoal_dataplane.repository.layout import ModelLocation
from shoal_dataplane.repository.types import IndexEntry
from shoal_operator.tables import HttpFile, ModelEntry

logger = logging.getLogger(__name__)

FAILED = 1
"""The exit code, as tritonserver's, when the start failed, or requests were cut off at the end."""
_FETCHES_AT_ONCE = 4


class Signals:
    """The first SIGINT or SIGTERM asks to stop, the second one ends the process at once."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.stop.is_set():
            os._exit(128 + number)
        self.stop.set()


def serve(options: ServerOptions, entries: Sequence[ModelEntry], reporter: Reporter, quiet: bool) -> int:
    """Serve until a signal; return the exit code: 0 after a clean end. `quiet` leaves the terminal to the log."""
    signals = Signals()
    with _telling(reporter, quiet):
        try:
            sources = _fetch(entries, reporter, options.exit_on_error, signals.stop)
            plane = DataPlane(options, sources, reporter.event)
            plane.start()
        except (FetchError, ServingError, RuntimeError) as error:
            return _fail(str(error))
        except OSError as error:
            return _fail(f"a port cannot be opened: {error}")
        while not plane.wait_loaded(0.1) and not signals.stop.is_set():
            pass
    if not signals.stop.is_set():
        failures = plane.repository.initial_failures()
        if not plane.service.model_states():
            logger.warning("there are no models to serve")
        if quiet:
            logger.info(_addresses(plane, options))
        else:
            _show(plane, options, failures)
        if failures and options.exit_on_error:
            plane.stop()
            names = ", ".join(dict.fromkeys(f"'{entry.name}'" for entry in failures))
            return _fail(f"{names} could not be loaded (with --exit-on-error=false the others would be served)")
    signals.stop.wait()
    return _drain(plane, options, quiet)


@contextlib.contextmanager
def _telling(reporter: Reporter, quiet: bool) -> Iterator[None]:
    """While the reporter says what is loaded, the log need not."""
    log = logging.getLogger("shoal_dataplane.repository")
    if not quiet and log.getEffectiveLevel() == logging.INFO:
        log.setLevel(logging.WARNING)
    try:
        yield
    finally:
        reporter.close()
        log.setLevel(logging.NOTSET)


def _fetch(
    entries: Sequence[ModelEntry], reporter: Reporter, exit_on_error: bool, stop: threading.Event
) -> list[ModelLocation]:
    """Bring every model to this machine. Raises FetchError for the first that fails, and when `stop` is set; with `exit_on_error` off,
    a model that fails is passed on as it is: the data plane reports it as unavailable and serves the others."""
    cache = cache_root()

    def watched(progress: Progress) -> Progress:
        def tell(done: int, total: int | None) -> None:
            if stop.is_set():
                raise FetchError("stopped by a signal")
            progress(done, total)

        return tell

    def fetch(entry: ModelEntry) -> ModelLocation:
        try:
            return locate(entry, cache, watched(reporter.fetching(entry.name)))
        except (FetchError, ServingError) as error:
            if exit_on_error or stop.is_set():
                raise FetchError(f"model '{entry.name}': {error}") from error
            logger.error("model '%s': %s", entry.name, error)
            reporter.failed(entry.name)
            missing = cache / "http" / entry.source.sha256 if isinstance(entry.source, HttpFile) else entry.source.path
            return ModelLocation(entry.name, missing, overlay=entry.overlay)

    with ThreadPoolExecutor(_FETCHES_AT_ONCE, "fetch") as pool:
        return list(pool.map(fetch, entries))


def _show(plane: DataPlane, options: ServerOptions, failures: Sequence[IndexEntry]) -> None:
    """Print the table, why each failure failed, and where the server listens."""
    print_summary(plane.service.served_models(), failures)
    for entry in failures:
        click.echo(f"{entry.name}{f' version {entry.version}' if entry.version else ''}: {entry.reason}")
    if not (failures and options.exit_on_error):
        click.echo(_addresses(plane, options))


def _addresses(plane: DataPlane, options: ServerOptions) -> str:
    """ "Serving: HTTP 127.0.0.1:8000, gRPC ..., metrics ..."."""
    ports = (
        ("HTTP", options.http.address, plane.http_port if options.http.enabled else 0),
        ("gRPC", options.grpc.address, plane.grpc_port),
        ("metrics", options.metrics.address, plane.metrics_port if options.metrics.enabled else 0),
    )
    return "Serving: " + ", ".join(f"{name} {address}:{port}" for name, address, port in ports if port)


def _drain(plane: DataPlane, options: ServerOptions, quiet: bool) -> int:
    if not quiet:
        click.echo(f"Draining: requests in flight have {options.exit_timeout_seconds:g} s")
    if plane.stop():
        return 0
    return _fail(f"requests were still in flight after {options.exit_timeout_seconds:g} s, and were cancelled")


def _fail(reason: str) -> int:
    click.echo(f"Error: {reason}", err=True)
    return FAILED
