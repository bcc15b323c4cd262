"""Tails of intervals that follow a stream: the bound of the theorem, and streams that drift."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_time.estimate.interval import Z90
from precision_time.serve.learning.conformal import LEAST, MOST, OUTSIDE, RATE, WINDOW, Tails, after_all, bound


def test_it_starts_at_the_shipped_interval_and_moves_by_hand() -> None:
    start = Tails()
    assert (start.low, start.high, start.coverage) == (Z90, Z90, None)
    above = start.after(2.0)
    assert above.high == pytest.approx(Z90 * math.exp(RATE * 0.9))
    assert above.low == pytest.approx(Z90 * math.exp(-RATE * 0.1))
    assert above.coverage == 0.0
    assert Tails.from_dict(above.after(0.0).to_dict()) == above.after(0.0)


def _outside(deviations: list[float]) -> tuple[int, int, Tails]:
    """How many lay below and above the interval that was there when each came."""
    tails, below, above = Tails(), 0, 0
    for deviation in deviations:
        below += deviation < -tails.low
        above += deviation > tails.high
        tails = tails.after(deviation)
    return below, above, tails


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(-10.0, 10.0), min_size=1, max_size=300))
def test_no_stream_leaves_more_outside_than_the_bound(deviations: list[float]) -> None:
    below, above, tails = _outside(deviations)
    count = len(deviations)
    assert above / count <= bound(Z90, count, sum(d > MOST for d in deviations)) + 1e-9
    assert below / count <= bound(Z90, count, sum(d < -MOST for d in deviations)) + 1e-9
    assert LEAST <= tails.low <= MOST * math.exp(RATE)
    assert LEAST <= tails.high <= MOST * math.exp(RATE)
    assert tails == after_all(deviations)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 10**6), st.floats(-1.0, 1.0), st.floats(0.6, 2.0), st.floats(0.6, 2.0), st.sampled_from([1, 50, 400])
)
def test_drifting_streams_are_covered_in_the_long_run(
    seed: int, drift: float, first: float, last: float, period: int
) -> None:
    """A mean that wanders and a spread that changes: 2,000 outcomes, of which 77 to 83 % are within P10-P90."""
    draw = random.Random(seed)
    count = 2000
    deviations = []
    for turn in range(count):
        share = turn / count
        middle = drift * (1.0 if (turn // period) % 2 else 0.3)
        deviations.append(draw.gauss(middle, first + (last - first) * share))
    below, above, tails = _outside(deviations)
    tolerance = (math.log(MOST / LEAST) + RATE) / (RATE * count) + 0.01
    assert above / count <= OUTSIDE + tolerance
    assert below / count <= OUTSIDE + tolerance
    if abs(drift) < 0.5:  # tails away from their least width
        assert 0.77 <= 1.0 - (below + above) / count <= 0.83
    assert len(tails.inside) == WINDOW


def test_an_interval_three_times_too_narrow_is_followed_in_a_few_dozen_outcomes() -> None:
    """From 1.28 spreads to the tenth of a stream of three spreads takes less than thirty outcomes."""
    draw = random.Random(1)
    tails = after_all([draw.gauss(0.0, 3.0) for _ in range(30)])
    assert 2.4 < tails.low < 5.5
    assert 2.4 < tails.high < 5.5
    later = [draw.gauss(0.0, 3.0) for _ in range(1000)]
    below, above, _ = _outside(later)
    assert 0.77 <= 1.0 - (below + above) / len(later) <= 0.83
