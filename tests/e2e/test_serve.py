"""`shoal serve` and the first-look commands, as a person runs them: processes, ports, signals, exit codes."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from shoal_cli.main import main
from shoal_cli.quickstart.local_server import LocalServer

SAMPLE = Path(__file__).parents[2] / "manifests/samples/add-sub"
FREE_PORTS = (
    "--http-address=127.0.0.1",
    "--grpc-address=127.0.0.1",
    "--http-port=0",
    "--grpc-port=0",
    "--metrics-port=0",
)

pytestmark = pytest.mark.timeout(180)


def manifest(folder: Path, name: str, model: str, more: str = "") -> Path:
    """Write the manifest of a Python model with the sample's inputs and outputs; `model` is its `model:` block, in braces."""
    text = (SAMPLE / "add-sub.yaml").read_text().replace("name: add-sub", f"name: {name}")
    text = text.replace("model:\n    uri: file://model.py", f"model: {model}") + more
    (folder / f"{name}.yaml").write_text(text)
    return folder / f"{name}.yaml"


def run(*arguments: str | Path, code: int) -> subprocess.CompletedProcess[str]:
    """A serve that ends by itself."""
    command = [sys.executable, "-m", "shoal_cli.main", "serve", *map(str, arguments), *FREE_PORTS]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == code, result.stdout + result.stderr
    return result


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    with LocalServer(SAMPLE) as running:
        yield running


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def test_the_table_names_what_is_served_and_the_addresses_where(server: LocalServer) -> None:
    assert "add-sub  1        READY  python   CPU     8          one by one  process" in server.tail()
    assert f"Serving: HTTP {server.http}, gRPC {server.grpc}, metrics 127.0.0.1:" in server.tail()


def test_models_lists_the_model_with_its_tensors(server: LocalServer) -> None:
    result = invoke("models", "--url", server.http)
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[1].split("  ")[0] == "add-sub"
    assert "a FP32 [-1], b FP32 [-1]" in result.output
    (row,) = json.loads(invoke("models", "--url", server.http, "--json").output)
    assert (row["name"], row["version"], row["state"], row["max_batch_size"]) == ("add-sub", "1", "READY", 8)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_infer_prints_the_outputs_over_both_protocols(server: LocalServer, protocol: str) -> None:
    where = ["--url", server.http] if protocol == "http" else ["--grpc", "--url", server.grpc]
    result = invoke("infer", "add-sub", *where, "-i", "a=1,2", "-i", "b=3,4")
    assert result.output == "sum  FP32 [1, 2]\n  [[4., 6.]]\ndifference  FP32 [1, 2]\n  [[-2., -2.]]\n"
    answer = json.loads(
        invoke("infer", "add-sub", *where, "-i", "a=[1,2]", "-i", "b=[3,4]", "-o", "sum", "--json").output
    )
    assert answer["outputs"] == [{"name": "sum", "datatype": "FP32", "shape": [1, 2], "data": [4.0, 6.0]}]
    best = invoke("infer", "add-sub", *where, "-i", "a=1,2", "-i", "b=3,4", "-o", "sum", "--classify", "1").output
    assert best == "sum\n           6  class 1\n"


def test_infer_takes_numpy_files_and_batches(server: LocalServer, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones((2, 3), dtype=np.float64))
    result = invoke(
        "infer",
        "add-sub",
        "--url",
        server.http,
        "-i",
        f"a=@{tmp_path}/a.npy",
        "-i",
        "b=1,1,1",
        "-i",
        "b=2,2,2",
        "-o",
        "sum",
    )
    assert result.output == "sum  FP32 [2, 3]\n  [[2., 2., 2.],\n   [3., 3., 3.]]\n"


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_servers_refusals_are_shown_as_they_are(server: LocalServer, protocol: str) -> None:
    where = ["--url", server.http] if protocol == "http" else ["--grpc", "--url", server.grpc]
    missing = invoke("infer", "add-sub", *where, "-i", "a=1")
    assert missing.exit_code == 1
    assert "missing required input(s) ['b']" in missing.output
    unknown = invoke("infer", "nope", *where, "-i", "a=1")
    assert unknown.exit_code == 1
    assert "Request for unknown model: 'nope' is not found" in unknown.output
    version = invoke("infer", "add-sub", *where, "--model-version", "7", "-i", "a=1", "-i", "b=1")
    assert "'add-sub' version 7 is not found" in version.output


@pytest.mark.parametrize("arguments", [("models",), ("infer", "m"), ("infer", "m", "--grpc")])
def test_no_server_is_an_error_with_the_address(arguments: tuple[str, ...]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    result = invoke(*arguments, "--url", address)
    assert result.exit_code == 1
    assert "Error: " in result.output
    assert address.rsplit(":", 1)[1] in result.output


def test_another_service_is_not_mistaken_for_a_server() -> None:
    other = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory="/nonexistent"))
    threading.Thread(target=other.serve_forever, daemon=True).start()
    result = invoke("models", "--url", f"127.0.0.1:{other.server_address[1]}")
    other.shutdown()
    other.server_close()
    assert result.exit_code == 1
    assert "HTTP 501" in result.output


