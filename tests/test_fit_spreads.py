"""How wide intervals are: the least spread, by kind of step, and from the rows of other folds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from precision_time.estimate.interval import Z90
from precision_time.estimate.spread import OTHER_FRAMEWORK
from precision_time.fit.folds import least_spread
from precision_time.fit.spreads import Coverage, Errors, Spread, base_spreads, by_kind, novelty


def spread_of(values: Sequence[float], kinds: Sequence[str], folds: Sequence[str] | None = None) -> Spread:
    """Rows that add nothing themselves, each of a model of its own unless `folds` are given."""
    names = [str(i) for i in range(len(values))] if folds is None else folds
    nothing, every = np.zeros(len(values)), np.ones(len(values), dtype=np.bool_)
    return Spread(nothing, np.array(kinds), every, Errors.of(values, names), nothing)


def test_the_spread_covers_four_in_five():
    error = np.random.default_rng(2).normal(0, 0.1, 20_000)
    assert least_spread(error, np.zeros(len(error))) == pytest.approx(0.1, rel=0.03)
    assert least_spread(error, np.full(len(error), 0.08)) == pytest.approx(0.06, rel=0.08)  # the jobs add the rest


T = {1: 3.0777, 2: 1.8856, 4: 1.5332, 9: 1.3830, 29: 1.3114, 49: 1.2991, 59: 1.2958}
"""P90 of Student's t by degrees of freedom, from a printed table."""


def test_spreads_by_kind_by_hand() -> None:
    """Thirty rows of each of two kinds, of which 24 have to lie inside the P90 of Student's t times the spread."""
    errors = np.array([0.01 * i for i in range(1, 31)] + [0.1 * i for i in range(1, 31)])
    spread = spread_of(errors.tolist(), ["fp8"] * 30 + ["whole"] * 30)
    bases = spread.bases()
    fp8, whole = 0.24 * T[29] / Z90**2, 2.4 * T[29] / Z90**2
    assert (bases["fp8"], bases["whole"]) == pytest.approx((fp8, whole), rel=1e-4)
    assert bases[""] == pytest.approx(1.8 * T[59] / Z90**2, rel=1e-3)  # the 48th of 60
    assert base_spreads(spread)["log_spread:fp8"] == pytest.approx(fp8, abs=1e-4)
    twice = replace(spread.errors, values=2 * errors)
    assert spread.added(twice)["fp8"] == pytest.approx(np.sqrt(3.0) * fp8, rel=1e-4)
    assert set(novelty({"gpu": (spread, spread.errors)})) == {"gpu", "gpu:fp8", "gpu:whole"}


@pytest.mark.parametrize("kind", ["timm", OTHER_FRAMEWORK])
def test_networks_of_timm_and_other_frameworks_settle_their_own_spread_alone(kind: str) -> None:
    bases = spread_of([0.1] * 30 + [0.5] * 50, ["half"] * 30 + [kind] * 50).bases()
    half, own = 0.1 * T[29] / Z90**2, 0.5 * T[49] / Z90**2
    assert bases == pytest.approx({"": half, "half": half, kind: own}, rel=1e-4)


def test_intervals_hold_four_in_five_of_the_next_fold_however_few_there_are() -> None:
    """Five folds of twenty rows with an error in common; without Student's t the next one is inside less often."""
    rng = np.random.default_rng(5)
    every, nothing, folds = np.ones(100, dtype=np.bool_), np.zeros(100), np.repeat(list("abcde"), 20).tolist()
    inside = {"next": 0.0, "least": 0.0}
    for _ in range(500):
        values = np.repeat(rng.normal(0.0, 0.1, 6), 20) + rng.normal(0.0, 0.05, 120)
        errors, following = Errors.of(values[:100], folds), np.abs(values[100:]) / Z90
        inside["next"] += float(np.mean(following <= errors.of_next_fold(nothing, every)))
        inside["least"] += float(np.mean(following <= errors.least(nothing, every)))
    assert 0.80 < inside["next"] / 500 < 0.86
    assert inside["least"] / 500 < 0.79


def test_one_fold_tells_what_it_needs_itself() -> None:
    errors = Errors.of([0.1] * 10, ["a"] * 10)
    assert errors.of_next_fold(np.zeros(10), errors.judged) == pytest.approx(0.1 / Z90)


def test_a_kind_of_few_folds_takes_what_it_needs_itself_if_all_kinds_need_less() -> None:
    errors = [0.1] * 40 + [0.5] * 4 + [0.01] * 4
    bases = spread_of(errors, ["half"] * 40 + ["pure-half"] * 4 + ["double"] * 4).bases()
    assert bases["double"] == bases[""] < bases["pure-half"] == pytest.approx(0.5 / Z90)


