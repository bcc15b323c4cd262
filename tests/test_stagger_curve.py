"""The best stagger of two jobs, the best offsets of several, and what they are compared with."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from precision_time.errors import IngestError
from precision_time.ingest.model.alternatives import shared_preparation_s
from precision_time.ingest.model.curve import stagger_curve
from precision_time.ingest.model.fluid import run
from precision_time.ingest.model.offsets import best_offsets
from precision_time.ingest.model.rates import JobRates, SharedCache, Slowdowns

FITS = SharedCache()
QUICK, SLOW = JobRates("quick", 1000, 2, 0.0005, 0.004), JobRates("slow", 1000, 3, 0.003, 0.004, overlap=0.5)


def test_curve_of_two() -> None:
    jobs, slowdowns = [QUICK, SLOW], Slowdowns.uniform(2, 2 / 0.8)
    curve = stagger_curve(jobs, slowdowns, FITS)
    assert curve.makespan_s.shape == (2, 100)
    assert curve.jobs == ("quick", "slow")
    assert curve.best.makespan_s <= curve.makespan_s.min()
    assert curve.at_once.makespan_s == pytest.approx(curve.makespan_s[0, 0])
    assert curve.makespan_s[0, 0] == pytest.approx(curve.makespan_s[1, 0])
    # Serial: the second finds everything, and the order is that of the sums.
    first = QUICK.cold_epoch_s + QUICK.hot_epoch_s
    assert curve.serial[0].makespan_s == pytest.approx(first + 3 * SLOW.hot_epoch_s)
    assert curve.wait_epoch[0].offset_s == pytest.approx(4.0)
    assert curve.wait_epoch[0].makespan_s == pytest.approx(4.0 + 9.0)
    assert all(gain >= 0 for gain in curve.gains.values())
    assert curve.gains["serial"] == pytest.approx(1 - curve.best.makespan_s / min(s.makespan_s for s in curve.serial))
    assert curve.no_eviction_s is None
    # The best is between the points too: no finer grid beats it by more than a trifle.
    fine = np.linspace(0, curve.offsets_s[-1], 1000)
    rows = np.concatenate([np.stack([0 * fine, fine], 1), np.stack([fine, 0 * fine], 1)])
    assert curve.best.makespan_s <= run(jobs, slowdowns, FITS, rows).makespan_s.min() * (1 + 1e-4)
    predicted = run(jobs, slowdowns, FITS, [curve.best.offsets_s]).makespan_s[0]
    assert predicted == pytest.approx(curve.best.makespan_s, rel=1e-4)


def test_curve_with_a_small_cache_tells_of_no_eviction() -> None:
    curve = stagger_curve([QUICK, SLOW], Slowdowns.uniform(2, 2.0), SharedCache(500), points=20)
    assert curve.no_eviction_s is not None
    assert curve.no_eviction_s < curve.best.makespan_s
    assert stagger_curve([QUICK, SLOW], Slowdowns.uniform(2), SharedCache(500, "no-eviction"), 20).no_eviction_s is None


def test_curve_that_cannot_be() -> None:
    with pytest.raises(IngestError, match="best_offsets"):
        stagger_curve([QUICK], Slowdowns.uniform(1), FITS)
    with pytest.raises(IngestError, match="points"):
        stagger_curve([QUICK, SLOW], Slowdowns.uniform(2), FITS, points=1)
    with pytest.raises(IngestError, match="longest"):
        stagger_curve([QUICK, SLOW], Slowdowns.uniform(2), FITS, longest=0.0)


def test_shared_preparation_by_hand() -> None:
    # Both at 2 ms a sample: a cold epoch of 4 s, a hot one of 2 s; then the other alone, 1 s.
    jobs = [JobRates("a", 1000, 2, 0.002, 0.004), JobRates("b", 1000, 3, 0.001, 0.004, end_s=0.5)]
    assert shared_preparation_s(jobs, Slowdowns.uniform(2, 2.0), FITS) == pytest.approx(7.5)
    assert shared_preparation_s(jobs, Slowdowns.uniform(2, 2.0, 1.5), FITS) == pytest.approx(4 + 3 + 1 + 0.5)
    other = [jobs[0], replace(jobs[1], parts={"y": 1.0})]
    assert shared_preparation_s(other, Slowdowns.uniform(2), FITS) is None


def test_offsets_of_three_against_brute_force() -> None:
    jobs = [QUICK, SLOW, replace(QUICK, name="third", epochs=4, hot_s=0.001)]
    slowdowns = Slowdowns.uniform(3, 2 / 0.8, 1.1)
    shares_done: list[float] = []
    best = best_offsets(jobs, slowdowns, FITS, progress=shares_done.append)
    assert shares_done[-1] == 1.0
    assert min(best.offsets_s) == 0
    assert run(jobs, slowdowns, FITS, [best.offsets_s]).makespan_s[0] == pytest.approx(best.makespan_s, rel=1e-4)
    grid = np.linspace(0.0, 12.0, 31)
    one, other = (axis.ravel() for axis in np.meshgrid(grid, grid))
    faces = [np.insert(np.stack([one, other], axis=1), at, 0.0, axis=1) for at in range(3)]
    brute = run(jobs, slowdowns, FITS, np.concatenate(faces)).makespan_s.min()
    assert best.makespan_s <= brute * (1 + 1e-3)
    assert best.gain > 0


def test_one_job_starts_at_once() -> None:
    best = best_offsets([QUICK], Slowdowns.uniform(1), FITS)
    assert (best.offsets_s, best.gain) == ((0.0,), 0.0)


def test_a_job_on_the_edge_of_what_the_cache_holds_comes_to_its_end() -> None:
    """At one of these offsets the second job finds and loses the first one's samples at one moment, again and again."""
    jobs = [JobRates("a", 10_000, 3, 0.001, 0.004), JobRates("b", 10_000, 3, 0.002, 0.004)]
    curve = stagger_curve(jobs, Slowdowns.uniform(2, 2.0, same_order=True), SharedCache(9000))
    assert np.isfinite(curve.makespan_s).all()
    assert curve.best.makespan_s >= 3 * 10_000 * 0.002


def test_a_job_that_runs_along_the_edge_of_a_cache_comes_to_its_end() -> None:
    """The second finds some samples and loses others, over and over, an epoch after it first did."""
    jobs = [JobRates("a", 1000, 5, 0.0019, 0.00248, start_up_s=0.3), JobRates("b", 1000, 3, 0.00307, 0.00194, 0.0)]
    offsets = np.linspace(0.0, 3.7, 24)
    rows = np.concatenate([np.stack([0 * offsets, offsets], 1), np.stack([offsets, 0 * offsets], 1)])
    ends = run(jobs, Slowdowns.uniform(2, 1.46, same_order=True), SharedCache(840), rows).finish_s
    assert np.isfinite(ends).all()
    assert (ends[:, 1] >= rows[:, 1] + 3 * jobs[1].hot_epoch_s - 1e-6).all()
