"""Whatever a model does in its process costs its own batch, at most, and is said in words."""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from shoal_dataplane.backends.base import InstanceSpec
from shoal_dataplane.core.errors import Code, ServingError
from shoal_dataplane.core.loop import ThreadedLoop
from shoal_dataplane.execution.bridge import ServerBridge
from shoal_dataplane.execution.process import ProcessExecutor
from tests.unit.execution.worker_models import (
    ECHO,
    FP32_4,
    FakeService,
    Running,
    alive,
    infer,
    model_context,
    open_descriptors,
    running,
    wait_for,
)

FAULTY = """
import os, sys, time
import numpy as np
import triton_python_backend_utils as pb_utils

def good(x=None):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros((1, 4), np.float32) if x is None else x)])

class TritonPythonModel:
    def execute(self, requests):
        faults = [r.request_id() for r in requests]
        whole = faults[0]
        if whole == "raise":
            raise ValueError("boom happened")
        if whole == "empty":
            raise KeyError
        if whole == "sys.exit":
            sys.exit(4)
        if whole == "none":
            return None
        if whole == "too few":
            return []
        if whole == "too many":
            return [good()] * (len(requests) + 1)
        if whole == "no list":
            return good()
        if whole == "surrogate":
            pb_utils.Logger.log_info("\\ud800")
            raise ValueError("\\ud800")
        if whole == "recursion":
            self.execute(requests)
        if whole == "os._exit":
            os._exit(3)
        if whole == "segfault":
            import ctypes
            ctypes.string_at(0)
        if whole == "hang":
            time.sleep(1000)
        return [self.one(fault) for fault in faults]

    def one(self, fault):
        if fault == "no response":
            return 5
        if fault == "None":
            return None
        if fault == "dtype":
            return good(np.zeros((1, 4), np.int32))
        if fault == "shape":
            return good(np.zeros((1, 5), np.float32))
        if fault == "rank":
            return good(np.zeros(4, np.float32))
        if fault == "rows":
            return good(np.zeros((3, 4), np.float32))
        if fault == "missing":
            return pb_utils.InferenceResponse([pb_utils.Tensor("NOPE", np.zeros(1))])
        if fault == "twice":
            return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros((1, 4), np.float32))] * 2)
        if fault == "error":
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("plain error"))
        if fault.startswith("code "):
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("coded", getattr(pb_utils.TritonError, fault[5:])))
        return good()
"""
FAILED = "Failed to process the request(s) for model 'm_0', message: "


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("faulty"), FAULTY) as model:
        yield model
        assert model.run(infer()).responses[0].error is None, "the process should have outlived all of it"


def error_of(model: Running, fault: str) -> ServingError:
    """The error of a request that stands between two good ones, which succeed."""
    before, response, after = model.run(infer(), infer(id=fault), infer()).responses
    assert before.error is None
    assert after.error is None
    assert response.error is not None
    return response.error


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (
            "no response",
            "Expected an 'InferenceResponse' object in the execute function return list, found type '<class 'int'>'.",
        ),
        (
            "None",
            "Expected an 'InferenceResponse' object in the execute function return list, found type '<class 'NoneType'>'.",
        ),
        ("dtype", "output 'OUT' has data-type 'INT32', but the configuration of model 'm' expects 'FP32'"),
        (
            "shape",
            "unexpected shape for output 'OUT' for model 'm'. Expected [1,4], got [1,5] (the request's batch size is 1)",
        ),
        (
            "rank",
            "unexpected shape for output 'OUT' for model 'm'. Expected [1,4], got [4] (the request's batch size is 1)",
        ),
        (
            "rows",
            "unexpected shape for output 'OUT' for model 'm'. Expected [1,4], got [3,4] (the request's batch size is 1)",
        ),
        ("missing", "the response lacks output 'OUT'; its outputs are: 'NOPE'"),
        ("twice", "the response has output 'OUT' twice"),
    ],
)
def test_a_wrong_response_fails_its_own_request_only(faulty: Running, fault: str, text: str) -> None:
    error = error_of(faulty, fault)
    assert error.message == FAILED + text
    assert error.code is Code.INTERNAL


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("UNKNOWN", Code.UNKNOWN),
        ("INTERNAL", Code.INTERNAL),
        ("NOT_FOUND", Code.NOT_FOUND),
        ("INVALID_ARG", Code.INVALID_ARGUMENT),
        ("UNAVAILABLE", Code.UNAVAILABLE),
        ("UNSUPPORTED", Code.UNIMPLEMENTED),
        ("ALREADY_EXISTS", Code.ALREADY_EXISTS),
        ("CANCELLED", Code.CANCELLED),
    ],
)
def test_a_triton_error_reaches_the_caller_with_its_code_and_text(faulty: Running, name: str, code: Code) -> None:
    error = error_of(faulty, f"code {name}")
    assert (error.code, error.message) == (code, "coded")


