"""A small KServe v2 client over HTTP, of the standard library alone: the commands should start in a blink."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlsplit

import numpy as np

from shoal_cli.client.tensors import ClientTensor

HEADER_LENGTH = "Inference-Header-Content-Length"
DEFAULT_URL = "http://localhost:8000"


class ClientError(RuntimeError):
    """The server cannot be reached, or it refused. `status` is the HTTP status, 0 without an answer."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class HttpClient:
    """One connection, one request at a time. `url` is `http://HOST:PORT`, `https://...` or just HOST:PORT."""

    def __init__(self, url: str, timeout: float) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ClientError(f"'{url}' is no address: expected http://HOST:PORT")
        try:
            port = parts.port or (443 if parts.scheme == "https" else 8000)
        except ValueError as error:
            raise ClientError(f"'{url}' is no address: {error}") from error
        self._where = f"{parts.scheme}://{parts.hostname}:{port}"
        self._prefix = parts.path.rstrip("/")
        self._connection: http.client.HTTPConnection
        if parts.scheme == "https":
            context = ssl.create_default_context()
            self._connection = http.client.HTTPSConnection(parts.hostname, port, timeout=timeout, context=context)
        else:
            self._connection = http.client.HTTPConnection(parts.hostname, port, timeout=timeout)

    def close(self) -> None:
        self._connection.close()

    def server_metadata(self) -> dict[str, Any]:
        """GET /v2: name, version, extensions."""
        return self._json("GET", "/v2")

    def index(self) -> list[dict[str, Any]]:
        """Every model of the repositories: name, version, state, reason."""
        found: Any = self._json("POST", "/v2/repository/index", b"{}")
        return list(found)

    def metadata(self, model: str, version: str = "") -> dict[str, Any]:
        """The model's versions, inputs and outputs."""
        return self._json("GET", _path(model, version))

    def config(self, model: str, version: str = "") -> dict[str, Any]:
        """The model's configuration."""
        return self._json("GET", _path(model, version) + "/config")

    def statistics(self, model: str, version: str = "") -> dict[str, Any]:
        """What is counted for one version: the first of `model_stats`."""
        return dict(self._json("GET", _path(model, version) + "/stats")["model_stats"][0])

    def infer(
        self,
        model: str,
        inputs: Sequence[ClientTensor],
        outputs: Sequence[str] = (),
        classify: int = 0,
        version: str = "",
        parameters: Mapping[str, Any] | None = None,
    ) -> tuple[dict[str, Any], list[ClientTensor]]:
        """Ask a model; tensors travel in binary both ways. Returns the response's header and its outputs."""
        wanted: dict[str, Any] = {"classification": classify} if classify else {"binary_data": True}
        header: dict[str, Any] = {
            "inputs": [_described(tensor) for tensor in inputs],
            "parameters": {**(parameters or {}), **({} if classify else {"binary_data_output": True})},
        }
        if outputs:
            header["outputs"] = [{"name": name, "parameters": wanted} for name in outputs]
        encoded = json.dumps(header).encode()
        body = b"".join([encoded, *(tensor.data for tensor in inputs)])
        answer, tail = self._request("POST", _path(model, version) + "/infer", body, {HEADER_LENGTH: str(len(encoded))})
        return answer, _outputs(answer, tail)

    def _json(self, method: str, path: str, body: bytes = b"") -> dict[str, Any]:
        return self._request(method, path, body, {})[0]

    def _request(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[dict[str, Any], bytes]:
        try:
            self._connection.request(method, self._prefix + path, body or None, headers)
            response = self._connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise ClientError(f"no answer from {self._where}: {reason}") from error
        length = response.headers.get(HEADER_LENGTH)
        head = content[: int(length)] if length and length.isdigit() else content
        try:
            answer = json.loads(head) if head else {}
        except ValueError:
            answer = {}
            if response.status == http.HTTPStatus.OK:
                raise ClientError(
                    f"{self._where}{path} does not speak the KServe v2 protocol", response.status
                ) from None
        if response.status != http.HTTPStatus.OK:
            message = answer.get("error") if isinstance(answer, dict) else None
            raise ClientError(str(message or f"HTTP {response.status} {response.reason}"), response.status)
        return answer, content[len(head) :]


def _path(model: str, version: str) -> str:
    return f"/v2/models/{quote(model, safe='')}" + (f"/versions/{quote(version, safe='')}" if version else "")


def _described(tensor: ClientTensor) -> dict[str, Any]:
    parameters = {"binary_data_size": len(tensor.data)}
    return {"name": tensor.name, "shape": list(tensor.shape), "datatype": tensor.datatype, "parameters": parameters}


def _outputs(answer: dict[str, Any], tail: bytes) -> list[ClientTensor]:
    outputs: list[ClientTensor] = []
    at = 0
    for output in answer.get("outputs", []):
        name, datatype, shape = output["name"], output["datatype"], tuple(output["shape"])
        size = output.get("parameters", {}).get("binary_data_size")
        if size is None:
            values = np.array(output.get("data", []), dtype=object if datatype == "BYTES" else None)
            outputs.append(ClientTensor.of(name, datatype, values.reshape(shape)))
        else:
            outputs.append(ClientTensor(name, datatype, shape, tail[at : at + size]))
            at += size
    return outputs
