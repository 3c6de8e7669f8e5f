"""The manifests that users start from can be read and planned."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal_api.kinds import load_manifests
from shoal_operator.tables import LocalPath, plan_model

ROOT = Path(__file__).parents[3] / "manifests"
FILES = sorted(
    file
    for folder in ("quickstart", "samples")
    for file in (ROOT / folder).rglob("*.yaml")
    if "models" not in file.parts
)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_a_shipped_manifest_can_be_planned(file: Path) -> None:
    for model, origin in load_manifests([file]):
        assert plan_model(model, origin.file.parent).name == model.served_name


def test_the_quickstart_asks_for_the_folders_that_it_makes() -> None:
    from shoal_cli.quickstart.prepare import MODELS

    entries = [plan_model(m.model, m.origin.file.parent) for m in load_manifests([ROOT / "quickstart"])]
    assert {e.name: e.source for e in entries} == {
        name: LocalPath(ROOT / "quickstart/models" / name) for name in MODELS
    }
