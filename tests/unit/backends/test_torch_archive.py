"""A file is what it holds: each kind is recognised, and what cannot be served is named for what it is."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest
import torch

from shoal_dataplane.backends.pytorch.archive import ArchiveKind, archive_kind
from shoal_dataplane.backends.pytorch.backend import BACKEND
from shoal_dataplane.core.errors import Code, ServingError
from tests.unit.backends.loading import load
from tests.unit.backends.torch_models import Mlp, export, script

TEXT = (
    'input { name: "x" data_type: TYPE_FP32 dims: [ 4, 8 ] } output { name: "y" data_type: TYPE_FP32 dims: [ 4, 3 ] }'
)


def _archive(**members: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in members.items():
            archive.writestr(name.replace("__", "/"), content)
    return buffer.getvalue()


def test_scripts_and_exports_are_told_apart_whatever_their_name(tmp_path: Path) -> None:
    script(tmp_path, Mlp(), "model.pt2")
    assert archive_kind("m", tmp_path / "model.pt2") is ArchiveKind.TORCHSCRIPT
    export(tmp_path, Mlp(), torch.zeros(4, 8))
    assert archive_kind("m", tmp_path / "model.pt2") is ArchiveKind.EXPORT
    packaged = tmp_path / "packaged.pt2"
    packaged.write_bytes(_archive(**{"net__data__aotinductor__model__x.so": ""}))
    assert archive_kind("m", packaged) is ArchiveKind.AOT_INDUCTOR


@pytest.mark.parametrize("what", ["weights", "module"])
def test_a_file_of_torch_save_is_named_with_what_to_do(tmp_path: Path, what: str) -> None:
    torch.save(Mlp().state_dict() if what == "weights" else Mlp(), tmp_path / "model.pt")
    with pytest.raises(ServingError, match=r"was written by torch.save .*; save it with torch.jit.script") as caught:
        load(BACKEND, tmp_path, TEXT)
    assert caught.value.code is Code.INTERNAL
    assert str(tmp_path / "model.pt") in caught.value.message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a TorchScript or torch.export archive (0 bytes, starting with b'')"),
        (b"\x80\x02}q\x00." * 9, "not a TorchScript or torch.export archive (54 bytes, starting with "),
        (_archive(readme="hello"), "the zip archive is neither TorchScript, torch.export nor AOTInductor (it holds readme)"),
        (_archive(), "(it holds nothing)"),
        ("truncated script", "the archive is truncated or damaged ("),
        ("damaged script", "failed to load model 'm' from "),
        ("damaged export", "failed to load model 'm' from "),
    ],
)  # fmt: skip
def test_a_corrupt_file_is_named(tmp_path: Path, content: bytes | str, message: str) -> None:
    path = tmp_path / ("model.pt2" if content == "damaged export" else "model.pt")
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content == "damaged export":
        export(tmp_path, Mlp(), torch.zeros(4, 8))
        _damage(path, "models/model.json")
    elif content == "damaged script":
        script(tmp_path, Mlp())
        _damage(path, "constants.pkl")
    else:
        script(tmp_path, Mlp())
        path.write_bytes(path.read_bytes()[:-300])
    with pytest.raises(ServingError) as caught:
        load(BACKEND, tmp_path, TEXT)
    assert caught.value.code is Code.INTERNAL
    assert message in caught.value.message
    assert str(path) in caught.value.message
    assert "\n" not in caught.value.message


def _damage(path: Path, member: str) -> None:
    """Replace the content of one member of an archive."""
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in content.items():
            archive.writestr(name, b"garbage" if name.endswith(member) else data)


def test_a_missing_file_is_named_with_what_is_there_instead(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").touch()
    with pytest.raises(ServingError) as caught:
        load(BACKEND, tmp_path, TEXT)
    assert caught.value.code is Code.UNAVAILABLE
    assert caught.value.message == (
        f"unable to find '{tmp_path}/model.pt' or '{tmp_path}/model.pt2' for model 'm'; the version folder holds weights.bin"
    )
