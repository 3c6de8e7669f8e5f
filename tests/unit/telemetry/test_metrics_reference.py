"""docs/reference/metrics.md says all there is, and nothing that there is not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shoal_dataplane.core.errors import Reason
from shoal_dataplane.scheduling.base import Cut
from shoal_dataplane.telemetry import gpu, machine
from shoal_dataplane.telemetry.metrics import BUILD_INFO, SERVER_READY
from shoal_dataplane.telemetry.model_families import MODEL_FAMILIES, TRITON_REASONS
from tests.unit.telemetry.fakes import Server, Version

TEXT = (Path(__file__).parents[3] / "docs/reference/metrics.md").read_text()


def rows(header: str) -> list[list[str]]:
    """The cells of every table whose first line begins so."""
    tables = re.findall(rf"^\| {re.escape(header)}.*\n\|[-|]+\n((?:\|.*\n)+)", TEXT, re.MULTILINE)
    assert tables, header
    return [[cell.strip() for cell in row.strip("|").split("|")] for table in tables for row in table.splitlines()]


def test_every_family_is_described_with_its_type() -> None:
    families = [family.family for family in MODEL_FAMILIES]
    families += [SERVER_READY, BUILD_INFO, *machine.FAMILIES, *gpu.FAMILIES]
    described = {name: kind for names, kind, _ in rows("series") for name in re.findall(r"`(\w+)`", names)}
    assert described == {family.name: "gauge (info)" if family.kind == "info" else family.kind for family in families}


@pytest.mark.parametrize(
    ("header", "reasons"),
    [("`reason` of `shoal_batch_cut_total`", list(Cut)), ("`reason` of `shoal_refused_total`", list(Reason))],
)
def test_every_reason_is_explained(header: str, reasons: list[str]) -> None:
    assert [cells[0] for cells in rows(header)] == [f"`{reason}`" for reason in reasons]


def test_the_table_of_triton_s_reasons_is_the_code_s() -> None:
    described = {
        reason: cells[0].strip("`")
        for cells in rows("`reason` of `nv_inference_request_failure`")
        for reason in re.findall(r"`(\w+)`", cells[1])
    }
    assert described == TRITON_REASONS


def test_the_number_of_series_of_a_version_is_about_what_it_says() -> None:
    said = re.search(r"about (\d+) for each version", TEXT)
    assert said is not None
    series = sum('model="ident"' in line for line in Server(Version()).text().splitlines())
    assert abs(series - int(said.group(1))) <= 5
