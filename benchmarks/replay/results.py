"""What a replay shows: errors and coverage over the outcomes seen, by source, and with broken machines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.replay.replay import Step
from precision_time.serve.learning.conformal import OUTSIDE, Tails

ENOUGH, SETTLED = 5, 30
"""Outcomes of other jobs after which the error is judged, and outcomes after which coverage is."""
BINS = (0, 1, 2, 4, 6, 11, 21, 31, 61, 101, 201)
"""First numbers of outcomes seen of the points of a curve."""
RATES = (0.05, 0.1, 0.2, 0.3)
"""Rates of tails among which other sources choose (`chosen_rates`)."""
INSIDE = 1.0 - 2.0 * OUTSIDE
LEAST = 4
"""Rows of a source below which it has no figure of its own."""
Steps = Sequence[Step]


def mean_error(errors: Iterable[float]) -> float | None:
    """Mean of |predicted / measured - 1| from logs."""
    return _rounded(np.abs(np.expm1(list(errors))).mean) if (errors := list(errors)) else None


def _median_error(errors: Iterable[float]) -> float | None:
    return _rounded(lambda: np.median(np.abs(np.expm1(found)))) if (found := list(errors)) else None


def _signed(errors: Iterable[float]) -> float | None:
    return _rounded(np.expm1(found).mean) if (found := list(errors)) else None


def _share(flags: Iterable[bool]) -> float | None:
    return _rounded(lambda: np.mean(found)) if (found := list(flags)) else None


def _rounded(value: Callable[[], Any]) -> float:
    return round(float(value()), 4)


def summary(steps: Steps) -> dict[str, Any]:
    """The figures of some rows."""
    enough = [step for step in steps if step.others >= ENOUGH]
    soon = [step for step in enough if step.others < 2 * ENOUGH]
    models = [step for step in steps if step.models >= ENOUGH and step.by_models is not None]
    once = [step for step in steps if step.repeats == 1]
    settled = [step for step in steps if step.outcomes >= SETTLED]
    early = [step for step in steps if step.outcomes < SETTLED]
    return {
        "rows": len(steps),
        "after_others": _compared(enough),
        "soon_after_others": _compared(soon),
        "other_models": {
            "n": len(models),
            "plain": mean_error(s.plain for s in models),
            "learned": mean_error(s.by_models or 0.0 for s in models),
        },
        "after_one_of_the_job": {
            "n": len(once),
            "plain": mean_error(s.plain for s in once),
            "learned": mean_error(s.learned for s in once),
            "median": _median_error(s.learned for s in once),
        },
        "coverage": {
            "n": len(settled),
            "settled": _share(s.inside for s in settled),
            "early": _share(s.inside for s in early),
            "shipped_width": _share(s.inside_plain for s in steps),
        },
    }


def _compared(steps: Steps) -> dict[str, Any]:
    """Mean errors without any correction and with each; `others`: by outcomes of other jobs alone."""
    errors = {
        "plain": [step.plain for step in steps],
        "running": [step.running for step in steps],
        "anchored": [step.anchored for step in steps],
        "others": [step.by_others for step in steps],
        "all": [step.learned for step in steps],
    }
    found: dict[str, Any] = {"n": len(steps), **{name: mean_error(each) for name, each in errors.items()}}
    found["median_plain"], found["median_all"] = _median_error(errors["plain"]), _median_error(errors["all"])
    found["signed_plain"], found["signed_all"] = _signed(errors["plain"]), _signed(errors["all"])
    return found


def by_source(steps: Steps) -> dict[str, dict[str, Any]]:
    """The summary of each source, the largest first."""
    sources: dict[str, list[Step]] = {}
    for step in steps:
        sources.setdefault(step.source, []).append(step)
    ordered = sorted(sources.items(), key=lambda pair: -len(pair[1]))
    return {name: summary(each) for name, each in ordered}


def curve(steps: Steps) -> list[dict[str, Any]]:
    """Mean errors and coverage by how many outcomes of its cluster were seen before a row, every source with as much
    weight as another in each point."""
    points = []
    for first, end in zip(BINS, (*BINS[1:], 10**9), strict=True):
        inside: dict[str, list[Step]] = {}
        for step in steps:
            if first <= step.outcomes < end:
                inside.setdefault(step.source, []).append(step)
        chosen = {name: each for name, each in inside.items() if len(each) >= min(LEAST, end - first)}
        if len(chosen) < 2:
            continue
        means = {
            name: round(float(np.mean([get(each) for each in chosen.values()])), 4) for name, get in _CURVES.items()
        }
        points.append({"outcomes": first, "sources": len(chosen), **means})
    return points


def _error_of(name: str) -> Callable[[Steps], float]:
    return lambda steps: float(np.abs(np.expm1([getattr(step, name) for step in steps])).mean())


def _share_of(name: str) -> Callable[[Steps], float]:
    return lambda steps: float(np.mean([getattr(step, name) for step in steps]))


_CURVES: Mapping[str, Callable[[Steps], float]] = {
    **{name: _error_of(name) for name in ("plain", "running", "anchored", "learned")},
    **{name: _share_of(name) for name in ("inside", "inside_plain")},
}


def injection(clean: Steps, runs: Sequence[Steps]) -> dict[str, Any]:
    """Errors of what was measured, where a tenth of the outcomes that were learned were two to five times slower; of
    rows after `ENOUGH` outcomes of other jobs, mean over runs."""

    def of(steps: Steps, name: str) -> float:
        return float(np.abs(np.expm1([getattr(step, name) for step in steps if step.others >= ENOUGH])).mean())

    return {
        "runs": len(runs),
        "share": _rounded(lambda: np.mean([step.broken for run in runs for step in run])),
        **{
            name: {
                "clean": round(of(clean, name), 4),
                "injected": _rounded(lambda name=name: np.mean([of(run, name) for run in runs])),  # type: ignore[misc]
            }
            for name in ("learned", "running")
        },
    }


def mean_ratio(sources: Mapping[str, Mapping[str, Any]], part: str, name: str) -> float:
    """Mean over sources of the error with a correction over that without."""
    ratios = [each[part][name] / each[part]["plain"] for each in sources.values() if each[part]["n"] >= LEAST]
    return _rounded(lambda: np.mean(ratios))


def _within(steps: Steps, rate: float) -> dict[str, list[bool]]:
    """By source whether each outcome after the first `SETTLED` of its cluster is in P10-P90, with tails of a rate."""
    tails: dict[str, Tails] = {}
    found: dict[str, list[bool]] = {}
    for step in steps:
        after = tails.get(step.cluster, Tails()).after(step.deviation, rate)
        if step.outcomes >= SETTLED:
            found.setdefault(step.source, []).append(after.inside[-1])
        tails[step.cluster] = after
    return found


def chosen_rates(steps: Steps) -> dict[str, Any]:
    """The rate of tails as other sources choose it, the one with which the coverage of each is nearest to 80 % on
    average, and the coverage of the source that is left out with it."""
    within = {rate: _within(steps, rate) for rate in RATES}
    off = {rate: {name: abs(np.mean(flags) - INSIDE) for name, flags in each.items()} for rate, each in within.items()}
    names = list(within[RATES[0]])

    def choice(without: str | None = None) -> float:
        return min(RATES, key=lambda rate: float(np.mean([off[rate][name] for name in names if name != without])))

    nested = {name: choice(without=name) for name in names}
    sources = {
        name: {"rate": rate, "n": len(within[rate][name]), "settled": _share(within[rate][name])}
        for name, rate in nested.items()
    }
    together = [flag for name, rate in nested.items() for flag in within[rate][name]]
    return {"by_all": choice(), "settled": _share(together), "sources": sources}
