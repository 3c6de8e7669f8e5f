"""docs/reference/differences.md and the tests speak of the same differences."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.protocol.harness.targets import ROOT

HERE = Path(__file__).parent
DOCUMENT = ROOT / "docs" / "reference" / "differences.md"


def asserted() -> Iterator[str]:
    """The ids in the tests: first arguments of pytest.mark.differs(...) and target.pick(...)."""
    for path in HERE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in ("differs", "pick")
            ):
                argument = node.args[0]
                assert isinstance(argument, ast.Constant), f"{path.name}:{node.lineno}: the id must be written out"
                yield str(argument.value)


def documented() -> list[str]:
    """The ids in the document: the first column of its tables."""
    return re.findall(r"^\| `([a-z0-9-]+)` \|", DOCUMENT.read_text(), re.MULTILINE)


def test_every_difference_that_a_test_asserts_is_documented() -> None:
    assert set(asserted()) - set(documented()) == set()


def test_every_difference_that_is_documented_is_asserted() -> None:
    assert set(documented()) - set(asserted()) == set()


def test_every_difference_has_one_row_with_its_reason() -> None:
    ids = documented()
    assert len(ids) == len(set(ids))
    for line in DOCUMENT.read_text().splitlines():
        if line.startswith("| `"):
            columns = [column.strip() for column in line.strip("|").split("|")]
            assert len(columns) == 4, line
            assert all(columns), f"an empty column: {line}"