def test_a_triton_error_without_a_code_is_internal(faulty: Running) -> None:
    assert (error_of(faulty, "error").code, error_of(faulty, "error").message) == (Code.INTERNAL, "plain error")


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("too few", "InferenceRequest(s) size is:2, and InferenceResponse(s) size is:0\n"),
        ("too many", "InferenceRequest(s) size is:2, and InferenceResponse(s) size is:3\n"),
        ("no list", "Expected a list in the execute return, found type '<class '"),
        ("none", "Expected a list in the execute return, found type '<class 'NoneType'>'."),
        ("sys.exit", "SystemExit: 4\n\nAt:\n"),
        ("empty", "KeyError: <EMPTY MESSAGE>\n\nAt:\n"),
        ("recursion", "RecursionError: "),
        ("surrogate", "ValueError: ?\n\nAt:\n"),
    ],
)
def test_what_fails_the_batch_fails_it_whole_and_nothing_else(faulty: Running, fault: str, text: str) -> None:
    error = faulty.fail(infer(id=fault), infer())
    assert error.message.startswith(FAILED)
    assert text in error.message
    assert error.code is Code.INTERNAL
    assert faulty.run(infer()).responses[0].error is None


def test_an_exception_is_told_with_its_place_as_triton_tells_it(faulty: Running) -> None:
    model_py = faulty.executor._context.version_dir / "model.py"
    line = 1 + model_py.read_text().splitlines().index('            raise ValueError("boom happened")')
    error = faulty.fail(infer(id="raise"))
    assert error.message == f"{FAILED}ValueError: boom happened\n\nAt:\n  {model_py}({line}): execute\n"


# -- the process ends


@pytest.mark.parametrize(
    ("fault", "text"), [("os._exit", "exited with code 3"), ("segfault", "was killed by signal 11 (SIGSEGV)")]
)
def test_a_process_that_ends_fails_its_batch_and_is_started_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, fault: str, text: str
) -> None:
    with running(tmp_path, FAULTY) as model:
        back: list[bool] = []
        model.on_loop(lambda: model.executor.on_ready(lambda: back.append(model.executor.free())))
        first = model.pid
        error = model.fail(infer(id=fault), infer())
        assert error.message == f"the process of model instance 'm_0' {text}"
        assert error.code is Code.INTERNAL
        model.wait_free()
        assert back == [True]
        assert model.pid != first
        assert model.run(infer()).responses[0].error is None
    assert f"the process of model instance 'm_0' {text}; starting it again in 0 s" in caplog.text


def test_while_the_process_is_away_the_executor_is_neither_free_nor_healthy(tmp_path: Path) -> None:
    with running(tmp_path, ECHO) as model:
        os.kill(model.pid, signal.SIGSTOP)  # so that its end is seen at a moment of the test's choosing
        pending = model.send([infer()])
        os.kill(model.pid, signal.SIGKILL)
        error = pending.result()
        assert isinstance(error, ServingError)
        assert "was killed by signal 9 (SIGKILL), which may be the kernel, short of memory" in error.message
        assert not model.on_loop(model.executor.free)
        assert not model.executor.healthy()
        refused = model.fail(infer())
        assert (refused.code, "is being started again" in refused.message) == (Code.UNAVAILABLE, True)
        model.wait_free()
        assert model.executor.healthy()


def test_the_second_restart_waits_and_the_wait_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path, ECHO) as model:
        waits: list[float] = []
        later = model.executor._supervisor.call_later

        def call_later(seconds: float, callback: object) -> None:
            if callback == model.executor._restart:
                waits.append(seconds)
                seconds = 0
            later(seconds, callback)  # type: ignore[arg-type]

        monkeypatch.setattr(model.executor._supervisor, "call_later", call_later)
        for _ in range(8):
            pid = model.pid
            os.kill(pid, signal.SIGKILL)
            wait_for(lambda pid=pid: not alive(pid))  # type: ignore[misc]
            wait_for(lambda: model.executor._process is not None)
        assert waits == [0, 1, 2, 4, 8, 16, 30, 30]
        model.wait_free()
        pid = model.pid
        monkeypatch.setattr("shoal_dataplane.execution.process.STABLE_SECONDS", 0.0)
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: len(waits) == 9)
        assert waits[-1] == 0, "a process that lived long enough starts afresh"
        model.wait_free()


