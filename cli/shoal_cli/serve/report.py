"""What a person sees while models are fetched and loaded: moving bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import threading
from typing import Any, Protocol

from shoal_cli.fetch.store import Progress, silent
from shoal_cli.text import on_terminal
from shoal_dataplane.repository.records import LoadEvent
from shoal_dataplane.repository.types import ModelState


class Reporter(Protocol):
    """Thread-safe: told by the threads that fetch and load."""

    def fetching(self, name: str) -> Progress:
        """Return what is to be told of the transfer of this model."""

    def failed(self, name: str) -> None:
        """The model could not even be fetched. Why is in the log, as for one that cannot be loaded."""

    def event(self, event: LoadEvent) -> None:
        """A version changed its state."""

    def close(self) -> None:
        """The start is over; what comes later is for the log. Idempotent."""


class SilentReporter:
    """Says nothing: the log is all there is."""

    def fetching(self, name: str) -> Progress:
        return silent

    def failed(self, name: str) -> None:
        pass

    def event(self, event: LoadEvent) -> None:
        pass

    def close(self) -> None:
        pass


class PlainReporter:
    """One line when something begins or ends."""

    def __init__(self) -> None:
        self._closed = False

    def fetching(self, name: str) -> Progress:
        begun = threading.Event()

        def progress(done: int, total: int | None) -> None:
            if not begun.is_set():
                begun.set()
                self._say(f"fetching {name}" + (f" ({total / 1e6:.1f} MB)" if total else ""))

        return progress

    def failed(self, name: str) -> None:
        self._say(f"failed   {name}")

    def event(self, event: LoadEvent) -> None:
        if self._closed:
            return
        name = event.name if event.version is None else f"{event.name} version {event.version}"
        if event.state is ModelState.LOADING:
            self._say(f"loading  {name}")
        elif event.state is ModelState.READY:
            self._say(f"ready    {name} ({event.seconds:.1f} s)")
        elif event.state is ModelState.UNAVAILABLE and event.reason:
            self._say(f"failed   {name}")

    def close(self) -> None:
        self._closed = True

    def _say(self, line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


class TerminalReporter:
    """A bar for each transfer, a spinner for each model that loads; each ends as a line with a mark."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TextColumn

        console = Console()
        transfers = (TextColumn("  {task.description}"), BarColumn(bar_width=30), DownloadColumn())
        loads = (SpinnerColumn(), TextColumn("{task.description}"))
        self._transfers = Progress(*transfers, console=console, transient=True)
        self._loads = Progress(*loads, console=console, transient=True)
        self._lock = threading.Lock()
        self._running: dict[tuple[str, int | None], Any] = {}
        self._closed = False
        self._live = self._start(console)

    def _start(self, console: Any) -> Any:
        from rich.console import Group
        from rich.live import Live

        live = Live(Group(self._transfers, self._loads), console=console, transient=True, refresh_per_second=10)
        live.start()
        return live

    def fetching(self, name: str) -> Progress:
        task: list[Any] = []

        def progress(done: int, total: int | None) -> None:
            if not task:
                task.append(self._transfers.add_task(f"fetching {name}", total=total))
            self._transfers.update(task[0], completed=done, visible=total is None or done < total)

        return progress

    def failed(self, name: str) -> None:
        self._end(name, None, f"[red]✗[/red] {_escape(name)}")

    def event(self, event: LoadEvent) -> None:
        version = "" if event.version is None else f" [dim]version {event.version}[/dim]"
        name = f"{_escape(event.name)}{version}"
        if event.state is ModelState.LOADING:
            with self._lock:
                if not self._closed and (event.name, event.version) not in self._running:
                    self._running[event.name, event.version] = self._loads.add_task(f"loading {name}", total=None)
        elif event.state is ModelState.READY:
            self._end(event.name, event.version, f"[green]✓[/green] {name} [dim]{event.seconds:.1f} s[/dim]")
        elif event.state is ModelState.UNAVAILABLE and event.reason:
            self._end(event.name, event.version, f"[red]✗[/red] {name}")

    def _end(self, name: str, version: int | None, line: str) -> None:
        with self._lock:
            if self._closed:
                return
            task = self._running.pop((name, version), None)
            if task is not None:
                self._loads.remove_task(task)
            self._live.console.print(line, highlight=False)

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                self._live.stop()


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def reporter() -> Reporter:
    """What fits standard output."""
    return TerminalReporter() if on_terminal() else PlainReporter()
