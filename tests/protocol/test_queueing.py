"""What happens to requests that wait: limits, timeouts, priorities, deadlines, cancellation, and the order of answers."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
import pytest

from tests.protocol.conftest import Deploy, Gate
from tests.protocol.harness.grpc_calls import arrays, refused, request
from tests.protocol.harness.http_calls import infer_document
from tests.protocol.harness.repository import Tensor
from tests.protocol.harness.server import HOST, Server
from tests.protocol.harness.targets import Target
from tests.protocol.harness.waiting import wait_for

MakeGate = Callable[[str], Gate]

POLICIES = {
    "q_limit": "dynamic_batching { default_queue_policy { max_queue_size: 2 } }",
    "q_reject": "dynamic_batching { default_queue_policy { default_timeout_microseconds: 300000 allow_timeout_override: true } }",
    "q_fixed": "dynamic_batching { default_queue_policy { default_timeout_microseconds: 1500000 } }",
    "q_zero": "dynamic_batching { default_queue_policy { allow_timeout_override: true } }",
    "q_delay": "dynamic_batching { default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 800000 } }",
    "q_priority": "dynamic_batching { priority_levels: 3 default_priority_level: 2 "
    "priority_queue_policy { key: 3 value { max_queue_size: 1 } } }",
    "q_plain": "",
}


@pytest.fixture(scope="module", autouse=True)
def _models(deploy: Deploy) -> None:
    one: dict[str, Any] = {
        "inputs": [Tensor("IN", "FP32", (1,))],
        "outputs": [Tensor("OUT", "FP32", (1,))],
        "max_batch_size": 1,
    }
    for name, batching in POLICIES.items():
        deploy(
            name,
            "gate",
            more=batching,
            execution="thread",
            **{**one, "outputs": [*one["outputs"], Tensor("ORDER", "INT32", (1,))]},
        )
    deploy(
        "q_order",
        "gate",
        more="dynamic_batching { preserve_ordering: true }\ninstance_group [ { kind: KIND_CPU count: 2 } ]",
        **one,
    )


def message(model: str, value: float = 0, *, gate: Gate | None = None, **parameters: Any) -> Any:
    held = gate.parameters if gate else {}
    return request(model, {"IN": np.full((1, 1), value, np.float32)}, id=str(value), parameters={**held, **parameters})


def occupy(server: Server, model: str, gate: Gate) -> Any:
    """Have the model's instance run until the gate opens. Returns the future of that request."""
    future = server.later(message(model, gate=gate))
    wait_for("the instance is busy", gate.entered)
    return future


def waiting(server: Server, model: str, count: int) -> None:
    wait_for(
        f"{count} wait for {model}",
        lambda: server.metric("nv_inference_pending_request_count", model=model) == count,
        seconds=10,
    )


def queue_one(server: Server, model: str, value: float, count: int, **parameters: Any) -> Any:
    """Send a request to a busy model, and wait until `count` wait."""
    future = server.later(message(model, value, **parameters))
    waiting(server, model, count)
    return future


def order_of_executions(futures: list[Any]) -> list[int]:
    """The numbers of the futures, in the order in which the model ran their requests."""
    ran = [int(arrays(future.result())["ORDER"][0, 0]) for future in futures]
    return sorted(range(len(futures)), key=ran.__getitem__)


def test_a_full_queue_refuses_at_once(server: Server, gate: MakeGate) -> None:
    hold = gate("full")
    running = occupy(server, "q_limit", hold)
    queued = [queue_one(server, "q_limit", value, value) for value in (1, 2)]
    began = time.monotonic()
    with refused("UNAVAILABLE", r"^\[request id: 3\] Exceeds maximum queue size"):
        server.send(message("q_limit", 3))
    assert time.monotonic() - began < 5
    reply = server.post("/v2/models/q_limit/infer", infer_document({"IN": np.zeros((1, 1), np.float32)}))
    assert reply.status == 503
    assert "Exceeds maximum queue size" in reply.error
    hold.open()
    assert [float(arrays(future.result())["OUT"][0, 0]) for future in [running, *queued]] == [0, 1, 2]
    assert server.send(message("q_limit", 4)).id == "4"


def test_a_level_has_a_limit_of_its_own(server: Server, gate: MakeGate) -> None:
    hold = gate("level")
    running = occupy(server, "q_priority", hold)
    low = queue_one(server, "q_priority", 1, 1, priority=3)
    high = queue_one(server, "q_priority", 2, 2, priority=1)
    with refused("UNAVAILABLE", "Exceeds maximum queue size"):
        server.send(message("q_priority", 3, priority=3))
    hold.open()
    for future in (running, low, high):
        future.result()


def test_a_higher_priority_overtakes(server: Server, gate: MakeGate) -> None:
    hold = gate("priority")
    running = occupy(server, "q_priority", hold)
    futures = [queue_one(server, "q_priority", at, at + 1, priority=level) for at, level in enumerate((3, 2, 1, 2))]
    hold.open()
    running.result()
    assert order_of_executions(futures) == [2, 1, 3, 0]


@pytest.mark.parametrize(("model", "seconds"), [("q_reject", 0.3), ("q_fixed", 1.5)])
def test_a_request_that_waits_too_long_is_rejected_while_the_instance_is_still_busy(
    server: Server, gate: MakeGate, model: str, seconds: float
) -> None:
    hold = gate("reject")
    failures = server.metric("nv_inference_request_failure", model=model, reason="REJECTED")
    running = occupy(server, model, hold)
    began = time.monotonic()
    with refused("UNAVAILABLE", "^Request timeout expired$"):
        server.send(message(model, 1), timeout=10)
    assert seconds * 0.95 < time.monotonic() - began < seconds + 3
    hold.open()
    running.result()
    assert server.metric("nv_inference_request_failure", model=model, reason="REJECTED") == failures + 1