def test_a_batch_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    limit = 'parameters { key: "SHOAL_EXECUTE_TIMEOUT_SECONDS" value { string_value: "0.3" } }'
    with running(tmp_path, FAULTY, FP32_4 + limit) as model:
        error = model.fail(infer(id="hang"))
        assert error.message == (
            "the process of model instance 'm_0' was stopped: it took longer than 0.3 s for a batch (SHOAL_EXECUTE_TIMEOUT_SECONDS)"
        )
        model.wait_free()
        assert model.run(infer()).responses[0].error is None


@pytest.mark.parametrize("how", ["cancelled", "deadline"])
def test_a_batch_that_nobody_waits_for_any_more_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr("shoal_dataplane.execution.worker.watch.STALE_SECONDS", 0.2)
    monkeypatch.setattr("shoal_dataplane.execution.worker.watch.TICK_SECONDS", 0.05)
    with running(tmp_path, FAULTY) as model:
        gone, waiting = infer(id="hang"), infer()
        pending = model.send([gone, waiting])
        for request in (gone, waiting):
            if how == "cancelled":
                request.cancelled = True
            else:
                request.deadline_ns = model.loop.now_ns()
        error = pending.result()
        assert isinstance(error, ServingError)
        assert "still ran a batch 0.2 s after the last of its callers had gone" in error.message


def test_a_process_that_eats_memory_is_ended_and_says_so(tmp_path: Path) -> None:
    code = """
    import triton_python_backend_utils as pb_utils
    class TritonPythonModel:
        def execute(self, requests):
            hog = []
            while True:
                hog.append(bytearray(b"x" * (10 << 20)))
    """
    limit = 'parameters { key: "SHOAL_MEMORY_LIMIT_MB" value { string_value: "300" } }'
    with running(tmp_path, code, FP32_4 + limit) as model:
        error = model.fail(infer())
        assert "was stopped: it used " in error.message
        assert "its limit is 300 MB (SHOAL_MEMORY_LIMIT_MB)" in error.message
        model.wait_free()


def test_what_a_process_started_ends_with_it(tmp_path: Path) -> None:
    code = """
    import os, subprocess, sys
    import triton_python_backend_utils as pb_utils
    class TritonPythonModel:
        def execute(self, requests):
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
            with open(os.path.join(os.path.dirname(__file__), "pid"), "w") as file:
                file.write(str(child.pid))
            os._exit(0)
    """
    with running(tmp_path, code) as model:
        assert "exited with code 0" in model.fail(infer()).message
        child = int((tmp_path / "m" / "1" / "pid").read_text())
        wait_for(lambda: not alive(child) or "Z" in Path(f"/proc/{child}/stat").read_text().split()[2])


