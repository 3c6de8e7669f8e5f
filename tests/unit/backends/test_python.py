"""A model.py in the server's own process (SHOAL_EXECUTION inline or thread): loading, neighbours, asking other models."""

from __future__ import annotations

import gc
import logging
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from shoal_dataplane.backends.base import Instance, InstanceSpec
from shoal_dataplane.backends.python.backend import BACKEND
from shoal_dataplane.backends.python.pb_utils import MODULE_NAMES
from shoal_dataplane.core.errors import Code, ServingError
from shoal_dataplane.core.loop import ThreadedLoop
from shoal_dataplane.execution.bridge import ServerBridge
from tests.unit.execution.worker_models import ECHO, FP32_4, FakeService, infer, model_context, vector, wait_for

NAMED = InstanceSpec("m_0", "CPU", 0)


@pytest.fixture(autouse=True)
def leave_no_module() -> Iterator[None]:
    """Nothing of a model's world stays for the tests that run in this process after it."""
    before, path = set(sys.modules), list(sys.path)
    yield
    assert sys.path == path
    for name in MODULE_NAMES:
        sys.modules.pop(name, None)
    assert not [name for name in set(sys.modules) - before if name.startswith("shoal_python_model")]


def load(folder: Path, code: str, config: str = FP32_4, files: dict[str, str] | None = None) -> Instance:
    return BACKEND.load(model_context(folder, code, config, files), NAMED)


def refused(folder: Path, code: str, config: str = FP32_4) -> ServingError:
    with pytest.raises(ServingError) as caught:
        load(folder, code, config)
    return caught.value


def test_it_runs_in_a_process_of_its_own_unless_told_otherwise() -> None:
    assert (BACKEND.default_execution, BACKEND.default_filename) == ("process", "model.py")


def test_a_batch_comes_back_and_inputs_off_the_wire_can_be_written(tmp_path: Path) -> None:
    code = ECHO.replace(".as_numpy())])", ".as_numpy())])").replace(
        "def execute(self, requests):\n",
        """def execute(self, requests):
        for r in requests:
            pb_utils.get_input_tensor_by_name(r, "IN").as_numpy()[:] *= 2
""",
    )
    model = load(tmp_path, code)
    batch = [infer(np.full((n, 4), n, np.float32)) for n in (1, 2)]
    execution = model.execute(batch)
    for n, response in zip((1, 2), execution.responses, strict=True):
        np.testing.assert_array_equal(response.outputs[0].array(), np.full((n, 4), 2 * n))
    assert bytes(batch[0].inputs["IN"].buffer()) == np.full((1, 4), 1, np.float32).tobytes(), (
        "the message is not the model's"
    )
    assert min(execution.input_ns, execution.infer_ns, execution.output_ns) >= 0
    model.close()


def test_neighbours_keep_their_siblings_apart(tmp_path: Path) -> None:
    code = """
    import numpy as np
    import triton_python_backend_utils as pb_utils
    import helper
    from . import inner
    class TritonPythonModel:
        def execute(self, requests):
            value = helper.VALUE + inner.VALUE
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.full((1, 4), value, np.float32))]) for r in requests]
    """
    models = [
        load(tmp_path / str(n), code, files={"helper.py": f"VALUE = {n}\n", "inner.py": f"VALUE = {10 * n}\n"})
        for n in (1, 2)
    ]
    values = [model.execute([infer()]).responses[0].outputs[0].array()[0, 0] for model in models]
    assert values == [11, 22]
    assert "helper" not in sys.modules
    assert not list(tmp_path.rglob("__pycache__"))
    for model in models:
        model.close()


def test_a_closed_model_is_freed(tmp_path: Path) -> None:
    model = load(tmp_path, ECHO + "    def finalize(self):\n        raise ValueError('late')\n")
    kept = weakref.ref(model._model)  # type: ignore[attr-defined]
    model.close()
    del model
    gc.collect()
    assert kept() is None


