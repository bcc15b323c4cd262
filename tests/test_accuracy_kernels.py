"""Kernel times judged held out: targets counted over curves and rows, and the page."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("scipy")
pytest.importorskip("pandas")

from benchmarks.accuracy.kernel_page import page
from benchmarks.accuracy.kernels import CASES, CurveErrors, targets

TABLES = Path(__file__).parents[1] / "data" / "kernels"


def test_targets_are_counted_over_curves_and_over_rows() -> None:
    """Products: medians 4, 6 and 30 % over curves give 6 %, over the 6 rows (4 4 6 30 30 30) 18 %: not met."""

    def curve(name: str, gpu: str, *errors: float) -> CurveErrors:
        return CurveErrors(name, "half", gpu, len(errors), dict.fromkeys(CASES, np.array(errors)))

    judged = [
        curve("matmul", "one", 0.04, 0.04),
        curve("attention", "two", 0.06),
        curve("matmul", "three", 0.3, 0.3, 0.3),
        curve("softmax", "one", 0.1, 0.2, 0.12),
    ]
    profiled, unseen, rest, rest_unseen = targets(judged)
    assert (profiled.over_curves, profiled.over_rows, profiled.met) == (0.06, pytest.approx(0.18), False)
    assert profiled.missed == (("matmul half three", pytest.approx(0.3)),)
    assert (unseen.limit, unseen.met) == (0.15, False)
    assert (rest.over_curves, rest.over_rows, rest.met, rest.missed) == (0.12, 0.12, True, ())
    assert rest_unseen.met
    text = page(judged, TABLES)
    assert "above 8%: matmul half three (30.0%)" in text
    assert "| matmul and attention | profiled | 8% | 6.0% | 18.0% | **no** | 1 of 3 |" in text
    assert "| matmul | half | three | 3 | 30.0% | 30.0% |" in text
