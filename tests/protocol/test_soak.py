"""Minutes of load: what a short test cannot see. `make soak`."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from tests.protocol.conftest import EXPLICIT, Serve
from tests.protocol.harness.grpc_calls import arrays, request, strings
from tests.protocol.harness.http_calls import infer_document
from tests.protocol.harness.repository import Repository, Tensor
from tests.protocol.harness.server import ServedProcess

pytestmark = pytest.mark.soak

SECONDS = 120
CONSTANT: dict[str, Any] = {
    "source": "constant",
    "inputs": [Tensor("IN", "FP32", (1,))],
    "outputs": [Tensor("OUT", "INT32", (1,))],
    "max_batch_size": 0,
}


def resident(server: ServedProcess) -> int:
    """The server's own memory, in MB (RssAnon of its process, without those of models)."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon")) // 1024


def test_memory_does_not_grow_with_what_clients_send(start: Serve) -> None:
    """Ids, shapes, parameters and names that never repeat: whatever is remembered of them has to be bounded."""

    def write(repository: Repository) -> None:
        repository.model(
            "flat",
            inputs=[Tensor("IN", "FP32", (-1,))],
            outputs=[Tensor("OUT", "FP32", (-1,))],
            max_batch_size=0,
            execution="thread",
        )

    server = start(write, [*EXPLICIT, "--load-model=*"]).wait_ready()
    sizes = []
    number = 0
    for _ in range(6):
        until = time.monotonic() + SECONDS / 6
        while time.monotonic() < until:
            number += 1
            array = np.zeros(number % 4000, np.float32)
            server.infer("flat", {"IN": array}, id=f"request-{number}", parameters={f"p{number}": number})
            if number % 5 == 0:
                with pytest.raises(grpc.RpcError):
                    server.send(request(f"nobody-{number}", {}))
                server.post(f"/v2/models/nobody-{number}/infer", infer_document({"IN": array[:3]}))
        sizes.append(resident(server))
    assert sizes[-1] - sizes[1] < 20, f"MB over time: {sizes}, after {number} requests"


def test_no_request_fails_through_a_hundred_replacements(start: Serve) -> None:
    def write(repository: Repository) -> None:
        repository.model("swap", parameters={"value": "0"}, **CONSTANT)

    server = start(write, [*EXPLICIT, "--load-model=*"]).wait_ready()
    stop = threading.Event()
    errors: list[str] = []
    counts = [0] * 4

    def ask(number: int) -> None:
        while not stop.is_set():
            try:
                arrays(server.infer("swap", {"IN": np.zeros(1, np.float32)}))
                counts[number] += 1
            except grpc.RpcError as error:
                errors.append(f"{error.code()}: {error.details()}")

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(counts))]
    for thread in threads:
        thread.start()
    try:
        for value in range(1, 101):
            server.repository.model("swap", parameters={"value": str(value)}, **CONSTANT)
            server.repository.touch("swap")
            server.load("swap")
            assert int(arrays(server.infer("swap", {"IN": np.zeros(1, np.float32)}))["OUT"][0]) == value
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert errors == []
    assert min(counts) > 100


def test_a_model_that_crashes_again_and_again_harms_no_other(start: Serve) -> None:
    def write(repository: Repository) -> None:
        repository.model("steady")
        repository.model("crashes", "faults", inputs=[Tensor("CODE", "BYTES", (1,))])

    server = start(write, [*EXPLICIT, "--load-model=*"]).wait_ready()
    until = time.monotonic() + SECONDS / 2
    crashes = 0
    while time.monotonic() < until:
        with pytest.raises(grpc.RpcError):
            server.infer("crashes", {"CODE": strings("exit").reshape(1, 1)}, timeout=10)
        crashes += 1
        began = time.monotonic()
        server.infer("steady", {"IN": np.zeros((1, 4), np.float32)}, timeout=5)
        assert time.monotonic() - began < 2
    assert crashes > 3
