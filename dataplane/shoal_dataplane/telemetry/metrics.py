"""The answer to a scrape of /metrics, in either text format.

Names and meanings are a contract: docs/reference/metrics.md lists them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version as package_version
from itertools import accumulate
from typing import Protocol

from shoal_dataplane.core.errors import Reason
from shoal_dataplane.options import MetricsOptions
from shoal_dataplane.telemetry import gpu, machine
from shoal_dataplane.telemetry.custom_metrics import Family as CustomFamily
from shoal_dataplane.telemetry.custom_metrics import HistogramValue, Sample
from shoal_dataplane.telemetry.exposition import Exposition, Family, Figures, bound, label_pairs
from shoal_dataplane.telemetry.model_families import (
    MODEL_FAMILIES,
    REFUSED,
    ServedVersion,
    reasons,
    version_labels,
)
from shoal_dataplane.telemetry.statistics import ModelStatistics

logger = logging.getLogger(__name__)

BUILD_INFO = Family("shoal_build_info", "info", "The version of this server")
SERVER_READY = Family("shoal_server_ready", "gauge", "Whether this server reports ready")

MAX_WARNED = 1000

PAUSE_EVERY = 10
PAUSE_S = 50e-6
"""Rendering holds the interpreter's lock, which another thread gets only after 5 ms of waiting (sys.getswitchinterval); a short sleep
every so many versions (half a millisecond of work) hands it to the core loop, so that a scrape is not a dent in the latency."""


class Ready(Protocol):
    """service.Readiness, of which only the answer is wanted here."""

    @property
    def ready(self) -> bool: ...


class MetricsSource(Protocol):
    """What is measured (serving.Serving). All of it may be called from any thread."""

    @property
    def refusals(self) -> Mapping[Reason, int]:
        """Requests that were refused before they had a model."""

    def served_models(self) -> Sequence[ServedVersion]:
        """Every loaded version."""

    def ready(self) -> Ready: ...


class CustomSource(Protocol):
    """The families that models define themselves (custom_metrics.CustomMetrics). Thread-safe."""

    def collect(self) -> Sequence[CustomFamily]: ...


class MetricsRenderer:
    """Renders everything there is to say about this server at one moment.

    `render` may be called by several threads at once, and not on an event loop's: a hundred versions take some milliseconds.
    """

    def __init__(self, options: MetricsOptions, source: MetricsSource, custom: CustomSource) -> None:
        self._source = source
        self._custom = custom
        self._build = label_pairs({"version": package_version("shoal")})
        self._templates: dict[ModelStatistics, tuple[str, ...]] = {}
        self._unnamed = REFUSED.template({"model": "", "version": ""})
        self._warned: set[str] = set()
        interval_s = options.interval_ms / 1000
        self._machine: list[machine.Sampled[list[Figures]]] = []
        if options.cpu:
            self._machine.append(machine.Sampled(machine.Machine().read, [], interval_s))
        if options.gpu:
            self._machine.append(machine.Sampled(gpu.Gpus().read, [], interval_s))

    def render(self, openmetrics: bool) -> tuple[bytes, str]:
        """Return the exposition and its content type: OpenMetrics 1.0, else Prometheus text 0.0.4."""
        out = Exposition(openmetrics)
        self._models(out)
        out.figures(
            (
                (SERVER_READY, [("", int(self._source.ready().ready))]),
                (BUILD_INFO, [(self._build, 1)]),
            )
        )
        for sampled in self._machine:
            out.figures(sampled.get())
        out.figures(machine.process_figures())
        self._custom_families(out, openmetrics)
        return out.body(), out.content_type

    def _models(self, out: Exposition) -> None:
        models = sorted(self._source.served_models(), key=lambda model: (model.name, model.version))
        # Keyed by the statistics, which are an object for each load: a model that is loaded anew may have new tags, and one that
        # is unloaded is not kept from being freed.
        known, templates = self._templates, {}
        rows: list[list[str]] = [[] for _ in MODEL_FAMILIES]
        for index, model in enumerate(models, 1):
            if index % PAUSE_EVERY == 0:
                time.sleep(PAUSE_S)
            lines = known.get(model.statistics)
            if lines is None:
                labels = version_labels(model)
                lines = tuple(family.template(labels) for family in MODEL_FAMILIES)
            templates[model.statistics] = lines
            for row, family, template in zip(rows, MODEL_FAMILIES, lines, strict=True):
                row.append(template % tuple(family.read(model)))
        self._templates = templates
        for family, row in zip(MODEL_FAMILIES, rows, strict=True):
            if family is REFUSED:
                row.insert(0, self._unnamed % reasons(self._source.refusals))
            if row:
                out.head(family.family)
                out.lines("".join(row))

    def _custom_families(self, out: Exposition, openmetrics: bool) -> None:
        """Families that models define themselves; one that would make the whole scrape invalid is left out, with a warning."""
        taken = set(BUILT_IN)
        for custom in self._custom.collect():
            family = Family(custom.name, str(custom.kind), custom.description)
            claims = family.claims()
            if not taken.isdisjoint(claims):
                self._warn(custom.name, f"its name is taken, by '{min(taken & claims)}'")
                continue
            taken |= claims
            samples = [sample for sample in custom.samples if self._labels_fit(custom.name, sample)]
            if samples:
                out.head(family)
                for sample in samples:
                    _custom_sample(out, custom.name, sample, openmetrics)

    def _labels_fit(self, name: str, sample: Sample) -> bool:
        if isinstance(sample.value, HistogramValue) and any(label == "le" for label, _ in sample.labels):
            self._warn(name, "a histogram has no label 'le' of its own")
            return False
        return True

    def _warn(self, name: str, why: str) -> None:
        if name not in self._warned and len(self._warned) < MAX_WARNED:
            self._warned.add(name)
            logger.warning("the custom metric family '%s' is not exposed: %s", name, why)


def _custom_sample(out: Exposition, name: str, sample: Sample, openmetrics: bool) -> None:
    labels = label_pairs(sample.labels)
    value = sample.value
    if not isinstance(value, HistogramValue):
        out.sample(name, value, labels)
        return
    comma = "," if labels else ""
    count = 0
    for upper, count in zip((*value.bounds, float("inf")), accumulate(value.counts), strict=True):
        out.sample(f"{name}_bucket", count, f'{labels}{comma}le="{bound(upper)}"')
    if openmetrics and value.bounds[0] < 0:
        return  # OpenMetrics forbids sum and count where values may be negative
    out.sample(f"{name}_sum", value.total, labels)
    out.sample(f"{name}_count", count, labels)


def _built_in() -> Iterable[Family]:
    yield from (family.family for family in MODEL_FAMILIES)
    yield from (SERVER_READY, BUILD_INFO)
    yield from machine.FAMILIES
    yield from gpu.FAMILIES


BUILT_IN = frozenset(name for family in _built_in() for name in family.claims())
"""Names that no model may give to a family of its own."""
