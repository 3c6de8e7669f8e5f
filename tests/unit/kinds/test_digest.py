"""The digest of files and folders: the same as sha256sum's, whatever the order or place of the files."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest

from shoal_api.digest import digest


def fill(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_a_file_is_the_sha256_of_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abc")
    assert digest(tmp_path / "f") == "sha256:" + hashlib.sha256(b"abc").hexdigest()


def test_a_folder_is_what_sha256sum_prints_hashed(tmp_path: Path) -> None:
    fill(tmp_path, config_dot_pbtxt="x", **{"1__model_dot_pt": "y", "1__b__c": "z", "Z": "1", "a": "2"})
    script = "find . -type f | sed 's,^./,,' | LC_ALL=C sort | xargs sha256sum | sha256sum"
    expected = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout.split()[0]
    assert digest(tmp_path) == f"sha256:{expected}"


def test_hidden_files_and_python_caches_do_not_count(tmp_path: Path) -> None:
    clean = tmp_path / "clean"
    before = digest(fill(clean, **{"1__model_dot_py": "x"}))
    (clean / ".DS_Store").write_text("1")
    (clean / "1/__pycache__").mkdir()
    (clean / "1/__pycache__/model.pyc").write_text("x")
    assert digest(clean) == before


def test_an_adapter_is_its_two_files(tmp_path: Path) -> None:
    before = digest(fill(tmp_path, adapter_config_dot_json="{}", adapter_model_dot_safetensors="w"))
    fill(tmp_path, README_dot_md="hello", optimizer_dot_pt="x")
    assert digest(tmp_path) == before
    fill(tmp_path, adapter_model_dot_safetensors="other")
    assert digest(tmp_path) != before


@pytest.mark.parametrize("change", ["content", "name", "more", "less"])
def test_any_change_of_a_file_changes_the_digest(tmp_path: Path, change: str) -> None:
    before = digest(fill(tmp_path, a="1", b="2"))
    match change:
        case "content":
            (tmp_path / "a").write_text("3")
        case "name":
            (tmp_path / "a").rename(tmp_path / "c")
        case "more":
            (tmp_path / "c").write_text("")
        case "less":
            (tmp_path / "a").unlink()
    assert digest(tmp_path) != before


def test_links_count_by_what_they_lead_to_and_loops_end(tmp_path: Path) -> None:
    plain, linked = fill(tmp_path / "plain", a="1", d__b="2"), fill(tmp_path / "linked", a="1")
    store = fill(tmp_path / "store", b="2")
    (linked / "d").symlink_to(store)
    assert digest(plain) == digest(linked)
    (store / "again").symlink_to(store)
    assert digest(plain) == digest(linked)


def test_an_empty_folder_has_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no files"):
        digest(tmp_path)
