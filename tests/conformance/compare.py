"""Print the differences between two runs of tests/protocol as a table.

    compare.py TRITON.xml SHOAL.xml

Each test says which differences it is about: rows of docs/reference/differences.md. Exits with 1 when a test failed on either side.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

WORDS = {
    "passed": "as expected of it",
    "differs": "does otherwise",
    "skipped": "not tried",
    "failed": "FAILED",
}


@dataclass
class Run:
    """What one run found: outcomes by difference, failures, and how many tests there were of each outcome."""

    by_difference: dict[str, Counter[str]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)


def outcome(case: ET.Element) -> str:
    """How one test ended. `differs` is a test that failed as the documentation says."""
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    skipped = case.find("skipped")
    if skipped is None:
        return "passed"
    return "differs" if skipped.get("type") == "pytest.xfail" else "skipped"


def read(path: Path) -> Run:
    """Read a JUnit report of pytest."""
    run = Run()
    for case in ET.parse(path).iter("testcase"):
        found = outcome(case)
        run.outcomes[found] += 1
        if found == "failed":
            run.failures.append(f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}")
        for item in case.iter("property"):
            if item.get("name") == "differs":
                run.by_difference.setdefault(str(item.get("value")), Counter())[found] += 1
    return run


def shown(counts: Counter[str] | None) -> str:
    return ", ".join(f"{count} {WORDS[word]}" for word, count in sorted((counts or {}).items()))


def main() -> int:
    triton, shoal = (read(Path(argument)) for argument in sys.argv[1:3])
    rows = [("difference", "Triton", "Shoal")]
    for name in sorted(triton.by_difference.keys() | shoal.by_difference.keys()):
        rows.append((name, shown(triton.by_difference.get(name)), shown(shoal.by_difference.get(name))))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for number, row in enumerate(rows):
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
        if number == 0:
            print("  ".join("-" * width for width in widths))
    same = min(triton.outcomes["passed"], shoal.outcomes["passed"])
    print(
        f"\n{same} tests passed on both; {len(rows) - 1} differences, each explained in docs/reference/differences.md."
    )
    for name, run in (("Triton", triton), ("Shoal", shoal)):
        for failure in run.failures:
            print(f"FAILED on {name}: {failure}")
    return 1 if triton.failures or shoal.failures else 0


if __name__ == "__main__":
    sys.exit(main())