def test_a_repository_is_served_by_tritons_flags(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name / "1").mkdir(parents=True)
        shutil.copy(SAMPLE / "model.py", tmp_path / name / "1/model.py")
        (tmp_path / name / "config.pbtxt").write_text(
            'backend: "python" max_batch_size: 4\n'
            + "".join(
                f'{side} {{ name: "{tensor}" data_type: TYPE_FP32 dims: -1 }}\n'
                for side, tensor in (("input", "a"), ("input", "b"), ("output", "sum"), ("output", "difference"))
            )
        )
    flags = (
        "--model-control-mode=explicit",
        "--load-model=two",
        "--http-thread-count=4",
        "--strict-readiness=1",
        "--log-verbose=0",
    )
    with LocalServer(flags=(f"--model-repository={tmp_path}", *flags)) as server:
        states = {
            row["name"]: row["state"] for row in json.loads(invoke("models", "--url", server.http, "--json").output)
        }
        assert states == {"one": "", "two": "READY"}
        assert "flags without effect here: --http-thread-count" in server.tail()


def test_a_model_that_cannot_load_ends_the_start_unless_told_otherwise(tmp_path: Path) -> None:
    shutil.copy(SAMPLE / "model.py", tmp_path / "good.py")
    (tmp_path / "bad.py").write_text("raise RuntimeError('no luck')\n")
    for name in ("good", "bad"):
        manifest(tmp_path, name, f"{{uri: 'file://{name}.py'}}")
    result = run(tmp_path, code=1)
    assert "Error: 'bad' could not be loaded" in result.stderr
    assert "no luck" in result.stdout
    with LocalServer(tmp_path, flags=("--exit-on-error=false",)) as server:
        assert "good   1        READY" in server.tail()
        assert "bad    1        UNAVAILABLE" in server.tail()
        result_of_good = invoke("infer", "good", "--url", server.http, "-i", "a=1", "-i", "b=2", "-o", "sum")
        assert result_of_good.output == "sum  FP32 [1, 1]\n  [[3.]]\n"
        assert "no luck" in invoke("models", "--url", server.http).output


def test_a_source_that_is_not_there_is_named(tmp_path: Path) -> None:
    result = run(manifest(tmp_path, "m", "{uri: 'file://gone.py'}"), code=1)
    assert f"Error: model 'm': the source of model 'm' does not exist: '{tmp_path / 'gone.py'}'" in result.stderr


def test_a_model_other_than_its_digest_says_is_not_served(tmp_path: Path) -> None:
    shutil.copy(SAMPLE / "model.py", tmp_path / "model.py")
    result = run(manifest(tmp_path, "m", f"{{uri: 'file://model.py', digest: 'sha256:{'0' * 64}'}}"), code=1)
    found = hashlib.sha256((tmp_path / "model.py").read_bytes()).hexdigest()
    assert f"its digest is sha256:{found}, expected sha256:{'0' * 64}" in result.stderr


def test_a_model_over_http_is_fetched_checked_and_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    source = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(SAMPLE)))
    threading.Thread(target=source.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{source.server_address[1]}/model.py"
    sha256 = hashlib.sha256((SAMPLE / "model.py").read_bytes()).hexdigest()
    try:
        with LocalServer(
            manifest(tmp_path, "m", f"{{source: {{http: {{url: '{url}', sha256: '{sha256}'}}}}}}")
        ) as server:
            assert "fetching m (0.0 MB)" in server.tail()
            assert "READY" in server.tail()
        wrong = manifest(tmp_path, "m", f"{{uri: '{url}', digest: 'sha256:{'1' * 64}'}}")
        assert f"the content has SHA-256 {sha256}, expected {'1' * 64}" in run(wrong, code=1).stderr
    finally:
        source.shutdown()
        source.server_close()


def test_a_port_in_use_ends_the_start(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "shoal_cli.main", "serve", str(SAMPLE), *FREE_PORTS, f"--http-port={port}"]
        result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 1
    assert "Error: a port cannot be opened" in result.stderr
    assert str(port) in result.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_and_the_json_log_is_all_that_is_written(number: signal.Signals) -> None:
    command = [sys.executable, "-m", "shoal_cli.main", "serve", str(SAMPLE), *FREE_PORTS, "--log-format=json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if "successfully loaded" in line:
            process.send_signal(number)
            break
    out, rest = process.communicate(timeout=60)
    assert process.returncode == 0
    assert out == ""
    for line in [*lines, *rest.splitlines()]:
        json.loads(line)
