"""A server to measure: versions with real statistics, and a renderer over them."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.core.errors import Reason
from shoal_dataplane.core.request import InferRequest
from shoal_dataplane.core.response import InferResponse
from shoal_dataplane.options import MetricsOptions
from shoal_dataplane.telemetry.custom_metrics import CustomMetrics
from shoal_dataplane.telemetry.metrics import MetricsRenderer
from shoal_dataplane.telemetry.statistics import ModelStatistics

US = 1_000
MS = 1_000_000


class NoCaller:
    """The requests here are never answered."""

    def respond(self, request: InferRequest, response: InferResponse) -> None:
        raise AssertionError("statistics do not answer")


def request(arrival_ns: int = 0, queued_ns: int | None = None) -> InferRequest:
    made = InferRequest("model", "", {}, NoCaller(), arrival_ns=arrival_ns)
    made.queued_ns = arrival_ns if queued_ns is None else queued_ns
    return made


class Version:
    """A loaded version; what it answers can be set."""

    def __init__(self, name: str = "ident", version: int = 1, **tags: str) -> None:
        self.name = name
        self.version = version
        self.config = mc.ModelConfig(name=name, metric_tags=tags)
        self.statistics = ModelStatistics(name, version)
        self.waiting = 0
        self.batches = 0
        self.well = True

    def pending(self) -> int:
        return self.waiting

    def running(self) -> int:
        return self.batches

    def healthy(self) -> bool:
        return self.well


class Answer(NamedTuple):
    ready: bool
    reason: str = ""


class Server:
    """What a renderer is given, and the renderer."""

    def __init__(self, *versions: Version, options: MetricsOptions | None = None) -> None:
        self.versions = list(versions)
        self.refusals: Counter[Reason] = Counter()
        self.answer = Answer(True)
        self.custom = CustomMetrics()
        self.renderer = MetricsRenderer(options or MetricsOptions(gpu=False), self, self.custom)

    def served_models(self) -> list[Version]:
        return list(self.versions)

    def ready(self) -> Answer:
        return self.answer

    def text(self, openmetrics: bool = False) -> str:
        return self.renderer.render(openmetrics)[0].decode()

    def families(self, openmetrics: bool = False) -> dict[str, Metric]:
        """Scrape, and parse as Prometheus' own client does."""
        parse = parse_openmetrics if openmetrics else parse_text
        return {family.name: family for family in parse(self.text(openmetrics))}

    def samples(self, openmetrics: bool = False) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
        """Values by the name of the series and its sorted labels. Fails when a series is there twice."""
        found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
        for family in self.families(openmetrics).values():
            for sample in family.samples:
                row = found.setdefault(sample.name, {})
                key = tuple(sorted(sample.labels.items()))
                assert key not in row, f"{sample.name}{key} twice"
                row[key] = sample.value
        return found

    def value(self, name: str, **labels: str) -> float:
        return self.samples()[name][tuple(sorted(labels.items()))]
