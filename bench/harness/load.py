"""Load by h2load (Debian: nghttp2-client): unary gRPC over HTTP/2, in C, so that the client is not what is measured."""

from __future__ import annotations

import math
import re
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc
import numpy as np

from shoal_api.protocol import inference_pb2 as pb

METHOD = "/inference.GRPCInferenceService/ModelInfer"


@dataclass(frozen=True)
class Load:
    """One run: answered requests per second, latencies in ms, and how many requests failed."""

    rate: float
    p50: float
    p99: float
    failed: int


def request(model: str, **inputs: np.ndarray) -> bytes:
    """A ModelInferRequest with raw contents."""
    names = {"float32": "FP32", "int64": "INT64", "int32": "INT32", "uint8": "UINT8"}
    message = pb.ModelInferRequest(model_name=model)
    for name, array in inputs.items():
        message.inputs.add(name=name, datatype=names[str(array.dtype)], shape=array.shape)
        message.raw_input_contents.append(array.tobytes())
    return message.SerializeToString()


def probe(port: int, message: bytes) -> bytes:
    """One answered request, decoded, before anything is timed. Raises grpc.RpcError when the model does not answer."""
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.max_receive_message_length", -1)]) as channel:
        answer: bytes = channel.unary_unary(METHOD)(message, timeout=60, wait_for_ready=True)
    assert pb.ModelInferResponse.FromString(answer).outputs
    return answer


def h2load(
    port: int,
    message: bytes,
    callers: int,
    seconds: float,
    rate: int = 0,
    warm_up: float = 1,
    most_connections: int = 4,
) -> Load:
    """A closed loop of `callers`, or, with `rate`, that many requests offered per second.

    Each connection keeps its own time, and all start together: over one, requests come evenly spaced; over four, in fours.
    """
    if shutil.which("h2load") is None:
        raise SystemExit("the benchmarks need h2load: apt-get install nghttp2-client")
    probe(port, message)
    connections = min(callers, most_connections)
    with tempfile.TemporaryDirectory() as folder:
        body, log = Path(folder, "body"), Path(folder, "log")
        body.write_bytes(b"\0" + len(message).to_bytes(4, "big") + message)
        command = [
            "h2load", "-t1", f"-c{connections}", f"-m{max(1, callers // connections)}", f"-D{math.ceil(seconds)}",
            f"--warm-up-time={math.ceil(warm_up)}", f"--log-file={log}", "-d", str(body),
            "-H", "content-type: application/grpc", "-H", "te: trailers",
        ]  # fmt: skip
        if rate:
            command += [f"--rps={rate / connections}"]
        done = subprocess.run(
            [*command, f"http://127.0.0.1:{port}{METHOD}"], capture_output=True, text=True, check=True
        )
        rows = [line.split("\t") for line in log.read_text().splitlines()]
    latencies = sorted(int(row[2]) / 1000 for row in rows if len(row) == 3)
    failed = sum(1 for row in rows if len(row) == 3 and row[1] != "200")
    speed = re.search(r"([\d.]+) req/s", done.stdout)
    assert speed is not None, done.stdout
    return Load(float(speed[1]), quantile(latencies, 0.5), quantile(latencies, 0.99), failed)


def quantile(ordered: Sequence[float], q: float) -> float:
    """The q-quantile of ordered values, NaN of none."""
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))] if ordered else math.nan


def median(values: Sequence[float]) -> float:
    """The median."""
    return statistics.median(values)


def spread(values: Sequence[float]) -> str:
    """Median and range, to be read by a person."""
    return f"{median(values):,.0f} [{min(values):,.0f}-{max(values):,.0f}]"