def expired_after(server: Server, model: str, hold: Gate, seconds: float, **parameters: Any) -> bool:
    """Was a request refused that waited for so long?"""
    running = occupy(server, model, hold)
    future = server.later(message(model, 1, **parameters))
    time.sleep(seconds)
    hold.open()
    running.result()
    error = future.exception()
    assert error is None or error.details() == "Request timeout expired"
    return error is not None


def test_a_request_may_ask_for_a_shorter_timeout(server: Server, gate: MakeGate) -> None:
    assert expired_after(server, "q_reject", gate("shorter"), 0.15, timeout=20_000)


def test_a_request_cannot_ask_for_a_longer_timeout(server: Server, gate: MakeGate) -> None:
    assert expired_after(server, "q_reject", gate("longer"), 0.5, timeout=30_000_000)


def test_a_timeout_is_not_overridden_unless_allowed(server: Server, gate: MakeGate) -> None:
    assert not expired_after(server, "q_fixed", gate("fixed"), 0.15, timeout=20_000)


def test_a_requests_timeout_counts_without_a_default(server: Server, gate: MakeGate, target: Target) -> None:
    expected = target.pick("timeout-without-default", shoal=True, triton=False)
    assert expired_after(server, "q_zero", gate("zero"), 0.15, timeout=20_000) is expected


@pytest.mark.differs("timeout-default-scheduler")
def test_a_requests_timeout_counts_without_dynamic_batching(server: Server, gate: MakeGate) -> None:
    assert expired_after(server, "q_plain", gate("plain"), 0.15, timeout=20_000)


def test_delayed_requests_go_after_those_that_are_in_time(server: Server, gate: MakeGate) -> None:
    hold = gate("delay")
    running = occupy(server, "q_delay", hold)
    late = [queue_one(server, "q_delay", value, value) for value in (1, 2)]
    time.sleep(1.0)
    futures = [*late, queue_one(server, "q_delay", 3, 3)]
    hold.open()
    running.result()
    assert order_of_executions(futures) == [2, 0, 1]


def test_a_cancelled_request_leaves_the_queue(server: Server, gate: MakeGate, target: Target) -> None:
    hold = gate("cancel")
    model = target.pick("cancel-default-scheduler", shoal="q_plain", triton="q_limit")
    failures = server.metric("nv_inference_request_failure", model=model, reason="CANCELED")
    running = occupy(server, model, hold)
    cancelled = queue_one(server, model, 1, 1)
    assert cancelled.cancel()
    if target.is_shoal:
        waiting(server, model, 0)
    hold.open()
    running.result()
    with pytest.raises(grpc.FutureCancelledError):
        cancelled.result()
    wait_for(
        "it is counted",
        lambda: server.metric("nv_inference_request_failure", model=model, reason="CANCELED") == failures + 1,
    )
    assert server.send(message(model, 2)).id == "2"


@pytest.mark.differs("deadlines")
def test_a_callers_deadline_ends_the_wait_on_the_server(server: Server, gate: MakeGate) -> None:
    hold = gate("deadline")
    running = occupy(server, "q_plain", hold)
    with refused("DEADLINE_EXCEEDED"):
        server.send(message("q_plain", 1), timeout=0.3)
    waiting(server, "q_plain", 0)
    hold.open()
    running.result()


@pytest.mark.parametrize("how", ["infer", "generate", "generate_stream"])
@pytest.mark.differs("disconnect-cancels")
def test_an_http_client_that_leaves_is_cancelled(server: Server, gate: MakeGate, how: str) -> None:
    hold = gate("disconnect")
    failures = server.metric("nv_inference_request_failure", model="q_plain", reason="CANCELED")
    running = occupy(server, "q_plain", hold)
    document = infer_document({"IN": np.zeros((1, 1), np.float32)}) if how == "infer" else {"IN": 0}
    body = json.dumps(document).encode()
    with socket.create_connection((HOST, server.http_port), timeout=5) as connection:
        head = f"POST /v2/models/q_plain/{how} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        waiting(server, "q_plain", 1)
    waiting(server, "q_plain", 0)
    hold.open()
    running.result()
    assert server.metric("nv_inference_request_failure", model="q_plain", reason="CANCELED") == failures + 1


def test_cancelling_a_request_that_runs_leaves_the_model_usable(server: Server, gate: MakeGate) -> None:
    hold = gate("running")
    running = occupy(server, "q_plain", hold)
    assert running.cancel()
    hold.open()
    assert server.send(message("q_plain", 2)).id == "2"


def test_answers_come_in_the_order_of_requests_when_asked_for(server: Server, gate: MakeGate) -> None:
    """Two instances: the second request could be answered first."""
    first, second = gate("first"), gate("second")
    futures = [server.later(message("q_order", 0, gate=first))]
    wait_for("the first runs", first.entered)
    futures.append(server.later(message("q_order", 1, gate=second)))
    wait_for("the second runs beside it", second.entered)
    second.open()
    third = server.later(message("q_order", 2))
    time.sleep(0.2)
    assert not futures[1].done()
    assert not third.done()
    first.open()
    assert [future.result().id for future in (*futures, third)] == ["0", "1", "2"]
