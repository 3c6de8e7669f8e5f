"""The repository's verbs over HTTP."""

from __future__ import annotations

import base64
import threading
from typing import Any

import pytest
import tritonclient.http as tritonhttp

from shoal_dataplane.server import http_repository
from shoal_dataplane.server.http import HttpDoor
from tests.unit.server.http_client import ask
from tests.unit.server.http_service import FakeService


def test_the_index_leaves_out_what_is_empty(http_door: HttpDoor) -> None:
    answer = ask(http_door.port, "POST", "/v2/repository/index")
    assert answer.json == [{"name": "never"}, {"name": "ident", "version": "1", "state": "READY"}]
    ready = ask(http_door.port, "POST", "/v2/repository/index", {"ready": True})
    assert [entry["name"] for entry in ready.json] == ["ident"]


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("index", b"{", 400, "failed to parse the request JSON buffer"),
        ("index", {"ready": "x"}, 400, "Unable to parse 'ready': Expected 'bool', got 'str'"),
        ("other/index", None, 501, "'repository_name' specification is not supported"),
        ("models/m/load", b"[]", 400, "Expected 'object', got 'array'"),
        ("models/m/load", {"parameters": []}, 400, "Unable to parse 'parameters'"),
        ("models/m/load", {"parameters": {"config": {}}}, 400, "load parameter 'config' has invalid type"),
        ("models/m/load", {"parameters": {"file:1/m": 5}}, 400, "load parameter 'file:1/m' must be a string that holds the file in base64"),
        ("models/m/load", {"parameters": {"file:1/m": "a?b="}}, 400, "Unable to decode the base64 of load parameter 'file:1/m'"),
        ("models/m/load", {"parameters": {"file:1/m": "é"}}, 400, "Unable to decode the base64"),
        ("models/broken/load", None, 400, "load failed for model 'broken'"),
        ("models/locked/unload", None, 503, "explicit model load / unload is not allowed"),
        ("models/m/unload", {"parameters": {"unload_dependents": 1}}, 400, "'unload_dependents': expected true or false, got 1"),
    ],
)  # fmt: skip
def test_a_wrong_request_is_refused(http_door: HttpDoor, path: str, body: Any, status: int, said: str) -> None:
    answer = ask(http_door.port, "POST", f"/v2/repository/{path}", body)
    assert answer.status == status
    assert said in answer.error


def test_load_passes_what_the_caller_gives(http_door: HttpDoor, http_service: FakeService) -> None:
    files = {"file:1/model.py": base64.b64encode(b"\0\xff").decode(), "file:empty": ""}
    answer = ask(
        http_door.port,
        "POST",
        "/v2/repository/models/a%20b/load",
        {"parameters": {"config": "{}", **files, "other": 3}},
    )
    assert (answer.status, answer.body) == (200, b"")
    assert ask(http_door.port, "POST", "/v2/repository/r/models/m/load").status == 200
    assert http_service.loads == [
        ("", "a b", {"config": "{}", "file:1/model.py": b"\0\xff", "file:empty": b"", "other": 3}),
        ("r", "m", {}),
    ]


def test_unload_passes_what_the_caller_gives(http_door: HttpDoor, http_service: FakeService) -> None:
    ask(http_door.port, "POST", "/v2/repository/models/m/unload")
    ask(http_door.port, "POST", "/v2/repository/models/m/unload", {"parameters": {"unload_dependents": True}})
    assert http_service.unloads == [("", "m", False), ("", "m", True)]


def test_a_slow_load_holds_up_nobody_and_loads_are_bounded(
    http_door: HttpDoor, http_service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_repository, "MAX_OPERATIONS", 2)
    http_service.load_gate.clear()
    threads = [
        threading.Thread(target=ask, args=(http_door.port, "POST", f"/v2/repository/models/m{n}/load"))
        for n in range(2)
    ]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert http_service.loading.acquire(timeout=10)
    assert ask(http_door.port, "GET", "/v2/health/live").status == 200
    assert ask(http_door.port, "POST", "/v2/repository/index").status == 200
    refused = ask(http_door.port, "POST", "/v2/repository/models/m/load")
    assert (refused.status, refused.error) == (503, "2 loads and unloads are under way already: try again later")
    http_service.load_gate.set()
    for thread in threads:
        thread.join(10)
    assert ask(http_door.port, "POST", "/v2/repository/models/m/load").status == 200
    assert sorted(name for _, name, _ in http_service.loads) == ["m", "m0", "m1"]


def test_tritonclient_loads_and_unloads(http_door: HttpDoor, http_service: FakeService) -> None:
    client = tritonhttp.InferenceServerClient(f"127.0.0.1:{http_door.port}")
    client.load_model("m", config="{}", files={"file:1/model.py": b"code"})
    client.unload_model("m", unload_dependents=True)
    client.close()
    assert http_service.loads == [("", "m", {"config": "{}", "file:1/model.py": b"code"})]
    assert http_service.unloads == [("", "m", True)]
