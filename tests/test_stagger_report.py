"""The report of staggered runs: its naive baselines by hand, and the committed page from the committed figures."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.rigs import stagger_report
from benchmarks.speed import RESULTS


def pair(best: float) -> dict[str, Any]:
    """Together 100 s, one after the other 120 s, an offset at which 80 s were measured and 90 s predicted."""
    rows = [("01:0", 100.0, 100.0), ("01:1", 90.0, 80.0), ("serial", 120.0, 120.0), ("best", best, best)]
    return {
        "pair": "made up",
        "rows": [
            {"name": name, "first": 0, "predicted_s": predicted, "measured_s": [measured]}
            for name, predicted, measured in rows
        ],
    }


def test_baselines_by_hand() -> None:
    assert stagger_report.constant_errors(pair(80.0)) == [pytest.approx(100 / 80 - 1)]
    assert stagger_report.gain_over(pair(80.0), "01:0") == pytest.approx(0.2)
    assert stagger_report.gain_over(pair(80.0), "serial") == pytest.approx(1 / 3)
    assert stagger_report.gain_over(pair(110.0), "01:0") == pytest.approx(-0.1)
    line = next(line for line in stagger_report.baselines([pair(80.0)]) if line.startswith("| made up"))
    assert line == "| made up | 12.5% | 12.5% | 25.0% | 25.0% | model | +20.0% | +33.3% |"


def test_the_page_is_written_from_the_figures() -> None:
    content = json.loads((RESULTS / "stagger.json").read_text(encoding="utf-8"))
    assert stagger_report.text(content) == (RESULTS / "stagger.md").read_text(encoding="utf-8")
