"""What a model in a process of its own costs the server: microseconds a request to encode a batch, to decode its answer, and for the
whole way there and back, with a Python model that does nothing.

    python bench/micro_process.py [--batch 64] [--rounds 7] [--bytes 256]

All figures are medians of interleaved rounds in one run. The first lines are CPU time: `encode` and `decode` are spent on the server's
core loop, `send and receive` is both ends of the socket in one thread. `way` is elapsed time from `submit` to `done`; below it, the CPU
time that server and worker spend for it in all, system calls and hand-offs between threads included.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from google.protobuf import text_format

from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.backends.base import Execution, InstanceSpec, ModelContext
from shoal_dataplane.core.errors import ServingError
from shoal_dataplane.core.loop import ThreadedLoop
from shoal_dataplane.core.model_spec import compile_spec
from shoal_dataplane.core.request import InferRequest, Signature
from shoal_dataplane.core.response import InferResponse
from shoal_dataplane.core.tensors import Tensor
from shoal_dataplane.execution.bridge import Ready, ServerBridge
from shoal_dataplane.execution.channel import Channel, Kind
from shoal_dataplane.execution.process import ProcessExecutor
from shoal_dataplane.execution.shm import SegmentPool, SegmentTable
from shoal_dataplane.execution.wire import RequestEncoder, decode_answer, decode_requests, encode_answer
from shoal_dataplane.scheduling.base import Batch, Cut

MODEL = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", pb_utils.get_input_tensor_by_name(r, "IN").as_numpy())])
            for r in requests
        ]
"""


class Nobody:
    def respond(self, request: InferRequest, response: InferResponse) -> None:
        """The executor answers whole batches."""


class NoServer:
    """A server that this model never asks for anything."""

    def submit(self, request: InferRequest) -> None:
        raise NotImplementedError

    def cancel(self, request: InferRequest) -> None:
        raise NotImplementedError

    def load_model(self, repository: str, name: str, parameters: Mapping[str, str | bytes]) -> None:
        raise NotImplementedError

    def unload_model(self, repository: str, name: str, unload_dependents: bool) -> None:
        raise NotImplementedError

    def model_ready(self, name: str, version: str) -> Ready:
        raise NotImplementedError


