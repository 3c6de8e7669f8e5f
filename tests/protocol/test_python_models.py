"""The contract of Python models (triton.md F3, F4): what execute may do, what it may do wrong, and that other models never notice."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from tests.protocol.conftest import Deploy
from tests.protocol.harness.grpc_calls import arrays, refused, request, strings
from tests.protocol.harness.repository import OUT, Tensor
from tests.protocol.harness.server import Server
from tests.protocol.harness.targets import Target
from tests.protocol.harness.waiting import wait_for

X = np.arange(4, dtype=np.float32).reshape(1, 4)
CODE = Tensor("CODE", "BYTES", (1,))
ONE = {"inputs": [Tensor("IN", "FP32", (4,))], "outputs": [OUT]}

# Where the model runs: in a process of its own, or in the server's. Triton has the first only.
PLACES = ["process", "thread", "inline"]


@pytest.fixture(scope="module", autouse=True)
def _models(deploy: Deploy) -> None:
    deploy("p_bystander")
    deploy("p_callee", "identity", **ONE)
    deploy("p_callee_faults", "faults", inputs=[Tensor("IN", "FP32", (4,))], outputs=[OUT], execution="thread")


@pytest.fixture(autouse=True)
def _others_go_on(server: Server) -> Iterator[None]:
    """Whatever a model does, the others serve."""
    yield
    assert arrays(server.infer("p_bystander", {"IN": X}))["OUT"].tolist() == X.tolist()


@pytest.fixture(scope="module", params=PLACES)
def faults(request: pytest.FixtureRequest, deploy: Deploy, target: Target) -> str:
    if request.param != "process" and not target.is_shoal:
        pytest.skip("runs models in processes only")
    return deploy(f"p_faults_{request.param}", "faults", inputs=[CODE], execution=request.param)


def do(server: Server, model: str, code: str, **more: Any) -> dict[str, np.ndarray[Any, Any]]:
    return arrays(server.infer(model, {"CODE": strings(code).reshape(1, 1)}, **more))


def works(server: Server, model: str) -> None:
    assert do(server, model, "fine")["OUT"].tolist() == [[0.0] * 4]


FAILS = {
    "raise": r"^Failed to process the request\(s\) for model '{model}_0(_0)?', message: ValueError: boom happened",
    "raise_model_exception": r"TritonModelException: model exception",
    "raise_triton_error": r"TypeError: exceptions must derive from BaseException",
    "system_exit": r"SystemExit: 4",
    "keyboard_interrupt": r"KeyboardInterrupt",
    "too_few": r"Number of InferenceResponse objects do not match the number of InferenceRequest objects\. "
    r"InferenceRequest\(s\) size is:1, and InferenceResponse\(s\) size is:0",
    "too_many": r"InferenceRequest\(s\) size is:1, and InferenceResponse\(s\) size is:2",
    "no_list": r"Expected a list in the execute return, found type",
    "no_response": r"Expected an 'InferenceResponse' object in the execute function return list, found type '<class 'int'>'",
    "tensor_of_list": r"TypeError",
}


@pytest.mark.parametrize("code", FAILS)
def test_a_failed_execute_fails_its_batch_and_says_how(server: Server, faults: str, code: str) -> None:
    with refused("INTERNAL", FAILS[code].replace("{model}", faults)):
        do(server, faults, code)
    works(server, faults)


@pytest.mark.differs("error-length")
def test_endless_recursion_is_told_in_a_few_lines(server: Server, faults: str) -> None:
    with refused("INTERNAL", "RecursionError"):
        do(server, faults, "recursion")
    works(server, faults)


def test_the_line_that_raised_is_named(server: Server, faults: str) -> None:
    with refused("INTERNAL", r"(?s)ValueError: boom happened.*model\.py\(\d+\): batch_raise"):
        do(server, faults, "raise")


@pytest.mark.parametrize("code", ["none", "none_in_list"])
@pytest.mark.differs("none-responses", run=False)
def test_no_response_at_all_is_an_error_and_no_hang(server: Server, faults: str, code: str) -> None:
    with refused("INTERNAL", "InferenceResponse|list"):
        do(server, faults, code, timeout=10)
    works(server, faults)


@pytest.mark.parametrize(
    ("code", "status", "http"),
    [
        ("UNKNOWN", "UNKNOWN", 400),
        ("INTERNAL", "INTERNAL", 500),
        ("NOT_FOUND", "NOT_FOUND", 404),
        ("INVALID_ARG", "INVALID_ARGUMENT", 400),
        ("UNAVAILABLE", "UNAVAILABLE", 503),
        ("UNSUPPORTED", "UNIMPLEMENTED", 501),
        ("ALREADY_EXISTS", "ALREADY_EXISTS", 400),
        ("CANCELLED", "CANCELLED", 400),
    ],
)
def test_a_triton_error_reaches_the_caller_with_its_code(
    server: Server, faults: str, code: str, status: str, http: int
) -> None:
    with refused(status, f"^coded code_{code}$"):
        do(server, faults, f"code_{code}")
    document = {"inputs": [{"name": "CODE", "datatype": "BYTES", "shape": [1, 1], "data": [f"code_{code}"]}]}
    reply = server.post(f"/v2/models/{faults}/infer", document)
    assert (reply.status, reply.error) == (http, f"coded code_{code}")


def test_an_error_without_a_code_is_internal(server: Server, faults: str) -> None:
    with refused("INTERNAL", "^plain error$"):
        do(server, faults, "error")


def test_outputs_beside_an_error_are_ignored(server: Server, faults: str) -> None:
    with refused("INTERNAL", "^with an output$"):
        do(server, faults, "error_and_output")


@pytest.mark.differs("response-parameters")
def test_parameters_of_a_response_reach_the_caller(server: Server, faults: str) -> None:
    response = server.infer(faults, {"CODE": strings("parameters").reshape(1, 1)})
    shown = {name: getattr(value, value.WhichOneof("parameter_choice")) for name, value in response.parameters.items()}
    assert shown == {"text": "x", "number": 3, "yes": True, "half": 0.5}
    document = {"inputs": [{"name": "CODE", "datatype": "BYTES", "shape": [1, 1], "data": ["parameters"]}]}
    assert server.post(f"/v2/models/{faults}/infer", document).json()["parameters"] == shown


def test_noncontiguous_arrays_are_sent_right(server: Server, faults: str) -> None:
    assert do(server, faults, "noncontiguous")["OUT"].tolist() == [[0.0, 2.0, 4.0, 6.0]]


def test_nan_is_a_value_like_another(server: Server, faults: str) -> None:
    assert np.isnan(do(server, faults, "nan")["OUT"]).all()


def test_a_model_may_print(server: Server, faults: str) -> None:
    assert do(server, faults, "print")["OUT"].shape == (1, 4)


@pytest.mark.differs("outputs-are-checked")
@pytest.mark.parametrize(
    ("code", "pattern"),
    [
        ("dtype", r"OUT.*INT32.*FP32|OUT.*FP32.*INT32"),
        ("shape", r"OUT.*\[1, ?5\]"),
        ("rank", r"OUT.*\[4\]"),
        ("rows", r"OUT.*3"),
        ("unknown_output", r"NOPE"),
        ("same_output_twice", r"OUT"),
    ],
)
def test_outputs_that_are_not_as_configured_are_an_error(server: Server, faults: str, code: str, pattern: str) -> None:
    with refused("INTERNAL", pattern):
        do(server, faults, code)
    works(server, faults)


@pytest.mark.differs("outputs-are-checked")
def test_a_requested_output_that_does_not_come_is_an_error(server: Server, faults: str) -> None:
    with refused("INTERNAL", "OUT"):
        do(server, faults, "missing", outputs=["OUT"])
    works(server, faults)


@pytest.mark.parametrize("place", ["process", "thread"])
def test_a_running_model_learns_that_its_caller_has_gone(
    server: Server, deploy: Deploy, target: Target, tmp_path: Path, place: str
) -> None:
    if place != "process" and not target.is_shoal:
        pytest.skip("runs models in processes only")
    deploy(f"p_patient_{place}", "patient", execution=place)
    note = tmp_path / "note"
    running = server.later(request(f"p_patient_{place}", {"IN": X}, parameters={"note": str(note)}))
    wait_for("it runs", note.exists)
    assert running.cancel()
    wait_for("the model has ended", lambda: note.read_text() != "")
    assert note.read_text() == "cancelled"


# -- a process that ends


@pytest.fixture(scope="module")
def mortal(deploy: Deploy) -> str:
    """A model in a process of its own."""
    return deploy("p_mortal", "faults", inputs=[CODE])


@pytest.mark.differs("crashed-models-return", run=False)
@pytest.mark.parametrize("code", ["exit", "abort"])
def test_a_model_that_ends_its_process_fails_its_batch_and_comes_back(server: Server, mortal: str, code: str) -> None:
    wait_for("it works", lambda: answers(server, mortal), seconds=60)
    with refused("INTERNAL|UNAVAILABLE", mortal):
        do(server, mortal, code, timeout=20)
    wait_for("it is back", lambda: answers(server, mortal), seconds=60)
    wait_for("the server is ready", server.ready)


def answers(server: Server, model: str) -> bool:
    """Does the model work? False while it is restarted."""
    with contextlib.suppress(grpc.RpcError):
        works(server, model)
        return True
    return False


@pytest.mark.differs("hanging-models", run=False)
def test_a_caller_of_a_hanging_model_gets_its_deadline(server: Server, mortal: str) -> None:
    wait_for("it works", lambda: answers(server, mortal), seconds=60)
    with refused("DEADLINE_EXCEEDED"):
        do(server, mortal, "hang", timeout=1)


@pytest.mark.differs("hanging-models", run=False)
def test_a_model_that_runs_too_long_fails_its_batch_and_comes_back(server: Server, deploy: Deploy) -> None:
    deploy("p_bounded", "faults", inputs=[CODE], parameters={"SHOAL_EXECUTE_TIMEOUT_SECONDS": "1"})
    with refused("INTERNAL|UNAVAILABLE|DEADLINE_EXCEEDED", "p_bounded"):
        do(server, "p_bounded", "hang", timeout=25)
    wait_for("it is back", lambda: answers(server, "p_bounded"), seconds=60)


@pytest.mark.differs("hanging-models", run=False)
def test_a_hanging_model_can_be_unloaded_and_loaded_again(server: Server, deploy: Deploy) -> None:
    deploy("p_hangs", "faults", inputs=[CODE], parameters={"SHOAL_CLOSE_TIMEOUT_SECONDS": "2"})
    with refused("DEADLINE_EXCEEDED"):
        do(server, "p_hangs", "hang", timeout=1)
    began = time.monotonic()
    server.unload("p_hangs", timeout=60)
    server.load("p_hangs")
    assert time.monotonic() - began < 60
    works(server, "p_hangs")


@pytest.mark.differs("memory-limit", run=False)
def test_a_model_that_eats_memory_fails_alone(server: Server, deploy: Deploy) -> None:
    deploy("p_eats", "faults", inputs=[CODE], parameters={"SHOAL_MEMORY_LIMIT_MB": "400"})
    with refused("INTERNAL|UNAVAILABLE|RESOURCE_EXHAUSTED", "p_eats"):
        do(server, "p_eats", "memory", timeout=25)
    wait_for("it is back", lambda: answers(server, "p_eats"), seconds=60)


# -- async, BLS, logging, metrics, life


@pytest.mark.parametrize("place", PLACES)
def test_an_async_execute_is_awaited(server: Server, deploy: Deploy, target: Target, place: str) -> None:
    if place != "process" and not target.is_shoal:
        pytest.skip("runs models in processes only")
    deploy(f"p_async_{place}", "asynchronous", execution=place)
    assert arrays(server.infer(f"p_async_{place}", {"IN": X}))["OUT"].tolist() == X.tolist()


@pytest.fixture(scope="module", params=["process", "thread"])
def caller(request: pytest.FixtureRequest, deploy: Deploy, target: Target) -> str:
    if request.param != "process" and not target.is_shoal:
        pytest.skip("runs models in processes only")
    return deploy(f"p_calls_{request.param}", "calls", execution=request.param, **ONE)


@pytest.mark.parametrize(("how", "times"), [("sync", 1), ("async", 1), ("many", 8)])
def test_a_model_calls_another(server: Server, caller: str, how: str, times: int) -> None:
    before = server.statistics("p_callee").inference_count
    found = arrays(server.infer(caller, {"IN": X}, parameters={"call": "p_callee", "how": how}))
    assert found["OUT"].tolist() == (X * times).tolist()
    wait_for("the calls are counted", lambda: server.statistics("p_callee").inference_count == before + times)


@pytest.mark.parametrize("how", ["sync", "async", "many"])
def test_the_error_of_a_called_model_reaches_the_caller(server: Server, caller: str, how: str) -> None:
    with refused("NOT_FOUND|INTERNAL|INVALID_ARGUMENT", "'p_nobody'"):
        server.infer(caller, {"IN": X}, parameters={"call": "p_nobody", "how": how})
    assert arrays(server.infer(caller, {"IN": X}, parameters={"call": "p_callee", "how": how}))["OUT"].shape == (1, 4)


def test_models_log_and_keep_metrics_of_their_own(server: Server, deploy: Deploy) -> None:
    deploy("p_reports", "reports")
    before = server.metric("requests_of_reports", model="reports", kind="seen")
    for _ in range(3):
        server.infer("p_reports", {"IN": X})
    wait_for(
        "they are counted", lambda: server.metric("requests_of_reports", model="reports", kind="seen") == before + 3
    )


def test_log_lines_of_models_are_in_the_servers_log(server: Server) -> None:
    read = getattr(server, "log", None)
    if read is None:
        pytest.skip("the log of a server that runs already is not at hand")
    wait_for("the model's warning is there", lambda: "reports has run" in read())
    assert "reports is starting" in read()


def test_a_model_lives_from_initialize_to_finalize(server: Server, deploy: Deploy, tmp_path: Any) -> None:
    deploy(
        "p_marks", "marks", parameters={"folder": str(tmp_path)}, more="instance_group [ { kind: KIND_CPU count: 2 } ]"
    )
    assert (tmp_path / "initialized").read_text() == "xx", "each instance is initialised once"
    server.infer("p_marks", {"IN": X})
    server.unload("p_marks")
    wait_for(
        "each instance is finalised",
        lambda: (tmp_path / "finalized").exists() and (tmp_path / "finalized").read_text() == "xx",
    )
    assert (tmp_path / "executed").read_text() == "x"
