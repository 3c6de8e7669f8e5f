"""AOTInductor packages, which are machine code: what they take is found out by trying, before a request does."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.export import Dim

from shoal_dataplane.backends.base import InstanceSpec
from shoal_dataplane.backends.pytorch.backend import BACKEND
from shoal_dataplane.core.errors import Code, ServingError
from tests.unit.backends.loading import completed, load, ramp, request, run, run_one

pytestmark = [
    pytest.mark.soak,  # half a minute of C++ compiler
    pytest.mark.skipif(shutil.which("g++") is None, reason="AOTInductor compiles C++"),
    pytest.mark.timeout(600),
]


class Scale(torch.nn.Module):
    """x [n, 4] and a keyword factor [n, 4] -> {"product": x * factor}."""

    def forward(self, x: torch.Tensor, *, factor: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"product": x * factor}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a package with a free first size, compiled once."""
    folder = tmp_path_factory.mktemp("aoti") / "1"
    folder.mkdir()
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("inductor")))
        warnings.simplefilter("ignore")
        program = torch.export.export(
            Scale(),
            (torch.zeros(3, 4),),
            {"factor": torch.zeros(3, 4)},
            dynamic_shapes={"x": {0: Dim.DYNAMIC}, "factor": {0: Dim.DYNAMIC}},
        )
        torch._inductor.aoti_compile_and_package(program, package_path=str(folder / "model.pt2"))
    return folder


def text(x: str = "x", factor: str = "factor", product: str = "product", *, batch: int = 8, dims: str = "4") -> str:
    return (
        f"max_batch_size: {batch} "
        f'input {{ name: "{x}" data_type: TYPE_FP32 dims: [ {dims} ] }} '
        f'input {{ name: "{factor}" data_type: TYPE_FP32 dims: [ {dims} ] }} '
        f'output {{ name: "{product}" data_type: TYPE_FP32 dims: [ {dims} ] }}'
    )


def test_a_package_is_served_and_held_to_the_shapes_it_was_compiled_for(package: Path) -> None:
    for names in (
        ("x", "factor", "product"),
        ("ARGS[0]", "KWARGS[factor]", "RESULT[product]"),
        ("INPUT__0", "INPUT__1", "OUTPUT__0"),
    ):
        instance = load(BACKEND, package, text(*names))
        parts = [ramp((rows, 4)) * rows for rows in (1, 3)]
        found = run(instance, *(request({names[0]: part, names[1]: part + 1}) for part in parts))
        for part, answer in zip(parts, found, strict=True):
            np.testing.assert_array_equal(answer[names[2]], part * (part + 1))
        instance.close()
    wrong_size = text(dims="5")
    wrong_type = text().replace("FP32", "FP64")
    full_shape = text(batch=0, dims="-1, 4")
    for wrong in (wrong_size, wrong_type):
        with pytest.raises(
            ServingError, match="its compiled code does not take inputs of the configured datatypes and shapes"
        ) as caught:
            load(BACKEND, package, wrong)
        assert caught.value.code is Code.INVALID_ARGUMENT
    assert run_one(load(BACKEND, package, full_shape), x=ramp((5, 4)), factor=ramp((5, 4)))["product"].shape == (5, 4)
    with pytest.raises(
        ServingError, match=r"an AOTInductor file holds neither datatypes nor shapes.*\(ARGS\[0\], .*factor\) -> "
    ):
        completed(BACKEND, package)
    if torch.cuda.is_available():
        with pytest.raises(ServingError, match="it was compiled for cpu, its instance is on cuda"):
            load(BACKEND, package, text(), InstanceSpec("m_0", "GPU", 0))