def test_a_finalize_that_raises_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    load(tmp_path, ECHO + "    def finalize(self):\n        raise ValueError('late')\n").close()
    assert "finalize of model instance 'm_0' failed: ValueError: late" in caplog.text


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (
            "import no_such_module\n",
            "ModuleNotFoundError: No module named 'no_such_module'\n\nAt:\n  {path}(1): <module>\n",
        ),
        ("class TritonPythonModel\n", "SyntaxError: expected ':' (model.py, line 1)\n\nAt:\n  {path}(1)\n"),
        ("class Other: pass\n", "the Python model '{path}' does not define the class TritonPythonModel"),
        ("class TritonPythonModel: pass\n", "Python model 'm' does not implement `execute` method."),
        ("import sys; sys.exit('no')\n", "SystemExit: no\n\nAt:\n  {path}(1): <module>\n"),
        (
            "def f():\n    raise OSError(2, 'gone')\nclass TritonPythonModel:\n    def initialize(self, args):\n        f()\n",
            "FileNotFoundError: [Errno 2] gone\n\nAt:\n  {path}(2): f\n  {path}(5): initialize\n",
        ),
        (
            "class TritonPythonModel:\n    def initialize(self, args):\n        raise ValueError('x' * 10_000)\n",
            "ValueError: " + "x" * 4096 + "... (10000 characters)\n\nAt:\n  {path}(3): initialize\n",
        ),
    ],
)
def test_a_model_that_cannot_be_loaded_says_why_and_where(tmp_path: Path, code: str, text: str) -> None:
    assert refused(tmp_path, code).message == text.format(path=tmp_path / "m" / "1" / "model.py")


@pytest.mark.parametrize(
    ("config", "text", "code"),
    [
        (
            'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "/x.tar.gz" } }',
            "model 'm': parameter EXECUTION_ENV_PATH ('/x.tar.gz') names a packed Python environment, which is not supported",
            Code.UNIMPLEMENTED,
        ),
        (
            'parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "x" } }',
            "Incorrect value for FORCE_CPU_ONLY_INPUT_TENSORS: 'x'",
            Code.INVALID_ARGUMENT,
        ),
        ("model_transaction_policy { decoupled: true }", "model 'm' is decoupled", Code.UNIMPLEMENTED),
        ('default_model_filename: "other.py"', "unable to find", Code.UNAVAILABLE),
        ('default_model_filename: "model.txt"', "Model name must end with '.py'", Code.INVALID_ARGUMENT),
    ],
)
def test_what_this_backend_does_not_do_is_refused_at_load(tmp_path: Path, config: str, text: str, code: Code) -> None:
    folder = tmp_path / "m" / "1"
    folder.mkdir(parents=True)
    (folder / "model.txt").write_text(ECHO)
    error = refused(tmp_path, ECHO, FP32_4 + config)
    assert text in error.message
    assert error.code is code


@pytest.mark.parametrize("value", ["yes", "no"])
def test_inputs_are_in_host_memory_whatever_is_asked_for(tmp_path: Path, value: str) -> None:
    load(
        tmp_path,
        ECHO,
        FP32_4 + f'parameters {{ key: "FORCE_CPU_ONLY_INPUT_TENSORS" value {{ string_value: "{value}" }} }}',
    ).close()


@pytest.mark.parametrize(
    ("array", "text"),
    [
        ("np.array([['a', 'é', '']])", b"a,\xc3\xa9,"),
        ("np.array([[b'a', 'b', 3]], object)", b"a,b,3"),
        ("np.array([[b'a', b'bc', b'']])", b"a,bc,"),
    ],
)
def test_strings_of_any_kind_become_bytes(tmp_path: Path, array: str, text: bytes) -> None:
    code = f"""
    import numpy as np
    import triton_python_backend_utils as pb_utils
    class TritonPythonModel:
        def execute(self, requests):
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", {array})])]
    """
    config = FP32_4.replace('"OUT" data_type: TYPE_FP32 dims: [ 4 ]', '"OUT" data_type: TYPE_STRING dims: [ 3 ]')
    model = load(tmp_path, code, config)
    (response,) = model.execute([infer()]).responses
    assert b",".join(response.outputs[0].array()[0]) == text
    model.close()


