"""auto_complete_config: what it may set, what it may not, and that it harms nothing but its own load."""

from __future__ import annotations

import logging
import sys
import textwrap
from pathlib import Path

import pytest
from google.protobuf import text_format

from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.backends.python import complete as python_complete
from shoal_dataplane.backends.python.backend import BACKEND
from shoal_dataplane.backends.python.pb_utils import MODULE_NAMES
from shoal_dataplane.core.errors import Code, ServingError
from tests.unit.execution.worker_models import open_descriptors

IN = "c.add_input({'name': 'IN', 'data_type': 'TYPE_FP32', 'dims': [4, -1]})"
OUT = "c.add_output({'name': 'OUT', 'data_type': 'TYPE_STRING', 'dims': [1]})"


def complete(folder: Path, body: str, config: str = "") -> mc.ModelConfig:
    """Complete a configuration by a model whose auto_complete_config has this body."""
    code = f"""
    import triton_python_backend_utils as pb_utils
    class TritonPythonModel:
        @staticmethod
        def auto_complete_config(c):
            {body}
            return c
        def execute(self, requests):
            pass
    """
    return complete_file(folder, textwrap.dedent(code), config)


def complete_file(folder: Path, code: str, config: str = "") -> mc.ModelConfig:
    (folder / "model.py").write_text(code)
    parsed = text_format.Parse(f'name: "m" backend: "python" {config}', mc.ModelConfig())
    BACKEND.auto_complete(parsed, folder, {})
    return parsed


def refused(folder: Path, body: str, config: str = "") -> ServingError:
    with pytest.raises(ServingError) as caught:
        complete(folder, body, config)
    return caught.value


def test_a_model_completes_what_is_open_and_the_rest_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    body = f"{IN}; {OUT}; c.set_max_batch_size(4); c.set_dynamic_batching(); print('hello'); pb_utils.Logger.log_warn('careful')"
    given = 'input { name: "IN" reshape { shape: [ -1, 4 ] } } parameters { key: "k" value { string_value: "v" } }'
    before = open_descriptors()
    completed = complete(tmp_path, body, given)
    assert open_descriptors() <= before
    expected = """
    name: "m" backend: "python" max_batch_size: 4 dynamic_batching { }
    input { name: "IN" data_type: TYPE_FP32 dims: [ 4, -1 ] reshape { shape: [ -1, 4 ] } }
    output { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] }
    parameters { key: "k" value { string_value: "v" } }
    """
    assert completed == text_format.Parse(expected, mc.ModelConfig())
    assert "model 'm', auto_complete_config: hello" in caplog.text
    assert "careful" in caplog.text
    assert not list(tmp_path.rglob("__pycache__"))


def test_a_model_sees_the_configuration_in_tritons_form(tmp_path: Path) -> None:
    body = """d = c.as_dict()
            assert d["name"] == "m" and d["max_batch_size"] == 2 and d["output"] == [], d
            assert d["input"][0]["dims"] == [3] and d["input"][0]["data_type"] == "TYPE_INT64", d
            assert d["parameters"] == {"k": {"string_value": "v"}}, d"""
    config = 'max_batch_size: 2 input { name: "IN" data_type: TYPE_INT64 dims: [ 3 ] } parameters { key: "k" value { string_value: "v" } }'
    complete(tmp_path, body, config)


