"""Verdict words of the reports follow the numbers beside them."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.papers.additive_layouts import GPU, ratio_claim
from benchmarks.papers.boosting_claims import residual_claims
from benchmarks.papers.cloud_tables import CloudRun
from benchmarks.papers.ernest import inputs_text
from benchmarks.papers.intervals import over_groups
from benchmarks.papers.predictddl_ernest import Beside, Protocol, headline
from benchmarks.papers.predictddl_readings import TARGET_RATIO, readings_claims, readings_table, readings_text
from benchmarks.papers.predictddl_speed import Speed, Spread, speed_claims
from benchmarks.papers.study import Claim
from benchmarks.papers.wording import nearest_to, order, portion, target, unless
from precision_time.hardware.catalog import gpu


def _protocol(name: str, ernest: list[float], predictddl: list[float]) -> Protocol:
    """Rows of one second on a network each, with these errors."""
    beside = []
    for i, (theirs, ours) in enumerate(zip(ernest, predictddl, strict=True)):
        measured = SimpleNamespace(seconds=1.0, job=SimpleNamespace(model=f"m{i}"))
        held = SimpleNamespace(row=SimpleNamespace(measured=measured), error=ours)
        beside.append(Beside(held, 1.0 + theirs))  # type: ignore[arg-type]
    return Protocol(name, tuple(beside), 10.0, 1000.0, 2.0)


def _protocols(own: float) -> list[Protocol]:
    """Mean 4.3 and median 2 where Ernest is fitted in seconds, 3 and 4 in per cent; Ernest's own runs err by `own`."""
    seconds = _protocol("same runs", [0.2, 0.2, 0.9], [0.1, 0.1, 0.1])
    per_cent = _protocol("same runs, in per cent", [0.1, 0.4, 0.4], [0.1, 0.1, 0.1])
    return [seconds, per_cent, *(_protocol(name, [own], [0.1]) for name in ("per network", "per job"))]


def test_words_follow_numbers() -> None:
    assert [order(v, 1.0, "less", "same", "more") for v in (0.9, 1.04, 1.1)] == ["less", "same", "more"]
    assert [target(v, 3.0) for v in (2.9, 3.0)] == ["missed", "met"]
    assert [portion(p, 10.0) for p in (9.5, 6.0, 5.0, 1.0)] == ["nearly all", "most", "about half", "less than half"]
    assert unless(True, "too slow") == ""
    assert nearest_to(2.4, {"fp32": 12.0, "tf32": 3.0}) == "tf32"


def test_the_headline_is_the_smallest_ratio_of_both_fits_by_mean_and_median() -> None:
    seconds, per_cent, *_ = _protocols(0.1)
    assert (seconds.ratio, seconds.median_ratio) == (pytest.approx(13 / 3), pytest.approx(2.0))
    assert headline((seconds, per_cent)) == ("same runs, by median", pytest.approx(2.0))
    other = _protocol("same runs", [0.5, 0.5, 0.5], [0.1, 0.1, 0.1])
    assert headline((other, per_cent)) == ("same runs, in per cent, by mean", pytest.approx(3.0))
    low, high = seconds.interval()
    assert 1.99 < low < seconds.ratio < high < 9.01
    assert seconds.to_dict()["median_ratio"] == seconds.median_ratio


def test_readings_of_equal_cost_follow_their_ratios() -> None:
    near, far = _protocols(0.05), _protocols(0.5)
    claims = readings_claims(near, near[2:])
    assert claims[0].met is False  # 2.0 by median, whatever the mean
    assert "says more about it" in claims[1].why
    assert claims[2].why
    further = readings_claims(far, far[2:])
    assert "says less about it" in further[1].why
    assert further[2].met is True
    assert further[2].why == ""
    assert f"target of {TARGET_RATIO:g} is missed. (2)" in readings_text(near, near[2:])
    better = [_protocol("same runs", [0.5], [0.1]), far[1], *far[2:]]
    better[1] = dataclasses.replace(better[0], name="same runs, in per cent")
    assert f"target of {TARGET_RATIO:g} is met. (2)" in readings_text(better, far[2:])
    row = readings_table(near, near[2:]).rows[0]
    assert {"4.33", "2.00"} <= set(row)  # mean and median


def test_what_starting_python_takes_is_measured() -> None:
    def spread(seconds: float) -> Spread:
        return Spread(seconds, seconds, seconds, 1)

    def why(start_s: float) -> str:
        timings = {**dict.fromkeys(Speed.__slots__, spread(2.0)), "torch_start": spread(start_s), "fresh": spread(4.0)}
        return speed_claims(Speed(**timings))[0].why

    assert "most of PredictDDL's" in why(3.0)
    assert "less than half of PredictDDL's" in why(1.0)


def test_the_nearest_precision_of_the_layouts_is_found() -> None:
    def beside(seconds: float) -> SimpleNamespace:
        return SimpleNamespace(
            by_equations=SimpleNamespace(added=SimpleNamespace(terms=SimpleNamespace(seconds=seconds)))
        )

    def why(fp32: float, tf32: float) -> str:
        times = {"amp-fp16": 1.0, "fp32": fp32, "tf32": tf32}
        return ratio_claim({name: [beside(s)] for name, s in times.items()}).why  # type: ignore[list-item]

    assert "in tf32 comes nearest" in why(12.0, 2.0)
    assert "in fp32 comes nearest" in why(2.5, 1.1)
    peaks = gpu(GPU).peaks
    assert f"{peaks['fp16'] / peaks['fp32']:.1f} times that of fp32" in why(12.0, 2.0)


def test_inputs_of_terasort_are_compared_by_their_times() -> None:
    def run(job: str, seconds: float, machines: int) -> CloudRun:
        return CloudRun(job, "m4.large", 2, 8.0, False, 0.1, False, 1, machines, seconds)

    base = [run("terasort-100", 100.0, n) for n in (4, 8)]
    text = inputs_text([*base, run("terasort-80", 250.0, 4), run("terasort", 101.0, 4), run("terasort", 135.0, 8)])
    assert "terasort-80 takes up to 2.5 times as long" in text
    assert "by 18.0% in the median and by 35% at most" in text
    assert "left out" not in inputs_text([*base, run("terasort-80", 80.0, 4)])


def test_an_interval_over_groups() -> None:
    assert over_groups([3.0], lambda drawn: float(np.mean(drawn))) == (3.0, 3.0)
    low, high = over_groups([1.0, 2.0, 3.0, 4.0, 5.0], lambda drawn: float(np.mean(drawn)))
    assert 1.5 < low < 3.0 < high < 4.5
    with pytest.raises(ValueError, match="needs a group"):
        over_groups([], len)


def test_a_miss_of_boosting_residual_says_in_how_many_families_it_is_nearer() -> None:
    def run(*errors: float) -> list[SimpleNamespace]:
        families = [SimpleNamespace(family=str(i), seconds=1.0) for i in range(len(errors))]
        return [SimpleNamespace(measured=m, error=e, inside=True) for m, e in zip(families, errors, strict=True)]

    def claim(*errors: float) -> Claim:
        runs = {"simulator by job": run(0.1, 0.1, 0.1), "boosting-residual by job": run(*errors)}
        return residual_claims(runs, {"job": "simulator by job"})[0]  # type: ignore[arg-type]

    assert claim(0.05, 0.05, 0.5).why == "nearer in 2 of 3 families"
    assert claim(0.2, 0.2, 0.2).why == "nearer in 0 of 3 families"
    assert (claim(0.05, 0.05, 0.05).met, claim(0.05, 0.05, 0.05).why) == (True, "")
