"""The cache: an entry is whole or absent, whatever happens while it is made."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from shoal_cli.fetch.store import FetchError, cache_root, ensure_folder


def complete(folder: Path) -> bool:
    return (folder / "done").is_file()


def make(folder: Path) -> None:
    (folder / "done").write_text("x")


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if not p.name.endswith(".lock"))


def test_it_is_made_once(tmp_path: Path) -> None:
    assert ensure_folder(tmp_path / "a", complete, make)
    assert not ensure_folder(tmp_path / "a", complete, lambda folder: pytest.fail("made twice"))
    assert names(tmp_path) == ["a"]


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        ensure_folder(tmp_path / "a", complete, fail)
    assert names(tmp_path) == []


def test_a_full_disk_is_a_fetch_error(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(FetchError, match=r"a cannot be made: .*No space left on device"):
        ensure_folder(tmp_path / "a", complete, fail)


def test_what_a_killed_process_left_is_replaced(tmp_path: Path) -> None:
    (tmp_path / ".a.new-1").mkdir()
    (tmp_path / "a").mkdir()
    (tmp_path / "a/half").write_text("x")
    assert ensure_folder(tmp_path / "a", complete, make)
    assert names(tmp_path) == ["a"]
    assert names(tmp_path / "a") == ["done"]


def test_a_second_maker_waits_and_finds_the_work_done(tmp_path: Path) -> None:
    entered, go_on = threading.Event(), threading.Event()
    made: list[str] = []

    def slow(folder: Path) -> None:
        entered.set()
        assert go_on.wait(10)
        make(folder)
        made.append("slow")

    first = threading.Thread(target=ensure_folder, args=(tmp_path / "a", complete, slow))
    first.start()
    assert entered.wait(10)
    second = threading.Thread(
        target=ensure_folder, args=(tmp_path / "a", complete, lambda folder: made.append("second"))
    )
    second.start()
    assert not complete(tmp_path / "a")
    go_on.set()
    first.join(10)
    second.join(10)
    assert made == ["slow"]
    assert complete(tmp_path / "a")


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"SHOAL_CACHE": "/own", "XDG_CACHE_HOME": "/shared"}, "/own"),
        ({"XDG_CACHE_HOME": "/shared"}, "/shared/shoal"),
        ({"HOME": "/home/me"}, "/home/me/.cache/shoal"),
    ],
)
def test_the_cache_is_where_the_user_says(
    variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SHOAL_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cache_root() == Path(expected)