@pytest.mark.parametrize(
    ("body", "config", "text"),
    [
        (
            "c.set_max_batch_size(4)",
            "max_batch_size: 8",
            "configuration specified max_batch_size 8, but in auto-complete-config function for model 'm' specified max_batch_size 4",
        ),
        (
            IN,
            'input { name: "IN" data_type: TYPE_INT8 dims: [ 4, -1 ] }',
            "unable to load model 'm', configuration expects datatype TYPE_INT8 for input 'IN', model provides TYPE_FP32",
        ),
        (
            IN,
            'input { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] }',
            "model 'm', tensor 'IN': the model expects dims [4, -1] but the model configuration specifies dims [4]",
        ),
        (
            "c.add_input({'name': 'A', 'data_type': 'TYPE_FP32', 'dims': [1], 'x': 1})",
            "",
            "input 'A' in auto-complete-config function for model 'm' contains property other than "
            "'name', 'data_type', 'dims' and 'optional'.",
        ),
        (
            "c.add_output({'name': 'A', 'data_type': 'TYPE_FP32'})",
            "",
            "output 'A' in auto-complete-config function for model 'm' is missing 'dims' property.",
        ),
        (
            "c.add_output({'dims': [1]})",
            "",
            "output in auto-complete-config function for model 'm' is missing 'name' property.",
        ),
        (
            "c.set_dynamic_batching()",
            "sequence_batching { }",
            "Configuration specified scheduling_choice as 'sequence_batching', but auto-complete-config function for model 'm' "
            "tries to set scheduling_choice as 'dynamic_batching'",
        ),
        (
            "c.set_model_transaction_policy({'x': 1})",
            "",
            "model transaction property in auto-complete-config function for model 'm' contains property other than 'decoupled'.",
        ),
        (
            "c.add_input({'name': 'A', 'data_type': 'TYPE_FLOAT', 'dims': [1]})",
            "",
            "auto_complete_config of model 'm' set something invalid: ",
        ),
        (
            "c.add_input({'name': 'A', 'data_type': 'TYPE_FP32', 'dims': ['x']})",
            "",
            "auto_complete_config of model 'm' set something invalid: ",
        ),
    ],
)
def test_a_contradiction_is_refused_in_tritons_words(tmp_path: Path, body: str, config: str, text: str) -> None:
    error = refused(tmp_path, body, config)
    assert error.code is Code.INVALID_ARGUMENT
    assert error.message.startswith(text)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("return 5", "auto_complete_config function in model 'm' must return a valid pb.ModelConfig object."),
        ("raise RuntimeError('x')", "RuntimeError: x\n\nAt:\n  {path}(6): auto_complete_config\n"),
        (
            "import os; os._exit(3)",
            "the process that ran auto_complete_config of model 'm' exited with code 3; its output is in the log",
        ),
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
            "the process that ran auto_complete_config of model 'm' was killed by signal 9; its output is in the log",
        ),
        ("import sys; sys.exit(1)", "SystemExit: 1\n\nAt:\n  {path}(6): auto_complete_config\n"),
        (
            "pb_utils.load_model('x')",
            "TritonModelException: Failed to load model: in auto_complete_config a model can log",
        ),
    ],
)
def test_whatever_it_does_is_told_and_ends_with_its_process(tmp_path: Path, body: str, text: str) -> None:
    error = refused(tmp_path, body)
    assert error.code is Code.INTERNAL
    assert error.message.startswith(text.format(path=tmp_path / "model.py"))


def test_one_that_hangs_is_cut_off(tmp_path: Path) -> None:
    limit = 'parameters { key: "SHOAL_LOAD_TIMEOUT_SECONDS" value { string_value: "1.5" } }'
    error = refused(tmp_path, "import time; time.sleep(1000)", limit)
    assert error.message == "auto_complete_config of model 'm' took longer than 1.5 s (SHOAL_LOAD_TIMEOUT_SECONDS)"


def test_a_model_that_cannot_be_imported_says_so(tmp_path: Path) -> None:
    with pytest.raises(ServingError, match="SyntaxError"):
        complete_file(tmp_path, "def auto_complete_config(:\n")


@pytest.mark.parametrize(
    ("code", "may"),
    [
        ("class TritonPythonModel:\n    def execute(self, requests): ...\n", False),
        ("class TritonPythonModel:\n    @staticmethod\n    def auto_complete_config(c): ...\n", True),
        ("from base import Base\nclass TritonPythonModel(Base):\n    pass\n", True),
        ("import base\n@base.decorate\nclass TritonPythonModel:\n    pass\n", True),
        ("from other import TritonPythonModel\n", True),
        ("class TritonPythonModel(\n", True),
    ],
)
def test_a_process_is_started_only_for_a_model_that_may_define_it(tmp_path: Path, code: str, may: bool) -> None:
    (tmp_path / "model.py").write_text(code)
    assert python_complete.defines_auto_complete(tmp_path / "model.py") is may


def test_the_servers_process_never_sees_the_module(tmp_path: Path) -> None:
    complete(tmp_path, OUT)
    assert not set(MODULE_NAMES) & set(sys.modules)