def requests(count: int, size: int, shared: bool) -> list[InferRequest]:
    """Requests as the gRPC door makes them: one row of FP32, a view into a message; `shared`: with the same header."""
    signature = Signature() if shared else None
    made = []
    for _ in range(count):
        data = memoryview(bytes(size + 20))[20:]
        request = InferRequest("m", "1", {"IN": Tensor("IN", "FP32", (1, size // 4), data)}, Nobody())
        request.signature = signature
        made.append(request)
    return made


def per_call(function: Callable[[], object], seconds: float = 0.1) -> float:
    """Microseconds of CPU a call."""
    count, began = 0, time.thread_time()
    while (elapsed := time.thread_time() - began) < seconds:
        for _ in range(10):
            function()
        count += 10
    return elapsed / count * 1e6


def cpu_seconds(pid: int) -> float:
    """Time that the threads of a process have spent on a CPU."""
    return sum(int(file.read_text().split()[0]) for file in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def codec(batch: Sequence[InferRequest], unlike: Sequence[InferRequest]) -> dict[str, Callable[[], object]]:
    """What the server does to a batch and to its answer, and what the worker does to them."""
    encoder = RequestEncoder()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    pool, table = SegmentPool(), SegmentTable(writable=True)
    sender, receiver = Channel(ours, pool, table, writable=False), Channel(theirs, pool, table, writable=True)
    head, parts, size = encoder.encode(1, batch)
    payload = memoryview(bytearray(b"".join(parts)))
    execution = Execution(
        [InferResponse([Tensor("OUT", "FP32", t.shape, t.array())]) for r in batch for t in r.inputs.values()], 1, 2, 3
    )
    answer_head, answer_parts, _ = encode_answer(1, execution)
    answer_payload = memoryview(b"".join(answer_parts))

    def through_the_socket() -> None:
        sender.send(Kind.EXECUTE, head, parts, size)
        receiver.receive()

    return {
        "encode, same header": lambda: encoder.encode(1, batch),
        "encode, own headers": lambda: encoder.encode(1, unlike),
        "decode": lambda: decode_answer(answer_head, answer_payload, 1, len(batch)),
        "worker's decode": lambda: decode_requests(head, payload, "m", "1", Nobody()),
        "worker's encode": lambda: encode_answer(1, execution),
        "send and receive": through_the_socket,
    }


class BareRoundTrip:
    """The least that any process costs: the same bytes to a child that sends them back, with nothing round it."""

    CHILD = "import socket, sys; s = socket.socket(fileno=int(sys.argv[1]))\nwhile d := s.recv(1 << 18): s.sendall(d)"

    def __init__(self, size: int) -> None:
        self.sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.data = bytes(size)
        command = [sys.executable, "-S", "-c", self.CHILD, str(theirs.fileno())]
        self.child = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        theirs.close()

    def run(self, count: int) -> float:
        """Microseconds a round trip."""
        began = time.perf_counter()
        for _ in range(count):
            self.sock.sendall(self.data)
            left = len(self.data)
            while left:
                left -= len(self.sock.recv(left))
        return (time.perf_counter() - began) / count * 1e6

    def close(self) -> None:
        self.sock.close()
        self.child.wait()


class RoundTrip:
    """A worker process, and one batch at a time through it."""

    def __init__(self, folder: Path, batch: list[InferRequest], size: int) -> None:
        version_dir = folder / "m" / "1"
        version_dir.mkdir(parents=True)
        (version_dir / "model.py").write_text(MODEL)
        tensor = f"data_type: TYPE_FP32 dims: [ {size // 4} ]"
        config = text_format.Parse(
            f'name: "m" backend: "python" max_batch_size: 64 input {{ name: "IN" {tensor} }} output {{ name: "OUT" {tensor} }}',
            mc.ModelConfig(),
        )
        context = ModelContext("m", 1, folder / "m", version_dir, config, compile_spec(config, 1), {})
        self.loop = ThreadedLoop()
        self.loop.start()
        self.executor = ProcessExecutor.start(
            context, InstanceSpec("m_0", "CPU", 0), self.loop, ServerBridge(self.loop, NoServer())
        )
        self.batch = Batch(batch, len(batch), Cut.FULL)

    def run(self, count: int) -> dict[str, float]:
        """Microseconds a batch, one after the other, without leaving the loop's thread."""
        finished = threading.Event()
        left = count
        worker_ns = 0

        def done(batch: Batch, result: Execution | ServingError) -> None:
            nonlocal left, worker_ns
            if isinstance(result, ServingError):
                raise result
            worker_ns += result.infer_ns
            left -= 1
            if left:
                self.executor.submit(batch, done)
            else:
                finished.set()

        worker = self.executor.worker_pid
        began, server_cpu, worker_cpu = time.perf_counter(), time.process_time(), cpu_seconds(worker)
        self.loop.post(lambda: self.executor.submit(self.batch, done))
        finished.wait()
        seconds = {
            "way, there and back": time.perf_counter() - began,
            "  in the model, elapsed": worker_ns / 1e9,
            "  the server's CPU": time.process_time() - server_cpu,
            "  the worker's CPU": cpu_seconds(worker) - worker_cpu,
        }
        return {name: value / count * 1e6 for name, value in seconds.items()}

    def close(self) -> None:
        self.executor.close()
        self.loop.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=64, help="requests in a batch")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--bytes", type=int, default=256, help="of each request's tensor")
    options = parser.parse_args()
    for count in dict.fromkeys((1, options.batch)):
        batch = requests(count, options.bytes, shared=True)
        functions = codec(batch, requests(count, options.bytes, shared=False))
        figures: dict[str, list[float]] = {}
        with tempfile.TemporaryDirectory() as folder:
            trip = RoundTrip(Path(folder), batch, options.bytes)
            bare = BareRoundTrip(count * options.bytes)
            trip.run(50)
            bare.run(50)
            for _ in range(options.rounds):
                for name, function in functions.items():
                    figures.setdefault(name, []).append(per_call(function))
                for name, value in trip.run(1000).items():
                    figures.setdefault(name, []).append(value)
                figures.setdefault("bare sockets, there and back", []).append(bare.run(1000))
            trip.close()
            bare.close()
        print(f"batch of {count} x {options.bytes} bytes{'':14}us a batch   us a request")
        for name, values in figures.items():
            median = statistics.median(values)
            print(f"  {name:28} {median:12.1f} {median / count:14.2f}   [{min(values):.1f}-{max(values):.1f}]")


if __name__ == "__main__":
    main()