def test_rows_of_kinds_apart_help_where_two_folds_alone_would_settle_a_spread() -> None:
    """Two frameworks have steps of no kind of their own, and two others tell what a fifth adds."""
    kinds, frameworks = ["half"] * 40 + [OTHER_FRAMEWORK] * 40, np.repeat(list("abcd"), 20).tolist()
    spread = spread_of([0.1] * 40 + [0.2] * 40, kinds)
    errors, every = Errors.of([0.2] * 40 + [0.3] * 40, frameworks), np.ones(80, dtype=np.bool_)
    assert spread.added(errors)["half"] == pytest.approx(errors.of_next_fold(spread.known(), every))
    ordinary = every & (np.arange(80) < 40)
    assert spread.added(errors)["half"] < errors.of_next_fold(spread.known(), ordinary)


def test_a_fold_counts_as_the_root_of_its_rows() -> None:
    """Of 16 rows of one model and 9 of nine models the latter have 9 / 13 of the weight, so that eight of nine of them
    have to be inside; by rows alone four would be enough."""
    errors = [0.01] * 16 + [0.1 * i for i in range(1, 10)]
    folds = ["one"] * 16 + [str(i) for i in range(9)]
    by_fold = spread_of(errors, ["half"] * 25, folds).bases()["half"]
    assert by_fold == pytest.approx(0.7 * T[9] / Z90**2, rel=1e-4)  # 4 + 6 of 13 is too little, 4 + 7 is enough
    assert spread_of(errors, ["half"] * 25).bases()["half"] == pytest.approx(0.4 * 1.3178 / Z90**2, rel=1e-4)


def test_spreads_from_elsewhere_are_of_other_folds() -> None:
    """Half of the rows are off by 0.1, half by 0.4: each half gets the spread of the other."""
    spread = spread_of(np.repeat([0.1, 0.4], 10).tolist(), ["whole"] * 20, ["near"] * 10 + ["far"] * 10)
    assert spread.elsewhere(spread.errors, new=False) * Z90 == pytest.approx(np.repeat([0.4, 0.1], 10))
    (_, every, outside), _ = by_kind(spread, spread.errors, new=False)
    assert (every.coverage_p10_p90, outside) == (1.0, 0.5)


def test_a_kind_with_few_rows_elsewhere_takes_the_spread_of_all_kinds() -> None:
    """The other model in fp8 has rows enough but is one fold, so that rows of other kinds settle the spread too."""
    errors = [0.1] * 5 + [0.2] * 40 + [0.3] * 40
    folds = ["a"] * 5 + ["b"] * 40 + [str(i) for i in range(40)]
    kinds = ["fp8"] * 45 + ["whole"] * 40
    assert spread_of(errors, kinds, folds).elsewhere(Errors.of(errors, folds), new=False)[0] == pytest.approx(
        0.3 * 1.3031 / Z90**2, rel=1e-4
    )  # of 41 folds


def test_rows_of_a_new_framework_are_wider_by_their_launches() -> None:
    """What a job adds where its framework is left out is not added again by what the errors require."""
    errors = np.repeat([0.1, 0.4], 10)
    names = [str(i) for i in range(20)]
    known = replace(spread_of([0.1] * 20, ["whole"] * 20), widenings=np.zeros(20))
    new = replace(known, left_out=np.repeat([0.0, 0.42 / Z90], 10))
    wider = 1.3277 / Z90  # of twenty folds
    assert known.added(Errors.of(errors, names))["whole"] == pytest.approx(
        wider * np.sqrt(0.4**2 - 0.1**2) / Z90, rel=1e-4
    )
    assert new.added(Errors.of(errors, names))["whole"] == 0.0


def test_only_judged_rows_say_what_is_added() -> None:
    """The rows of many GPUs are no worse than any: that those of few are off without them adds nothing."""
    spread, names = spread_of([0.1] * 20, ["whole"] * 20), ["few"] * 10 + ["many"] * 10
    errors = Errors.of(np.repeat([0.9, 0.1], 10), names, [False] * 10 + [True] * 10)
    assert spread.added(errors) == {"": 0.0, "whole": 0.0}
    assert spread.added(replace(errors, judged=np.zeros(20, dtype=np.bool_))) == {"": 0.0, "whole": 0.0}
    ((_, all_rows, _), _) = by_kind(spread, errors, new=True)
    assert (all_rows.n, all_rows.coverage_p10_p90) == (10, 1.0)


def test_coverage_by_hand() -> None:
    """Four in five of ten rows are inside at the shipped spread; what is new makes room for twice the error."""
    values = [0.1 * i for i in range(1, 11)]
    spread = spread_of(values, ["half"] * 10)
    far = replace(spread.errors, values=2 * spread.errors.values)
    for errors, new, inside in ((spread.errors, False, 8), (far, False, 4), (far, True, 8)):
        assert Coverage.of(spread, errors, new).shipped.sum() == inside
