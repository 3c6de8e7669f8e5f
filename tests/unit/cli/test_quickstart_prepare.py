"""Where the quickstart's manifests and models are put."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal_cli.fetch.store import FetchError
from shoal_cli.quickstart import prepare


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As installed from a wheel: no checkout, the manifests beside the code."""
    package = tmp_path / "package"
    for name in ("minilm.yaml", "embed/model.py", "data/cat.jpg"):
        (package / "manifests" / name).parent.mkdir(parents=True, exist_ok=True)
        (package / "manifests" / name).write_text(name)
    monkeypatch.setattr(prepare, "CHECKOUT", tmp_path / "no/checkout")
    monkeypatch.setattr(prepare, "_HERE", package)
    return package


def test_a_checkouts_own_manifests_are_served(tmp_path: Path) -> None:
    assert prepare.manifests(tmp_path) == prepare.CHECKOUT
    assert list(tmp_path.iterdir()) == []


def test_an_installed_package_serves_a_copy_from_the_cache(tmp_path: Path, installed: Path) -> None:
    folder = prepare.manifests(tmp_path / "cache")
    assert folder.is_relative_to(tmp_path / "cache")
    assert (folder / "embed/model.py").read_text() == "embed/model.py"
    assert prepare.manifests(tmp_path / "cache") == folder


def test_another_version_of_the_package_gets_a_copy_of_its_own(tmp_path: Path, installed: Path) -> None:
    before = prepare.manifests(tmp_path / "cache")
    (before / "models").mkdir()
    (installed / "manifests/minilm.yaml").write_text("changed")
    after = prepare.manifests(tmp_path / "cache")
    assert after != before
    assert (after / "minilm.yaml").read_text() == "changed"


def test_the_link_to_the_models_follows_the_newest(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        assert prepare.link(tmp_path / "models", tmp_path / name).readlink() == tmp_path / name
    assert sorted(path.name for path in tmp_path.iterdir()) == ["models", "new", "old"]


def test_a_folder_of_the_users_own_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    with pytest.raises(FetchError, match="is in the way"):
        prepare.link(tmp_path / "models", tmp_path / "new")