@pytest.mark.parametrize(
    "array", ["np.arange(8, dtype=np.float32).reshape(4, 2).T[:1]", "np.array([[0, 2, 4, 6]], '>f4')"]
)
def test_an_output_may_lie_in_memory_as_it_likes(tmp_path: Path, array: str) -> None:
    code = f"""
    import numpy as np
    import triton_python_backend_utils as pb_utils
    class TritonPythonModel:
        def execute(self, requests):
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", {array})])]
    """
    model = load(tmp_path, code)
    (response,) = model.execute([infer()]).responses
    assert bytes(response.outputs[0].buffer()) == np.array([0, 2, 4, 6], np.float32).tobytes()
    model.close()


def test_a_string_that_is_no_utf8_fails_its_request(tmp_path: Path) -> None:
    code = """
    import numpy as np
    import triton_python_backend_utils as pb_utils
    class TritonPythonModel:
        def execute(self, requests):
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(["\\ud800"], object))])]
    """
    model = load(
        tmp_path,
        code,
        'input { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] } output { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] }',
    )
    (response,) = model.execute([infer(np.zeros(1, np.float32))]).responses
    assert response.error is not None
    assert "output 'OUT' holds a string that is no UTF-8" in response.error.message
    model.close()


def test_bf16_outputs_may_be_given_as_bits(tmp_path: Path) -> None:
    code = """
    import numpy as np
    import triton_python_backend_utils as pb_utils
    class TritonPythonModel:
        def execute(self, requests):
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([0x3F80], np.uint16))])]
    """
    model = load(tmp_path, code, vector("TYPE_BF16"))
    (response,) = model.execute([infer(np.zeros(1, np.uint16))]).responses
    assert response.error is None
    assert (response.outputs[0].datatype, bytes(response.outputs[0].buffer())) == ("BF16", b"\x80\x3f")
    model.close()


# -- asking other models, in this process

ASKS = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        out = []
        for r in requests:
            ask = pb_utils.InferenceRequest(model_name="double", requested_output_names=["OUT"], inputs=r.inputs())
            answer = ask.exec()
            out.append(pb_utils.InferenceResponse([pb_utils.get_output_tensor_by_name(answer, "OUT")]))
        pb_utils.Logger.log_info("asked")
        return out
"""


def test_a_model_on_a_thread_asks_another(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    loop = ThreadedLoop()
    loop.start()
    ServerBridge(loop, FakeService())
    model = load(tmp_path, ASKS)
    (response,) = model.execute([infer()]).responses
    np.testing.assert_array_equal(response.outputs[0].array(), [[0, 2, 4, 6]])
    assert "asked" in caplog.text
    model.close()
    loop.stop()


def test_a_model_on_the_loop_may_not_wait_for_another(tmp_path: Path) -> None:
    loop = ThreadedLoop()
    loop.start()
    ServerBridge(loop, FakeService())
    model = load(tmp_path, ASKS)
    errors: list[ServingError] = []
    done = threading.Event()

    def run() -> None:
        try:
            model.execute([infer()])
        except ServingError as error:
            errors.append(error)
        done.set()

    loop.post(run)
    assert done.wait(30)
    assert 'Set the model\'s parameter SHOAL_EXECUTION to "thread" or "process"' in errors[0].message
    model.close()
    loop.stop()


def test_an_async_model_on_a_thread_leaves_no_thread_behind(tmp_path: Path) -> None:
    code = ECHO.replace("    def execute", "    async def execute").replace(
        "return [", "import asyncio\n        self.task = asyncio.ensure_future(asyncio.sleep(1000))\n        return ["
    )
    before = set(threading.enumerate())
    model = load(tmp_path, code)
    assert model.execute([infer()]).responses[0].error is None
    model.close()
    wait_for(lambda: set(threading.enumerate()) <= before)
