"""Inference over HTTP: JSON, binary, compressed, as tritonclient asks and as others do."""

from __future__ import annotations

import gzip
import http.client
import json
import struct
import zlib
from typing import Any

import numpy as np
import pytest
import tritonclient.http as tritonhttp
from tritonclient.utils import InferenceServerException

from shoal_dataplane.core.errors import Code, Reason, ServingError
from shoal_dataplane.server.http import HttpDoor
from tests.unit.server.conftest import OpenDoor
from tests.unit.server.http_client import ask, infer, infer_binary, split, tensor
from tests.unit.server.http_service import FakeService

FLOATS = struct.pack("<4f", 1, 2, 3, 4)
BINARY = tensor(parameters={"binary_data_size": 16})


def test_json_in_json_out(http_door: HttpDoor) -> None:
    answer = infer(http_door.port, "ident", tensor(data=[[1, 2, 3, 0.1]]), id="x1")
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "application/json"
    assert "Inference-Header-Content-Length" not in answer.headers
    assert answer.json == {
        "id": "x1",
        "model_name": "ident",
        "model_version": "1",
        "outputs": [{"name": "OUT", "datatype": "FP32", "shape": [1, 4], "data": [1.0, 2.0, 3.0, 0.10000000149011612]}],
    }


def test_binary_in_json_out(http_door: HttpDoor) -> None:
    answer = infer_binary(http_door.port, "ident", {"inputs": [BINARY]}, FLOATS)
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.json["outputs"][0]["data"] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "more",
    [
        {"parameters": {"binary_data_output": True}},
        {"outputs": [{"name": "OUT", "parameters": {"binary_data": True}}]},
    ],
)
def test_binary_in_binary_out(http_door: HttpDoor, more: dict[str, Any]) -> None:
    answer = infer_binary(http_door.port, "ident", {"inputs": [BINARY], **more}, FLOATS)
    assert answer.headers["Content-Type"] == "application/octet-stream"
    header, section = split(answer)
    assert header["outputs"] == [
        {"name": "OUT", "datatype": "FP32", "shape": [1, 4], "parameters": {"binary_data_size": 16}}
    ]
    assert section == FLOATS


def test_listed_outputs_alone_come_back(http_door: HttpDoor) -> None:
    inputs = [tensor("IN0", shape=[4]), tensor("IN1", "INT32", [4])]
    answer = infer(http_door.port, "two", *inputs, outputs=[{"name": "OUT1"}])
    assert [output["name"] for output in answer.json["outputs"]] == ["OUT1"]


@pytest.mark.parametrize("header", ["0", " 0 "])
def test_a_raw_body_is_the_models_one_input(http_door: HttpDoor, header: str) -> None:
    answer = ask(http_door.port, "POST", "/v2/models/ident/infer", FLOATS, {"Inference-Header-Content-Length": header})
    described, section = split(answer)
    assert described["outputs"][0]["shape"] == [1, 4]
    assert section == FLOATS


def test_a_raw_string_gets_its_length(http_door: HttpDoor) -> None:
    answer = ask(http_door.port, "POST", "/v2/models/text/infer", b"hello", {"Inference-Header-Content-Length": "0"})
    assert split(answer)[1] == b"\x05\0\0\0hello"


def test_a_raw_body_for_an_unknown_model_is_not_found(http_door: HttpDoor) -> None:
    answer = ask(http_door.port, "POST", "/v2/models/nope/infer", b"x", {"Inference-Header-Content-Length": "0"})
    assert (answer.status, answer.error) == (404, "Request for unknown model: 'nope' is not found")


