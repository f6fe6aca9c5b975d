"""Tables: the ratios to BR-IWAE, with and without what evaluations leave out."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from mlmcgrad.experiments.reproduce import markdown, tables
from tests.experiments.reproduce import fabricated


def test_the_second_decoding_is_counted_on_both_sides(tmp_path: Path) -> None:
    findings = fabricated.findings(fabricated.write(tmp_path, pictures=False))
    by_method = {row.method: (row, shares) for row, shares in tables.shares(findings).items()}
    assert by_method["br"][1] == (1.0, 1.0)
    br, (row, (counted, both)) = by_method["br"][0], by_method["mlmc"]
    # Two states of every image are decoded again, by all methods.
    assert counted == pytest.approx(row.evaluations / br.evaluations)
    assert both == pytest.approx((row.evaluations + 2.0) / (br.evaluations + 2.0))
    assert counted is not None
    assert both is not None
    assert counted < both < 1.0
    text = markdown.page([findings])
    assert "which budgets leave out" in text
    cells = f"{row.evaluations:.3g} | 2 | {counted:.3g} | {both:.3g}"
    assert f"| MLMC-IWAE | AMSGrad | {cells} |" in text


def test_what_is_not_known_is_left_open(tmp_path: Path) -> None:
    findings = fabricated.findings(fabricated.write(tmp_path, pictures=False))
    rows = [dataclasses.replace(row, decoded_again=None) for row in findings.diagnostics]
    older = dataclasses.replace(findings, diagnostics=tuple(rows))
    assert {both for _, both in tables.shares(older).values()} == {None}
    alone = [row for row in findings.diagnostics if row.method != "br"]
    without = dataclasses.replace(findings, diagnostics=tuple(alone))
    assert set(tables.shares(without).values()) == {(None, None)}
    assert "Decoder passes" not in markdown.page([dataclasses.replace(findings, diagnostics=())])
