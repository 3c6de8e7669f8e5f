"""The two text formats that Prometheus scrapes: text 0.0.4 and OpenMetrics 1.0.

Written by hand, not with prometheus_client, because the numbers already lie in ModelStatistics (its counters would count
everything twice, at about a microsecond a count on the hot path) and because its rendering of some ten thousand series takes
tenths of a second with the interpreter's lock held. The tests parse what is written here with prometheus_client's two parsers.

Both formats get the same series names, so that a dashboard does not depend on what a scraper negotiated. OpenMetrics wants the
samples of a counter to end in `_total`; a counter whose name does not (all of Triton's) is therefore of type `unknown` there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

TEXT_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"


class Family(NamedTuple):
    """What is said once about all series of a name.

    `name` is that of the series: a counter's includes `_total` where it has it, a histogram's is without `_bucket`.
    `kind` is counter, gauge, histogram or info (a series `NAME` of constant 1, whose name ends in `_info`).
    `unit` is the unit that the name ends in (before `_total`), for OpenMetrics.
    """

    name: str
    kind: str
    help: str
    unit: str = ""

    def openmetrics_name(self) -> tuple[str, str]:
        """The family's name and type in OpenMetrics, such that its series keep their names."""
        if self.kind == "counter":
            stem = self.name.removesuffix("_total")
            return (stem, "counter") if stem != self.name else (self.name, "unknown")
        if self.kind == "info":
            return self.name.removesuffix("_info"), "info"
        return self.name, self.kind

    def claims(self) -> set[str]:
        """Every name that no other family may have, in either format, nor any of its series."""
        name, kind = self.openmetrics_name()
        suffixes = {"counter": ("_created",), "histogram": ("_bucket", "_sum", "_count", "_created")}.get(kind, ())
        return {self.name, name, *(name + suffix for suffix in suffixes)}


Figures = tuple[Family, list[tuple[str, float]]]
"""A family and its samples: labels (rendered by `label_pairs`, may be empty) and value."""


def accepts_openmetrics(accept: str) -> bool:
    """Does an Accept header prefer OpenMetrics to the text format? An equal weight or a wildcard alone means the text format."""
    weights = {"application/openmetrics-text": 0.0, "text/plain": 0.0}
    for part in accept.split(","):
        media, *parameters = (field.strip().lower() for field in part.split(";"))
        if media not in weights:
            continue
        weight = 1.0
        for parameter in parameters:
            key, _, value = parameter.partition("=")
            if key.strip() == "q":
                try:
                    weight = float(value)
                except ValueError:
                    weight = 0.0
        weights[media] = max(weights[media], weight)
    return weights["application/openmetrics-text"] > weights["text/plain"]


def escape_label(value: str) -> str:
    """Escape a label's value (the same in both formats)."""
    if '"' in value or "\\" in value or "\n" in value:
        value = value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return value


def label_name(text: str) -> str:
    """Make a label's name of any text: what may not stand in one becomes `_`."""
    name = re.sub(r"[^a-zA-Z0-9_]", "_", text)
    return f"_{name}" if not name or name[0].isdigit() else name


def label_pairs(labels: Mapping[str, str] | Iterable[tuple[str, str]]) -> str:
    """Render labels, without the braces, in the order given."""
    pairs = labels.items() if isinstance(labels, Mapping) else labels
    return ",".join(f'{name}="{escape_label(value)}"' for name, value in pairs)


def number(value: float) -> str:
    """Render a sample's value: integers without a fraction, floats so that they read back as the same float."""
    if isinstance(value, int):
        return str(int(value))
    if math.isfinite(value):
        return repr(value)
    if math.isnan(value):
        return "NaN"
    return "+Inf" if value > 0 else "-Inf"


def bound(value: float) -> str:
    """Render a bucket's `le` the way both formats' clients do: always a float (`1.0`, `+Inf`)."""
    return number(float(value))


class Exposition:
    """Collects one answer to a scrape. Each family once: `head`, then its samples."""

    def __init__(self, openmetrics: bool) -> None:
        self._openmetrics = openmetrics
        self._parts: list[str] = []

    @property
    def content_type(self) -> str:
        return OPENMETRICS_CONTENT_TYPE if self._openmetrics else TEXT_CONTENT_TYPE

    def head(self, family: Family) -> None:
        """Begin a family."""
        if self._openmetrics:
            name, kind = family.openmetrics_name()
            text = family.help.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
            unit = f"# UNIT {name} {family.unit}\n" if family.unit and name.endswith(f"_{family.unit}") else ""
        else:
            name, kind, unit = family.name, "gauge" if family.kind == "info" else family.kind, ""
            text = family.help.replace("\\", r"\\").replace("\n", r"\n")
        self._parts.append(f"# HELP {name} {text}\n# TYPE {name} {kind}\n{unit}")

    def lines(self, text: str) -> None:
        """Add rendered samples, each with its line end."""
        self._parts.append(text)

    def sample(self, name: str, value: float, labels: str = "") -> None:
        """Add one sample; `labels` are rendered by `label_pairs`."""
        self._parts.append(f"{name}{{{labels}}} {number(value)}\n" if labels else f"{name} {number(value)}\n")

    def figures(self, figures: Iterable[Figures]) -> None:
        """Add whole families."""
        for family, samples in figures:
            if samples:
                self.head(family)
                for labels, value in samples:
                    self.sample(family.name, value, labels)

    def body(self) -> bytes:
        """End and encode. Text that is no valid Unicode (lone surrogates) is replaced, so that a scrape never fails of it."""
        if self._openmetrics:
            self._parts.append("# EOF\n")
        return "".join(self._parts).encode("utf-8", "replace")
