"""What is wrong with a manifest, and where: file, document, line, field."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

FieldPath = tuple[str | int, ...]
"""Steps from the document's root: a key of a mapping, or an index of a list."""


def dotted(path: FieldPath) -> str:
    """Write a path as people do: ("spec", "inputs", 0, "dims") is "spec.inputs[0].dims"."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an object was written. `document` counts from 1 within the file, `lines` gives the line (from 1) of each field."""

    file: Path
    document: int
    lines: dict[FieldPath, int]

    def line(self, path: FieldPath) -> int:
        """The line of a field; that of the nearest field around it when the field itself is not there."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong. `path` is () for the document as a whole."""

    message: str
    path: FieldPath = ()


class ManifestError(ValueError):
    """A manifest that cannot be honoured. The text has one line for each problem: `FILE:LINE: document N: field: what is wrong`."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = tuple(lines)


def located(origin: Origin, problems: Iterable[Problem], subject: str = "") -> list[str]:
    """Write problems with their place. `subject` names the object ("InferenceModel minilm") where it is known."""
    about = f"document {origin.document}" + (f" ({subject})" if subject else "")
    ordered = sorted(problems, key=lambda problem: origin.line(problem.path))
    return [
        f"{origin.file}:{origin.line(p.path)}: {about}: {f'{dotted(p.path)}: ' if p.path else ''}{p.message}"
        for p in ordered
    ]


def near(name: str, known: Iterable[str]) -> str:
    """ "; did you mean 'x'?" for names that are close to `name`, the known names where none is close and they are few, else nothing."""
    names = sorted(known)
    folded = {candidate.lower(): candidate for candidate in names}
    close = [folded[match] for match in difflib.get_close_matches(name.lower(), folded, n=3, cutoff=0.6)]
    if close:
        return "; did you mean " + " or ".join(f"'{c}'" for c in close) + "?"
    return f"; known here: {', '.join(names)}" if 0 < len(names) <= 12 else ""
