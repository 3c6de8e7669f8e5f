"""Start, drain, stop."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from typing import Any

import pytest

from shoal_dataplane.core.errors import ServingError
from shoal_dataplane.options import HttpOptions, MetricsOptions
from shoal_dataplane.server.http import HttpDoor
from tests.unit.server.conftest import OpenDoor
from tests.unit.server.http_client import Answer, ask, is_closed, tensor, until
from tests.unit.server.http_service import FakeService


class Caller(threading.Thread):
    """Asks the model that holds its requests."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.port = port
        self.answer: Answer | Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            self.answer = ask(self.port, "POST", "/v2/models/slow/infer", {"inputs": [tensor(shape=[4])]})
        except Exception as error:
            self.answer = error

    def result(self) -> Any:
        self.join(10)
        return self.answer


@pytest.mark.parametrize("which", ["http", "metrics"])
def test_a_port_in_use_is_named_and_nothing_stays_open(http_service: FakeService, which: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ports = {"http": 0, "metrics": 0, which: port}
        door = HttpDoor(
            http_service,
            HttpOptions(address="127.0.0.1", port=ports["http"]),
            MetricsOptions(address="127.0.0.1", port=ports["metrics"]),
        )
        said = f"Socket '127.0.0.1:{port}' already in use: choose another port with --{which}-port"
        with pytest.raises(OSError, match=said):
            door.start()
    assert (door.port, door.metrics_port) == (0, 0)
    assert not [thread for thread in threading.enumerate() if thread.name == "shoal-http"]
    door.stop()
    door.start()
    try:
        assert ask(door.port, "GET", "/v2").status == 200
    finally:
        door.stop()


@pytest.mark.parametrize(("address", "port"), [("no.such.host.invalid", 0), ("192.0.2.1", 0), ("127.0.0.1", 70000)])
def test_an_address_that_cannot_be_bound_is_named(http_service: FakeService, address: str, port: int) -> None:
    door = HttpDoor(http_service, HttpOptions(address=address, port=port), MetricsOptions(enabled=False))
    with pytest.raises(OSError, match=rf"cannot listen on '{address}:{port}' \(--http-port\)"):
        door.start()


def test_two_servers_may_share_a_port_if_both_want_to(open_door: OpenDoor) -> None:
    first = open_door(reuse_port=True)
    second = open_door(reuse_port=True, port=first.port)
    assert second.port == first.port


def test_a_header_pattern_that_is_no_pattern_is_refused_at_once(http_service: FakeService) -> None:
    with pytest.raises(ServingError, match=r"--http-header-forward-pattern '\(' is not a regular expression"):
        HttpDoor(http_service, HttpOptions(header_forward_pattern="("), MetricsOptions())


def test_with_nothing_enabled_nothing_happens(http_service: FakeService) -> None:
    door = HttpDoor(http_service, HttpOptions(enabled=False), MetricsOptions(enabled=False))
    door.start()
    door.drain()
    door.stop(1)


def test_drain_finishes_what_is_in_flight_and_takes_nothing_new(http_door: HttpDoor, http_service: FakeService) -> None:
    caller = Caller(http_door.port)
    assert http_service.arrived.acquire(timeout=10)
    idle = http.client.HTTPConnection("127.0.0.1", http_door.port, timeout=10)
    idle.request("GET", "/v2/health/live")
    idle.getresponse().read()
    assert http_door.in_flight == 1
    http_door.drain()
    assert idle.sock.recv(1) == b""  # idle connections are let go of
    idle.close()
    assert is_closed(http_door.port)
    assert ask(http_door.metrics_port, "GET", "/readyz").status == 200
    http_service.release()
    answer = caller.result()
    assert answer.status == 200
    assert answer.headers["Connection"] == "close"
    http_door.stop(5)
    assert http_service.cancelled == []


def test_a_request_on_an_old_connection_is_refused_while_draining(
    http_door: HttpDoor, http_service: FakeService
) -> None:
    body = json.dumps({"inputs": [tensor(shape=[4])]}).encode()
    with socket.create_connection(("127.0.0.1", http_door.port), timeout=10) as client:
        request = b"POST /v2/models/slow/infer HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % len(body)
        client.sendall(request[:20])
        Caller(http_door.port)
        assert http_service.arrived.acquire(timeout=10)
        client.sendall(request[20:])  # the header is complete now: the connection is busy, not idle
        until(lambda: http_door.in_flight == 2)
        http_door.drain()
        until(lambda: is_closed(http_door.port))
        client.sendall(body)
        assert http_service.arrived.acquire(timeout=10)
        http_service.release()
        answer = client.recv(65536)
    assert answer.startswith(b"HTTP/1.1 200")  # it had begun before the drain
    assert http_service.refusals == []


def test_stop_waits_for_what_is_in_flight(http_door: HttpDoor, http_service: FakeService) -> None:
    caller = Caller(http_door.port)
    assert http_service.arrived.acquire(timeout=10)
    stopping = threading.Thread(target=http_door.stop, args=(30,))
    stopping.start()
    until(lambda: is_closed(caller.port))
    http_service.release()
    stopping.join(10)
    assert not stopping.is_alive()
    assert caller.result().status == 200


def test_stop_cancels_what_takes_longer_than_the_grace_and_says_so(
    http_door: HttpDoor, http_service: FakeService
) -> None:
    callers = [Caller(http_door.port) for _ in range(3)]
    for _ in callers:
        assert http_service.arrived.acquire(timeout=10)
    http_door.stop(0.05)
    for caller in callers:
        answer = caller.result()
        assert (answer.status, answer.error) == (503, "the server stopped before it could answer")
    for _ in callers:
        assert http_service.gone.acquire(timeout=10)
    assert http_service.held == []


def test_stop_closes_both_ports_and_ends_the_thread(http_door: HttpDoor) -> None:
    ports = [http_door.port, http_door.metrics_port]
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "shoal-http"]
    http_door.stop(1)
    http_door.stop(1)
    http_door.drain()
    for port in ports:
        assert is_closed(port)
    assert not thread.is_alive()
    assert http_door.in_flight == 0


def test_stop_does_not_wait_for_a_load(http_door: HttpDoor, http_service: FakeService) -> None:
    http_service.load_gate.clear()
    threading.Thread(target=ask_and_ignore, args=(http_door.port,), daemon=True).start()
    assert http_service.loading.acquire(timeout=10)
    http_door.stop(0.05)
    http_service.load_gate.set()


def ask_and_ignore(port: int) -> None:
    try:
        ask(port, "POST", "/v2/repository/models/m/load")
    except OSError:
        pass


def test_answers_after_the_end_are_dropped(
    http_door: HttpDoor, http_service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_service, "cancel", lambda request: None)  # a core that is slow to cancel
    caller = Caller(http_door.port)
    assert http_service.arrived.acquire(timeout=10)
    http_door.stop(0)
    assert caller.result().status == 503
    http_service.release()
    done = threading.Event()
    http_service.loop.post(done.set)
    assert done.wait(10)  # the core loop lives on
