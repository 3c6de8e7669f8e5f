"""A model's backend is found by name, and imported only when a model needs it."""

from __future__ import annotations

import importlib
import subprocess
import sys
from types import ModuleType

import pytest

from shoal_dataplane.backends.registry import backend_for
from shoal_dataplane.core.errors import Code, ServingError


@pytest.mark.parametrize(
    ("names", "filename"),
    [
        (("pytorch", "torch", "pytorch_libtorch", "libtorch", "torch_aoti"), "model.pt"),
        (("onnxruntime", "onnxruntime_onnx", "onnx"), "model.onnx"),
        (("python",), "model.py"),
    ],
)
def test_every_name_of_a_backend_gives_the_same_object(names: tuple[str, ...], filename: str) -> None:
    found = [backend_for(name) for name in names]
    assert all(backend is found[0] for backend in found)
    assert found[0].default_filename == filename


def test_an_unknown_backend_is_refused_with_the_names_that_exist() -> None:
    with pytest.raises(
        ServingError, match="unknown backend 'tensorrt'; the backends are onnxruntime, python, pytorch"
    ) as caught:
        backend_for("tensorrt")
    assert caught.value.code is Code.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("name", "package", "extra"), [("pytorch", "torch", "torch"), ("onnxruntime", "onnxruntime", "onnx")]
)
def test_a_missing_package_is_named_with_the_extra_that_brings_it(
    monkeypatch: pytest.MonkeyPatch, name: str, package: str, extra: str
) -> None:
    def missing(module: str) -> ModuleType:
        raise ModuleNotFoundError(f"No module named '{package}'", name=package)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ServingError) as caught:
        backend_for(name)
    assert caught.value.message == (
        f"backend '{name}' needs the package '{package}', which is not installed: pip install 'shoal[{extra}]'"
    )
    assert caught.value.code is Code.FAILED_PRECONDITION


def test_a_package_that_is_there_but_broken_is_not_called_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(module: str) -> ModuleType:
        raise ImportError("libcudart.so.13: cannot open shared object file")

    monkeypatch.setattr(importlib, "import_module", broken)
    with pytest.raises(ServingError, match=r"backend 'pytorch' cannot be imported: libcudart\.so"):
        backend_for("pytorch")


@pytest.mark.parametrize(
    ("name", "absent"),
    [("onnxruntime", ("torch", "onnx")), ("python", ("torch", "onnxruntime")), ("pytorch", ("onnxruntime", "sympy"))],
)
def test_a_backend_brings_no_other_framework(name: str, absent: tuple[str, ...]) -> None:
    code = (
        "import sys; from shoal_dataplane.backends.registry import backend_for\n"
        f"assert not {{'torch', 'onnxruntime'}} & set(sys.modules), 'before'\n"
        f"backend_for({name!r})\n"
        f"found = set({absent!r}) & set(sys.modules)\n"
        "assert not found, found"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)
