"""A file over HTTP: named by its content, cached, whole or not at all. The server is a real one on the loopback interface."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from shoal_cli.fetch.http import fetch_http
from shoal_cli.fetch.store import FetchError

CONTENT = b"model" * 100_000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """/m.onnx is the file, /short.onnx breaks off, /moved.onnx leads to it, all else is not there."""

    requests = 0

    def do_GET(self) -> None:
        Handler.requests += 1
        if self.path == "/moved.onnx":
            self.send_response(302)
            self.send_header("Location", "/m.onnx")
            self.end_headers()
            return
        if self.path not in ("/m.onnx", "/short.onnx"):
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(CONTENT if self.path == "/m.onnx" else CONTENT[:1000])

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    Handler.requests = 0
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_the_file_arrives_under_its_name_and_is_fetched_once(tmp_path: Path, url: str) -> None:
    told: list[tuple[int, int | None]] = []
    path = fetch_http(f"{url}/m.onnx", SHA256, tmp_path, lambda done, total: told.append((done, total)))
    assert path.name == "m.onnx"
    assert path.read_bytes() == CONTENT
    assert told[0] == (0, len(CONTENT))
    assert told[-1] == (len(CONTENT), len(CONTENT))
    assert fetch_http(f"{url}/m.onnx", SHA256, tmp_path) == path
    assert Handler.requests == 1


def test_a_redirect_is_followed_and_the_name_is_the_one_asked_for(tmp_path: Path, url: str) -> None:
    assert fetch_http(f"{url}/moved.onnx", SHA256, tmp_path).name == "moved.onnx"


@pytest.mark.parametrize(
    ("path", "sha256", "message"),
    [
        ("/gone.onnx", SHA256, "HTTP 404"),
        ("/m.onnx", "0" * 64, f"the content has SHA-256 {SHA256}, expected {'0' * 64}"),
        ("/short.onnx", SHA256, "the connection ended after 1000 of 500000 bytes"),
        ("/", SHA256, "must end in a file's name"),
    ],
)
def test_what_goes_wrong_is_said_and_nothing_is_left_behind(
    tmp_path: Path, url: str, path: str, sha256: str, message: str
) -> None:
    with pytest.raises(FetchError, match=message):
        fetch_http(url + path, sha256, tmp_path)
    assert [p for p in tmp_path.rglob("*") if p.is_file() and not p.name.endswith(".lock")] == []


def test_no_connection_is_an_error_that_names_the_address(tmp_path: Path, url: str) -> None:
    port = int(url.rsplit(":", 1)[1])
    closed = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    other = closed.server_address[1]
    closed.server_close()
    assert other != port
    with pytest.raises(FetchError, match=rf"http://127\.0\.0\.1:{other}/m\.onnx: .*refused"):
        fetch_http(f"http://127.0.0.1:{other}/m.onnx", SHA256, tmp_path)
