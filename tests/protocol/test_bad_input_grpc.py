"""ModelInfer requests that are wrong: each gets a clear error with the right status, and the server goes on serving."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb

from tests.protocol.conftest import Deploy
from tests.protocol.harness.grpc_calls import arrays, encode_bytes, odd_request, refused, request
from tests.protocol.harness.repository import IN, Tensor
from tests.protocol.harness.server import Server
from tests.protocol.harness.targets import Target

F16 = bytes(16)
X = np.zeros((1, 4), np.float32)
TWO = [("IN0", "FP32", (1, 4)), ("IN1", "INT32", (1, 4))]


@pytest.fixture(scope="module", autouse=True)
def _models(deploy: Deploy) -> None:
    deploy("b_one", inputs=[IN], execution="thread")
    deploy(
        "b_two",
        inputs=[Tensor("IN0"), Tensor("IN1", "INT32")],
        outputs=[Tensor("OUT0"), Tensor("OUT1", "INT32")],
        execution="thread",
    )
    deploy(
        "b_optional",
        inputs=[IN, Tensor("IN1", "FP32", (4,), "optional: true")],
        outputs=[Tensor("OUT"), Tensor("OUT1")],
        execution="thread",
    )
    deploy(
        "b_plain",
        inputs=[Tensor("IN", "FP32", (2, -1))],
        outputs=[Tensor("OUT", "FP32", (2, -1))],
        max_batch_size=0,
        execution="thread",
    )
    deploy("b_text", inputs=[Tensor("IN", "BYTES", (-1,))], outputs=[Tensor("OUT", "BYTES", (-1,))], execution="thread")
    deploy(
        "b_small",
        inputs=[Tensor("IN", "UINT8", (-1,))],
        outputs=[Tensor("OUT", "UINT8", (-1,))],
        max_batch_size=0,
        execution="thread",
    )


@pytest.fixture(autouse=True)
def _still_serves(server: Server) -> Iterator[None]:
    """Nothing that a test sends may harm the next caller."""
    yield
    assert arrays(server.infer("b_one", {"IN": X + 3}))["OUT"].tolist() == [[3.0] * 4]


REFUSED: dict[str, tuple[pb.ModelInferRequest, str]] = {
    "unknown input": (
        odd_request("b_one", [("XX", "FP32", (1, 4))], [F16]),
        r"unexpected inference input 'XX' for model 'b_one'",
    ),
    "one input missing": (
        odd_request("b_two", TWO[:1], [F16]),
        r"expected 2 inputs but got 1 inputs for model 'b_two'. Got input\(s\) \['IN0'\], but missing required input\(s\) \['IN1'\]",
    ),
    "no input": (
        odd_request("b_two", []),
        r"expected 2 inputs but got 0 inputs for model 'b_two'. Got input\(s\) \[\], but missing required input\(s\) \['IN0','IN1'\]",
    ),
    "no input of a model with optional ones": (
        odd_request("b_optional", []),
        r"between 1 and 2 .* 0 inputs for model 'b_optional'. Got input\(s\) \[\], but missing required input\(s\) \['IN'\]",
    ),
    "the same input twice": (
        odd_request("b_two", [TWO[0], TWO[0]], [F16, F16]),
        r"input 'IN0' already exists in request",
    ),
    "another datatype": (
        odd_request("b_one", [("IN", "INT32", (1, 4))], [F16]),
        r"inference input 'IN' data-type is 'INT32', but model 'b_one' expects 'FP32'",
    ),
    "an unknown datatype": (odd_request("b_one", [("IN", "FP31", (1, 4))], [F16]), r"'(<invalid>|FP31)'"),
    "no datatype": (odd_request("b_one", [("IN", "", (1, 4))], [F16]), r"data-?type (is )?'(<invalid>)?'"),
    "a wrong dimension": (
        odd_request("b_one", [("IN", "FP32", (1, 5))], [bytes(20)]),
        r"unexpected shape for input 'IN' for model 'b_one'. Expected \[-1,4\], got \[1,5\].*max_batch_size",
    ),
    "a wrong rank": (odd_request("b_one", [("IN", "FP32", (4,))], [F16]), r"Expected \[-1,4\], got \[4\]"),
    "no batch dimension at all": (odd_request("b_one", [("IN", "FP32", ())], [F16]), r"input 'IN'.*'b_one'"),
    "a wrong dimension without batching": (
        odd_request("b_plain", [("IN", "FP32", (3, 2))], [bytes(24)]),
        r"unexpected shape for input 'IN' for model 'b_plain'. Expected \[2,-1\], got \[3,2\]",
    ),
    "a dimension of -1": (
        odd_request("b_plain", [("IN", "FP32", (2, -1))], [F16]),
        r"input 'IN' for model 'b_plain'.*-1",
    ),
    "a batch of 0": (
        odd_request("b_one", [("IN", "FP32", (0, 4))], [b""]),
        r"(batch-size must be >= 1|Expected 16, got 0)",
    ),
    "unequal batches": (
        odd_request("b_two", [TWO[0], ("IN1", "INT32", (2, 4))], [F16, bytes(32)]),
        r"input 'IN[01]' batch size does not match other inputs for 'b_two'",
    ),
    "a batch beyond the largest": (
        odd_request("b_one", [("IN", "FP32", (9, 4))], [bytes(144)]),
        r"inference request batch-size must be <= 8 for 'b_one'",
    ),
    "too few raw bytes": (
        odd_request("b_one", [("IN", "FP32", (1, 4))], [bytes(12)]),
        r"input byte size mismatch for input 'IN' for model 'b_one'. Expected 16, got 12",
    ),
    "too many raw bytes": (odd_request("b_one", [("IN", "FP32", (1, 4))], [bytes(17)]), r"Expected 16, got 17"),
    "no raw bytes": (odd_request("b_one", [("IN", "FP32", (1, 4))], [b""]), r"Expected 16, got 0"),
    "too few typed values": (
        odd_request("b_one", [("IN", "FP32", (1, 4), {"fp32_contents": [1.0]})]),
        r"'IN' for model 'b_one'",
    ),
    "too many typed values": (
        odd_request("b_one", [("IN", "FP32", (1, 4), {"fp32_contents": [1.0] * 5})]),
        r"'IN' for model 'b_one'",
    ),
    "typed values of another type": (
        odd_request("b_one", [("IN", "FP32", (1, 4), {"int_contents": [1] * 4})]),
        r"unexpected .*'IN'.*for model 'b_one'",
    ),
    "typed values of two types": (
        odd_request("b_one", [("IN", "FP32", (1, 4), {"fp32_contents": [1] * 4, "int_contents": [1] * 4})]),
        r"unexpected .*'IN'.*for model 'b_one'",
    ),
    "raw and typed values": (
        odd_request("b_one", [("IN", "FP32", (1, 4), {"fp32_contents": [1] * 4})], [F16]),
        r"contents field must not be specified when using raw_input_contents for 'IN' for model 'b_one'",
    ),
    "neither raw nor typed values": (
        odd_request("b_two", TWO),
        r"unable to find data for input tensor 'IN[01]' for model 'b_two' in request",
    ),
    "fewer raw contents than inputs": (
        odd_request("b_two", TWO, [F16]),
        r"unable to find data for input tensor 'IN1' for model 'b_two' in request",
    ),
    "too few strings": (odd_request("b_text", [("IN", "BYTES", (1, 2))], [encode_bytes([b"a"])]), r"'IN'.*1"),
    "too many strings": (odd_request("b_text", [("IN", "BYTES", (1, 1))], [encode_bytes([b"a", b"b"])]), r"'IN'"),
    "a string longer than the rest": (
        odd_request("b_text", [("IN", "BYTES", (1, 1))], [struct.pack("<I", 10) + b"abc"]),
        r"incomplete string data for inference input 'IN', expecting string of length 10 but only 3 bytes available",
    ),
    "a string of 4 GiB": (
        odd_request("b_text", [("IN", "BYTES", (1, 1))], [b"\xff\xff\xff\xffabc"]),
        r"incomplete string data for inference input 'IN', expecting string of length 4294967295 but only 3 bytes available",
    ),
    "half a string length": (
        odd_request("b_text", [("IN", "BYTES", (1, 1))], [b"\x01\x00"]),
        r"incomplete string length indicator for inference input 'IN'.*expecting 4 bytes but only 2 bytes available",
    ),
    "an unknown output": (
        odd_request("b_one", [("IN", "FP32", (1, 4))], [F16], outputs=["ZZ"]),
        r"unexpected inference output 'ZZ' for model 'b_one'",
    ),
    "a negative classification": (
        odd_request("b_one", [("IN", "FP32", (1, 4))], [F16], outputs=[("OUT", {"classification": -1})]),
        r"classification",
    ),
    "a classification that is no number": (
        odd_request("b_one", [("IN", "FP32", (1, 4))], [F16], outputs=[("OUT", {"classification": "2"})]),
        r"invalid value .*for 'classification' parameter",
    ),
    "a priority that is no number": (
        odd_request("b_one", [("IN", "FP32", (1, 4))], [F16], parameters={"priority": "1"}),
        r"'priority' parameter",
    ),
    "a negative priority": (
        odd_request("b_one", [("IN", "FP32", (1, 4))], [F16], parameters={"priority": -1}),
        r"'priority'",
    ),
    "a timeout that is no number": (
        odd_request("b_one", [("IN", "FP32", (1, 4))], [F16], parameters={"timeout": "1"}),
        r"'timeout' parameter",
    ),
    "a sequence flag that is no flag": (
        odd_request("b_one", [("IN", "FP32", (1, 4))], [F16], parameters={"sequence_start": 1}),
        r"invalid value type for 'sequence_start' parameter, expected bool",
    ),
    "a sequence id that is no id": (
        odd_request("b_one", [("IN", "FP32", (1, 4))], [F16], parameters={"sequence_id": True}),
        r"invalid value type for 'sequence_id' parameter, expected int64",
    ),
    "an empty final response that is no flag": (
        odd_request("b_one", [("IN", "FP32", (1, 4))], [F16], parameters={"triton_enable_empty_final_response": 1}),
        r"invalid value type for 'triton_enable_empty_final_response' parameter, expected bool",
    ),
    "a reserved parameter": (
        odd_request("b_one", [("IN", "FP32", (1, 4))], [F16], parameters={"triton_secret": 1}),
        r"parameter keys starting with 'triton_' are reserved for Triton usage",
    ),
    "a version that is no number": (
        odd_request("b_one", [("IN", "FP32", (1, 4))], [F16], version="abc"),
        r"specified version string 'abc'",
    ),
    "a negative version": (odd_request("b_one", [("IN", "FP32", (1, 4))], [F16], version="-7"), r"'-7'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_wrong_request_is_an_invalid_argument_that_names_what_is_wrong(server: Server, case: str) -> None:
    message, pattern = REFUSED[case]
    with refused("INVALID_ARGUMENT", pattern):
        server.send(message)


UNKNOWN = {
    "model": (odd_request("nobody", []), r"^Request for unknown model: 'nobody' is not found$"),
    "model without a name": (odd_request("", []), r"^Request for unknown model: '' is not found$"),
    "version": (odd_request("b_one", [], version="7"), r"^Request for unknown model: 'b_one' version 7 is not found$"),
    "version 0": (
        odd_request("b_one", [], version="0"),
        r"^Request for unknown model: 'b_one' version 0 is not found$",
    ),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_an_unknown_model_or_version_is_not_found(server: Server, case: str) -> None:
    message, pattern = UNKNOWN[case]
    with refused("NOT_FOUND", pattern):
        server.send(message)


def test_a_required_input_is_missed_even_when_the_count_fits(server: Server, target: Target) -> None:
    message = odd_request("b_optional", [("IN1", "FP32", (1, 4))], [F16])
    if target.pick("required-inputs", shoal=True, triton=False):
        with refused("INVALID_ARGUMENT", r"missing required input\(s\) \['IN'\]"):
            server.send(message)
    else:
        assert server.send(message).model_name == "b_optional"


@pytest.mark.differs("typed-range")
def test_typed_values_beyond_the_datatype_are_refused(server: Server) -> None:
    with refused("INVALID_ARGUMENT", r"'IN' for model 'b_small'.*outside UINT8's range"):
        server.send(odd_request("b_small", [("IN", "UINT8", (1,), {"uint_contents": [300]})]))


@pytest.mark.parametrize("version", ["01", "1.5", " 1", "1x"])
@pytest.mark.differs("version-strings")
def test_only_plain_numbers_are_versions(server: Server, version: str) -> None:
    with refused("INVALID_ARGUMENT|NOT_FOUND", "b_one"):
        server.send(odd_request("b_one", [("IN", "FP32", (1, 4))], [F16], version=version))


def test_a_long_correlation_id_is_refused(server: Server, target: Target) -> None:
    code = target.pick("correlation-id-code", shoal="INVALID_ARGUMENT", triton="UNIMPLEMENTED")
    message = odd_request("b_one", [("IN", "FP32", (1, 4))], [F16], parameters={"sequence_id": "x" * 129})
    with refused(code, "string correlation ID cannot be longer than 128"):
        server.send(message)


@pytest.mark.differs("negative-integers")
@pytest.mark.parametrize("name", ["timeout", "sequence_id"])
def test_negative_numbers_do_not_become_huge_ones(server: Server, name: str) -> None:
    with refused("INVALID_ARGUMENT", f"'{name}'"):
        server.send(odd_request("b_one", [("IN", "FP32", (1, 4))], [F16], parameters={name: -5}))


def test_a_parameter_without_a_value_is_refused(server: Server) -> None:
    message = request("b_one", {"IN": X})
    message.parameters["own"].SetInParent()
    with refused("INVALID_ARGUMENT", "parameter"):
        server.send(message)


def test_shared_memory_is_refused_by_name(server: Server, target: Target) -> None:
    message = odd_request("b_one", [("IN", "FP32", (1, 4))])
    message.inputs[0].parameters["shared_memory_region"].string_param = "region"
    message.inputs[0].parameters["shared_memory_byte_size"].int64_param = 16
    code = target.pick("later-extensions", shoal="INVALID_ARGUMENT|UNIMPLEMENTED", triton="NOT_FOUND")
    with refused(code, "shared memory region"):
        server.send(message)


HUGE = {
    "elements overflow": ([2**31, 2**31, 2**31], b""),
    "bytes overflow": ([2**62, 4], b""),
    "one huge dimension": ([1, 2**63 - 1], F16),
    "huge beside zero": ([0, 2**62, 2**62], b""),
}


@pytest.mark.parametrize("case", HUGE)
def test_shapes_that_overflow_are_refused(server: Server, case: str) -> None:
    shape, raw = HUGE[case]
    for model in ("b_one", "b_plain", "b_small", "b_text"):
        datatype = {"b_small": "UINT8", "b_text": "BYTES"}.get(model, "FP32")
        with refused("INVALID_ARGUMENT", "IN"):
            server.send(odd_request(model, [("IN", datatype, shape)], [raw]))


@pytest.mark.differs("negative-batch")
def test_a_negative_batch_is_refused(server: Server) -> None:
    for size in (-1, -(2**63)):
        with refused("INVALID_ARGUMENT", f"IN.*{size}"):
            server.send(odd_request("b_one", [("IN", "FP32", (size, 4))], [b""]))


@pytest.mark.differs("input-count", run=False)
def test_a_hundred_thousand_inputs_are_refused_quickly(server: Server) -> None:
    message = odd_request("b_one", [(f"IN{i}", "FP32", (1, 4)) for i in range(100_000)], [b""] * 100_000)
    with refused("INVALID_ARGUMENT", "input"):
        server.send(message, timeout=20)


def test_a_hundred_thousand_outputs_are_refused_quickly(server: Server) -> None:
    message = odd_request("b_one", [("IN", "FP32", (1, 4))], [F16], outputs=[f"OUT{i}" for i in range(100_000)])
    with refused("INVALID_ARGUMENT", "output"):
        server.send(message, timeout=20)


GARBAGE = {
    "text": b"this is no protobuf message",
    "a length beyond the end": b"\x0a\xff\xff\xff\xff\x0f",
    "an endless varint": b"\x0a" + b"\xff" * 20,
    "a group": b"\x0b\x0b\x0b",
    "nested too deep": b"\x22\x80\x01" + b"\x22" * 128,
    "a truncated raw content": b"\x0a\x05b_one\x3a\x7fabc",
    "a name that is no UTF-8": b"\x0a\x02\xff\xfe",
    "an id that is no UTF-8": b"\x0a\x05b_one\x1a\x02\xff\xfe",
}


@pytest.mark.parametrize("case", GARBAGE)
def test_bytes_that_are_no_message_are_refused(server: Server, target: Target, case: str) -> None:
    method = server.channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
    code = target.pick("garbage-code", shoal="INVALID_ARGUMENT", triton="INTERNAL")
    with refused(code):
        method(GARBAGE[case], timeout=10)


@pytest.mark.parametrize(
    "method", ["ServerLive", "ModelConfig", "ModelStatistics", "RepositoryIndex", "RepositoryModelLoad"]
)
def test_bytes_that_are_no_message_are_refused_by_every_method(server: Server, method: str) -> None:
    call = server.channel.unary_unary(f"/inference.GRPCInferenceService/{method}")
    with refused("INTERNAL|INVALID_ARGUMENT"):
        call(b"\x0a\xff\xff\xff\xff\x0f", timeout=10)


def test_metadata_beyond_grpcs_limit_is_refused_by_grpc(server: Server) -> None:
    with pytest.raises(grpc.RpcError):
        server.send(request("b_one", {"IN": X}), metadata=[("x-large", "v" * (1 << 20))])


@pytest.mark.differs("error-length")
def test_errors_are_short_whatever_was_sent(server: Server) -> None:
    """A status travels in a header of 8 KB: a longer one would reach the caller as another error."""
    with refused("NOT_FOUND|INVALID_ARGUMENT"):
        server.send(odd_request("m" * 100_000, []))
    with refused("INVALID_ARGUMENT"):
        server.send(odd_request("b_one", [("n" * 100_000, "FP32", (1, 4))], [F16]))
    with refused("INVALID_ARGUMENT", "IN"):
        server.send(odd_request("b_one", [("IN", "FP32", [1] * 5000)], [bytes(4)]))