def test_a_worker_ends_with_its_server_however_that_ends(tmp_path: Path) -> None:
    code = f"""
    import pathlib, sys, time
    from tests.unit.execution.worker_models import ECHO, running
    with running(pathlib.Path({str(tmp_path)!r}), ECHO) as model:
        print(model.pid, flush=True)
        time.sleep(1000)
    """
    server = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]
    )
    assert server.stdout is not None
    with server.stdout:
        pid = int(server.stdout.readline())
        server.kill()
        server.wait()
    wait_for(lambda: not alive(pid) or "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2])


# -- loading


def start(tmp_path: Path, code: str, config: str = FP32_4) -> ServingError:
    """Start a model that cannot be loaded; nothing of it may be left."""
    loop = ThreadedLoop()
    loop.start()
    try:
        bridge = ServerBridge(loop, FakeService())
        gc.collect()
        before = open_descriptors()
        with pytest.raises(ServingError) as caught:
            ProcessExecutor.start(model_context(tmp_path, code, config), InstanceSpec("m_0", "CPU", 0), loop, bridge)
        assert open_descriptors() <= before
        return caught.value
    finally:
        loop.stop()


def test_an_initialize_that_raises_is_told_with_its_place(tmp_path: Path) -> None:
    error = start(
        tmp_path, "class TritonPythonModel:\n  def initialize(self, args):\n    raise RuntimeError('init failed')\n"
    )
    model_py = tmp_path / "m" / "1" / "model.py"
    assert error.message == f"RuntimeError: init failed\n\nAt:\n  {model_py}(3): initialize\n"
    assert error.code is Code.INTERNAL


def test_a_process_that_ends_while_it_loads_says_how(tmp_path: Path) -> None:
    error = start(tmp_path, "import os; os._exit(5)\n")
    assert error.message == "the process of model instance 'm_0' exited with code 5 while it loaded the model"


def test_a_load_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    limit = 'parameters { key: "SHOAL_LOAD_TIMEOUT_SECONDS" value { string_value: "1" } }'
    error = start(tmp_path, "import time; time.sleep(1000)\n", FP32_4 + limit)
    assert "was stopped: it took longer than 1 s to load (SHOAL_LOAD_TIMEOUT_SECONDS)" in error.message


@pytest.mark.parametrize("key", ["SHOAL_MEMORY_LIMIT_MB", "SHOAL_LOAD_TIMEOUT_SECONDS"])
@pytest.mark.parametrize("value", ["x", "0", "-1", "inf", "nan", ""])
def test_a_bound_that_is_no_positive_number_is_refused(tmp_path: Path, key: str, value: str) -> None:
    limit = f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'
    error = start(tmp_path, ECHO, FP32_4 + limit)
    assert error.code is Code.INVALID_ARGUMENT
    assert error.message == f"model 'm': parameter '{key}' must be a positive number, got '{value}'"


# -- the end


def test_close_lets_the_model_finalize_and_waits_for_the_batch_that_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    code = """
    import time
    import numpy as np
    import triton_python_backend_utils as pb_utils
    class TritonPythonModel:
        def execute(self, requests):
            time.sleep(0.3)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros((1, 4), np.float32))])]
        def finalize(self):
            print("finalized", flush=True)
    """
    with running(tmp_path, code) as model:
        pending = model.send([infer()])
        model.executor.close()
        assert not isinstance(pending.result(), ServingError)
        model.executor.close()
    assert "m_0: finalized" in caplog.text


def test_a_finalize_that_hangs_is_cut_off(tmp_path: Path) -> None:
    code = ECHO + "    def finalize(self):\n        import time\n        time.sleep(1000)\n"
    limit = 'parameters { key: "SHOAL_CLOSE_TIMEOUT_SECONDS" value { string_value: "0.5" } }'
    with running(tmp_path, code, FP32_4 + limit) as model:
        pid = model.pid
        began = time.monotonic()
        model.executor.close()
        assert time.monotonic() - began < 30
        assert not alive(pid)


def test_a_batch_that_hangs_at_close_fails(tmp_path: Path) -> None:
    limit = 'parameters { key: "SHOAL_CLOSE_TIMEOUT_SECONDS" value { string_value: "0.3" } }'
    with running(tmp_path, FAULTY, FP32_4 + limit) as model:
        pending = model.send([infer(id="hang")])
        model.executor.close()
        error = pending.result()
        assert isinstance(error, ServingError)
        assert "was stopped: it was closed" in error.message


def test_close_while_the_process_waits_to_be_started_again_starts_none(tmp_path: Path) -> None:
    with running(tmp_path, ECHO) as model:
        model.executor._failures = 5
        pid = model.pid
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: model.executor._process is None)
        began = time.monotonic()
        model.executor.close()
        assert time.monotonic() - began < 5
        assert model.executor._process is None


def test_two_models_of_the_same_module_names_do_not_meet(tmp_path: Path) -> None:
    code = """
    import numpy as np
    import triton_python_backend_utils as pb_utils
    from helper import VALUE
    class TritonPythonModel:
        def execute(self, requests):
            from late import MORE
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.full((1, 4), VALUE + MORE, np.float32))])]
    """
    with (
        running(tmp_path / "a", code, files={"helper.py": "VALUE = 1\n", "late.py": "MORE = 10\n"}) as a,
        running(tmp_path / "b", code, files={"helper.py": "VALUE = 2\n", "late.py": "MORE = 20\n"}) as b,
    ):
        assert a.echo(np.zeros((1, 4), np.float32))[0][0, 0] == 11
        assert b.echo(np.zeros((1, 4), np.float32))[0][0, 0] == 22
    assert not list(tmp_path.rglob("__pycache__")), "a model repository must stay as its owner left it"


def test_a_worker_that_sends_what_nobody_asked_for_is_ended(tmp_path: Path) -> None:
    code = """
    import socket, sys
    import numpy as np
    import triton_python_backend_utils as pb_utils
    class TritonPythonModel:
        def execute(self, requests):
            data = socket.socket(fileno=int(sys.argv[1]))
            data.sendall(b"\\xff" * 1000)
            data.detach()
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros((1, 4), np.float32))])]
    """
    with running(tmp_path, code) as model:
        assert "was stopped: it sent something malformed: not a frame" in model.fail(infer()).message
        model.wait_free()


def test_a_load_that_eats_memory_is_ended(tmp_path: Path) -> None:
    limit = 'parameters { key: "SHOAL_MEMORY_LIMIT_MB" value { string_value: "300" } }'
    error = start(tmp_path, "hog = []\nwhile True: hog.append(bytearray(b'x' * (10 << 20)))\n", FP32_4 + limit)
    assert "its limit is 300 MB (SHOAL_MEMORY_LIMIT_MB) while it loaded the model" in error.message