@pytest.mark.parametrize(
    ("length", "said"),
    [
        (100000, "inference header size should be in range (0, "),
        (-5, "inference header size should be in range (0, "),
        ("9" * 30, "inference header size should be in range (0, "),
        ("abc", "Unable to parse Inference-Header-Content-Length, got: abc"),
        ("", "Unable to parse Inference-Header-Content-Length, got: "),
        ("1_0", "Unable to parse Inference-Header-Content-Length, got: 1_0"),
        (10, "failed to parse the request JSON buffer"),
    ],
)
def test_a_header_length_that_lies_is_refused(
    http_door: HttpDoor, http_service: FakeService, length: object, said: str
) -> None:
    answer = infer_binary(http_door.port, "ident", {"inputs": [BINARY]}, FLOATS, length=length)
    assert answer.status == 400
    assert said in answer.error
    assert [error.code for error in http_service.refusals] == [Code.INVALID_ARGUMENT]


def test_an_empty_body_is_refused(http_door: HttpDoor) -> None:
    answer = ask(http_door.port, "POST", "/v2/models/ident/infer", b"")
    assert (answer.status, answer.error) == (400, "the request has no body: expected a JSON object with 'inputs'")


@pytest.mark.parametrize(
    ("model", "request_", "status", "said"),
    [
        ("nope", {}, 404, "Request for unknown model: 'nope' is not found"),
        ("ident/versions/9", {}, 404, "Request for unknown model: 'ident' version 9 is not found"),
        ("ident", {"inputs": []}, 400, "expected 1 inputs but got 0 inputs for model 'ident'"),
        ("ident", {"inputs": [tensor("XX")]}, 400, "unexpected inference input 'XX' for model 'ident'"),
        ("ident", {"inputs": [tensor(datatype="INT32")]}, 400, "data-type is 'INT32', but model 'ident' expects 'FP32'"),
        ("ident", {"inputs": [tensor(shape=[1, 5], data=[1] * 5)]}, 400, "unexpected shape for input 'IN' for model 'ident'."),
        ("ident", {"inputs": [tensor(shape=[9, 4], data=[1] * 36)]}, 400, "inference request batch-size must be <= 8 for 'ident'"),
        ("ident", {"outputs": [{"name": "ZZ"}]}, 400, "unexpected inference output 'ZZ' for model 'ident'"),
        ("ident", {"inputs": [tensor(), tensor()]}, 400, "input 'IN' already exists in request"),
        ("ident", {"inputs": [tensor(parameters={"binary_data_size": 16})]}, 400, "expecting 16 additional bytes for model 'ident'"),
        ("ident_uint8", {"inputs": [tensor(datatype="UINT8", data=[1, 2, 300, 4])]}, 400, "element 2 is 300, expected an integer"),
        ("ident_fp16", {"inputs": [tensor(datatype="FP16")]}, 400, "receiving FP16 data via JSON is not supported"),
        ("thrice", {"inputs": [tensor("N", "INT32", [1], data=[3])]}, 501, "HTTP end point doesn't support models with decoupled"),
        ("broken", {"inputs": [tensor("N", "INT32", [1], data=[3])]}, 501, "decoupled"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_json(
    http_door: HttpDoor, model: str, request_: dict[str, Any], status: int, said: str
) -> None:
    answer = ask(http_door.port, "POST", f"/v2/models/{model}/infer", {"inputs": [tensor()], **request_})
    assert answer.status == status
    assert said in answer.error


def test_door_refusals_are_counted_and_the_services_own_are_not_counted_twice(
    http_door: HttpDoor, http_service: FakeService
) -> None:
    infer(http_door.port, "nope")
    assert http_service.refusals == []
    infer(http_door.port, "ident", tensor(data=["a"]))
    ask(http_door.port, "POST", "/v2/models/ident/infer", b"x", {"Content-Encoding": "br"})
    assert [error.reason for error in http_service.refusals] == [Reason.INVALID, Reason.INVALID]


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_half_floats_go_in_and_out_in_binary_alone(http_door: HttpDoor, datatype: str) -> None:
    entry = {"name": "IN", "datatype": datatype, "shape": [1, 2], "parameters": {"binary_data_size": 4}}
    both = infer_binary(
        http_door.port,
        f"ident_{datatype.lower()}",
        {"inputs": [entry], "parameters": {"binary_data_output": True}},
        b"\1\2\3\4",
    )
    assert split(both)[1] == b"\1\2\3\4"
    one = infer_binary(http_door.port, f"ident_{datatype.lower()}", {"inputs": [entry]}, b"\1\2\3\4")
    assert one.status == 400
    assert f"sending {datatype} data via JSON is not supported. Please use the binary data format" in one.error


def test_bytes_that_are_not_utf8_are_refused_in_json(http_door: HttpDoor) -> None:
    entry = {"name": "IN", "datatype": "BYTES", "shape": [1, 1], "parameters": {"binary_data_size": 6}}
    answer = infer_binary(http_door.port, "ident_bytes", {"inputs": [entry]}, b"\2\0\0\0\xff\xfe")
    assert answer.status == 400
    assert "element 0 of output 'OUT' is not UTF-8" in answer.error


def test_nan_is_refused_in_json(http_door: HttpDoor) -> None:
    answer = infer_binary(http_door.port, "ident", {"inputs": [BINARY]}, struct.pack("<4f", 1, float("nan"), 3, 4))
    assert answer.status == 400
    assert "element 1 of output 'OUT' is nan, which JSON cannot express" in answer.error


@pytest.mark.parametrize("binary", [False, True])
def test_classification(http_door: HttpDoor, binary: bool) -> None:
    output = {"name": "OUT", "parameters": {"classification": 2, "binary_data": binary}}
    answer = infer(http_door.port, "labelled", tensor(data=[0.1, 3.5, -2, 5]), outputs=[output])
    header, section = split(answer)
    assert header["outputs"][0]["shape"] == [1, 2]
    assert header["outputs"][0]["datatype"] == "BYTES"
    if binary:
        assert section == b"\n\0\0\x005.000000:3\x0e\0\0\x003.500000:1:dog"
    else:
        assert header["outputs"][0]["data"] == ["5.000000:3", "3.500000:1:dog"]


def test_classification_of_booleans_is_refused(http_door: HttpDoor) -> None:
    answer = infer(
        http_door.port,
        "ident_bool",
        tensor(datatype="BOOL", data=[True] * 4),
        outputs=[{"name": "OUT", "parameters": {"classification": 1}}],
    )
    assert answer.status == 400
    assert "class result not available for output 'OUT' due to unsupported type 'BOOL'" in answer.error


@pytest.mark.parametrize(
    ("encoding", "compress"),
    [("gzip", gzip.compress), ("deflate", zlib.compress), ("GZIP", gzip.compress), ("identity", bytes)],
)
def test_compressed_requests(http_door: HttpDoor, encoding: str, compress: Any) -> None:
    text = json.dumps({"inputs": [BINARY]}).encode()
    headers = {"Content-Encoding": encoding, "Inference-Header-Content-Length": str(len(text))}
    answer = ask(http_door.port, "POST", "/v2/models/ident/infer", compress(text + FLOATS), headers)
    assert answer.json["outputs"][0]["data"] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("accepted", "unpack"), [("gzip", gzip.decompress), ("deflate", zlib.decompress), ("br, gzip", gzip.decompress)]
)
@pytest.mark.parametrize("size", [4, 100_000])
def test_compressed_responses(http_door: HttpDoor, accepted: str, unpack: Any, size: int) -> None:
    data = np.arange(size, dtype=np.float32).tobytes()
    entry = {"name": "IN", "datatype": "FP32", "shape": [size], "parameters": {"binary_data_size": len(data)}}
    request = {"inputs": [entry], "parameters": {"binary_data_output": True}}
    answer = infer_binary(http_door.port, "flat", request, data, {"Accept-Encoding": accepted})
    assert answer.headers["Content-Encoding"] == accepted.removeprefix("br, ")
    assert split(answer._replace(body=unpack(answer.body)))[1] == data


def test_errors_are_never_compressed(http_door: HttpDoor) -> None:
    answer = infer(http_door.port, "nope", headers={"Accept-Encoding": "gzip"})
    assert "unknown model" in answer.error


def test_an_unknown_encoding_is_told_which_are_known(http_door: HttpDoor) -> None:
    answer = infer(http_door.port, "ident", headers={"Content-Encoding": "br"})
    assert answer.status == 501
    assert answer.headers["Accept-Encoding"] == "gzip, deflate"
    assert "Unsupported compression type 'br'" in answer.error


def test_large_tensors_go_through_whole(http_door: HttpDoor) -> None:
    data = np.random.default_rng(1).integers(0, 256, 5_000_000, np.uint8).tobytes()
    entry = {"name": "IN", "datatype": "UINT8", "shape": [1, len(data)], "parameters": {"binary_data_size": len(data)}}
    answer = infer_binary(
        http_door.port, "ident_uint8", {"inputs": [entry], "parameters": {"binary_data_output": True}}, data
    )
    assert split(answer)[1] == data


def test_large_json_goes_through_whole(http_door: HttpDoor) -> None:
    values = list(range(200_000))
    answer = infer(http_door.port, "ident_int64", tensor(datatype="INT64", shape=[1, len(values)], data=values))
    assert answer.json["outputs"][0]["data"] == values


def test_a_chunked_upload_is_read(http_door: HttpDoor) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", http_door.port, timeout=10)
    text = json.dumps({"inputs": [tensor()]}).encode()
    connection.request(
        "POST",
        "/v2/models/ident/infer",
        iter([text[:10], text[10:]]),
        encode_chunked=True,
        headers={"Transfer-Encoding": "chunked"},
    )
    assert json.loads(connection.getresponse().read())["outputs"][0]["data"] == [1, 2, 3, 4]
    connection.close()


def test_the_request_carries_parameters_credentials_and_trace(open_door: OpenDoor, http_service: FakeService) -> None:
    door = open_door(header_forward_pattern="^(X-My|triton_x)")
    headers = {"Authorization": "Bearer t", "traceparent": "00-a-b-01", "X-My-Header": "v", "X-Other": "o"}
    parameters = {"priority": 3, "timeout": 99, "sequence_id": 5, "sequence_end": True, "own": 1}
    infer(door.port, "ident/versions/1", headers=headers, parameters=parameters, id="i")
    (request,) = http_service.submitted
    assert (request.id, request.model_name, request.model_version) == ("i", "ident", "1")
    assert (request.priority, request.timeout_us, request.correlation_id, request.sequence_end) == (3, 99, 5, True)
    assert request.parameters == {"own": 1, "X-My-Header": "v"}
    assert request.metadata == {"authorization": "Bearer t", "traceparent": "00-a-b-01", "x-my-header": "v"}
    assert request.deadline_ns is None
    assert 0 < request.arrival_ns <= http_service.loop.now_ns()


@pytest.mark.parametrize("header", ["priority", "triton_x"])
def test_a_header_with_a_reserved_name_is_not_forwarded(open_door: OpenDoor, header: str) -> None:
    door = open_door(header_forward_pattern=".*(priority|triton).*")
    answer = infer(door.port, "ident", headers={header: "1"})
    assert answer.status == 400
    assert answer.error == f"Header '{header}' is reserved for Triton usage and cannot be forwarded."


def test_a_model_name_may_hold_any_character(http_door: HttpDoor) -> None:
    answer = ask(http_door.port, "POST", "/v2/models/a%20model%2F%C3%BC/infer", {"inputs": [tensor(shape=[4])]})
    assert answer.json["model_name"] == "a model/ü"


# tritonclient


@pytest.fixture
def triton(http_door: HttpDoor) -> Any:
    client = tritonhttp.InferenceServerClient(f"127.0.0.1:{http_door.port}", connection_timeout=20, network_timeout=20)
    yield client
    client.close()


ARRAYS: dict[str, np.ndarray[Any, Any]] = {
    "ident_fp16": np.array([[1.5, -2]], np.float16),
    "ident_fp64": np.array([[0.1, 1e300]], np.float64),
    "ident_int64": np.array([[2**63 - 1, -(2**63)]], np.int64),
    "ident_uint8": np.array([[0, 255]], np.uint8),
    "ident_bool": np.array([[True, False]]),
    "ident_bytes": np.array([[b'a"b', "é\n".encode()]], dtype=np.object_),
}


FORMS = [(model, binary, out) for model in sorted(ARRAYS) for binary in (True, False) for out in (True, False)]


@pytest.mark.parametrize(
    ("model", "binary_in", "binary_out"),
    [form for form in FORMS if form[0] != "ident_fp16"] + [("ident_fp16", True, True)],  # FP16 has no JSON form
)
@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
def test_tritonclient_gets_back_what_it_sent(
    triton: Any, model: str, binary_in: bool, binary_out: bool, compression: str | None
) -> None:
    array = ARRAYS[model]
    datatype = model.removeprefix("ident_").upper()
    entry = tritonhttp.InferInput("IN", list(array.shape), datatype)
    entry.set_data_from_numpy(array, binary_data=binary_in)
    result = triton.infer(
        model,
        [entry],
        outputs=[tritonhttp.InferRequestedOutput("OUT", binary_data=binary_out)],
        request_id="1",
        request_compression_algorithm=compression,
        response_compression_algorithm=compression,
    )
    assert result.get_response()["id"] == "1"
    back = result.as_numpy("OUT")
    if array.dtype == np.object_:
        assert [item if isinstance(item, bytes) else item.encode() for item in back.ravel()] == array.ravel().tolist()
    else:
        np.testing.assert_array_equal(back, array)


def test_tritonclient_classification_empty_outputs_and_errors(triton: Any) -> None:
    entry = tritonhttp.InferInput("IN", [1, 4], "FP32")
    entry.set_data_from_numpy(np.array([[4, 3, 2, 1]], np.float32))
    result = triton.infer("labelled", [entry], outputs=[tritonhttp.InferRequestedOutput("OUT", class_count=2)])
    assert result.as_numpy("OUT").tolist() == [[b"4.000000:0:cat", b"3.000000:1:dog"]]
    empty = tritonhttp.InferInput("IN", [0], "FP32")
    empty.set_data_from_numpy(np.zeros(0, np.float32))
    assert triton.infer("flat", [empty]).as_numpy("OUT").shape == (0,)
    with pytest.raises(InferenceServerException, match="unknown model: 'nope'"):
        triton.infer("nope", [entry])


def test_tritonclient_asks_about_server_and_models(triton: Any) -> None:
    assert triton.is_server_live()
    assert triton.is_server_ready()
    assert triton.is_model_ready("ident")
    assert not triton.is_model_ready("nope")
    assert triton.get_server_metadata()["name"] == "triton"
    assert triton.get_model_metadata("ident")["inputs"] == [{"name": "IN", "datatype": "FP32", "shape": [-1, 4]}]
    assert triton.get_model_config("ident")["max_batch_size"] == 8
    assert triton.get_inference_statistics("ident")["model_stats"][0]["inference_count"] == 2**40
    assert len(triton.get_inference_statistics()["model_stats"]) > 5
    assert triton.get_model_repository_index() == [
        {"name": "never"},
        {"name": "ident", "version": "1", "state": "READY"},
    ]


def test_a_serving_error_of_any_code_keeps_its_text(http_door: HttpDoor, http_service: FakeService) -> None:
    def full(request: Any) -> Any:
        raise ServingError(Code.UNAVAILABLE, "Exceeds maximum queue size", Reason.QUEUE_FULL)

    http_service.set_answer("flat", full)
    answer = infer(http_door.port, "flat", tensor(shape=[4]))
    assert (answer.status, answer.error) == (503, "Exceeds maximum queue size")
