"""Writes model repositories. The Python models are the files of tests/protocol/models."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MODELS = Path(__file__).resolve().parents[1] / "models"


@dataclass(frozen=True)
class Tensor:
    """One input or output in a configuration. `datatype` is the wire's name; `more` is text put into its message."""

    name: str
    datatype: str = "FP32"
    dims: Sequence[int] = (4,)
    more: str = ""

    def text(self) -> str:
        kind = "STRING" if self.datatype == "BYTES" else self.datatype
        dims = ", ".join(map(str, self.dims))
        return f'  {{ name: "{self.name}" data_type: TYPE_{kind} dims: [ {dims} ] {self.more} }}'


IN = Tensor("IN")
OUT = Tensor("OUT")


def config_text(
    *,
    inputs: Iterable[Tensor] = (IN,),
    outputs: Iterable[Tensor] = (OUT,),
    max_batch_size: int = 8,
    backend: str = "python",
    more: str = "",
    parameters: Mapping[str, str] | None = None,
    execution: str = "",
) -> str:
    """A config.pbtxt. `more` is appended as it is. `execution` is where Shoal runs the model (Triton knows no such parameter): "thread"
    loads in no time, and is for tests that are not about the process of a model."""
    lines = [f'backend: "{backend}"'] if backend else []
    lines.append(f"max_batch_size: {max_batch_size}")
    for name, tensors in (("input", inputs), ("output", outputs)):
        shown = ",\n".join(tensor.text() for tensor in tensors)
        if shown:
            lines.append(f"{name} [\n{shown}\n]")
    for key, value in {**(parameters or {}), **({"SHOAL_EXECUTION": execution} if execution else {})}.items():
        lines.append(f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}')
    return "\n".join([*lines, more]) + "\n"


class Repository:
    """A folder of models."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)

    def model(
        self,
        name: str,
        source: str = "identity",
        *,
        versions: Sequence[int | str] = (1,),
        files: Mapping[str, str | bytes] | None = None,
        config: str | None = None,
        **settings: object,
    ) -> Path:
        """Write a model: `source` is a file of tests/protocol/models without .py, `settings` go to config_text unless there is a
        whole `config` ("": no config.pbtxt). `files` are more files by their path in the model's folder. Returns the folder."""
        folder = self.path / name
        folder.mkdir(exist_ok=True)
        text = config_text(**settings) if config is None else config  # type: ignore[arg-type]
        if text:
            (folder / "config.pbtxt").write_text(text)
        for version in versions:
            (folder / str(version)).mkdir(exist_ok=True)
            if source:
                shutil.copyfile(MODELS / f"{source}.py", folder / str(version) / "model.py")
        for path, content in (files or {}).items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content.encode() if isinstance(content, str) else content)
        return folder

    def touch(self, name: str) -> None:
        """Make every file of a model look changed: times of files may be as coarse as a second."""
        later = time.time() + 2
        for path in (self.path / name).rglob("*"):
            if path.is_file():
                os.utime(path, (later, later))

    def remove(self, name: str) -> None:
        """Delete a model's folder."""
        shutil.rmtree(self.path / name)
