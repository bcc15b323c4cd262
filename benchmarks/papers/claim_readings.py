"""Readings of the published claims: figures with intervals and counts, out of the JSON of the report.

Each reader takes the studies of the report (study -> its part of the JSON), `stagger_runs` and `boosting_steps` (the
JSON of `benchmarks.rigs.stagger` and of `benchmarks.papers.boosting_steps`), and yields what is there: a study that
failed or a quick report gives fewer readings.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.papers.boosting_claims import SAME_GPUS
from benchmarks.papers.intervals import over_groups

TENSOR_CORES, BANDWIDTH = "matrix_use", "bandwidth_saved"
"""Features of `predictors.features` that are the paper's two."""
Sources = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Reading:
    """A figure found, with P10 and P90 (None without groups) and the number `n` of rows or groups `of` a kind."""

    what: str
    figure: float
    low: float | None
    high: float | None
    n: int
    of: str


def _data(sources: Sources, study: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = sources.get(study, {}).get("data", {})
    return found


def _over_families(run: Mapping[str, Any] | None, what: str) -> Iterator[Reading]:
    """Mean error of a held-out run of `judging.scores`, with an interval over its families."""
    if not run or not run["all"]["n"]:
        return
    families = [(each["n"], each["mape"]) for each in run["family"].values()]
    low, high = over_groups(families, lambda drawn: sum(n * m for n, m in drawn) / sum(n for n, _ in drawn))
    yield Reading(what, run["all"]["mape"], low, high, run["all"]["n"], f"rows of {len(families)} families")


def _features(sources: Sources) -> Iterator[Reading]:
    found = _data(sources, "boosting").get("importance", {}).get("compute", ())
    for place, how in ((1, "mean |SHAP|"), (2, "gain")):
        names = [each[0] for each in sorted(found, key=lambda each: -each[place])]
        for name, what in ((TENSOR_CORES, "tensor-core use"), (BANDWIDTH, "bandwidth saving")):
            if name in names:
                yield Reading(f"rank of {what} by {how}", names.index(name) + 1, None, None, len(names), "features")


def _range(sources: Sources) -> Iterator[Reading]:
    ratios: Sequence[float] = _data(sources, "boosting").get("precision_range", ())
    if ratios:
        of = "jobs measured in several precisions"
        yield Reading("slowest over fastest precision, largest", max(ratios), None, None, len(ratios), of)
        low, high = over_groups(ratios, statistics.median)
        yield Reading("the same, median", statistics.median(ratios), low, high, len(ratios), of)


def _blind(sources: Sources) -> Iterator[Reading]:
    """The largest error of a twin in a precision other than its own."""
    boosting = _data(sources, "boosting")
    real = boosting.get("real_runs", {})
    for what, by_way, rows, ending in (
        ("published steps, GPUs that the twin knows", boosting.get("blind", {}), boosting.get("rows", 0), SAME_GPUS),
        ("published steps, all GPUs", boosting.get("blind", {}), boosting.get("rows", 0), ""),
        ("real runs on a CPU", real.get("blind", {}), real.get("rows", 0), ""),
    ):
        sizes = [
            size
            for way, by in by_way.items()
            if "blind" in way and way.endswith(ending) and (ending or not way.endswith(SAME_GPUS))
            for asked, size in by.items()
            if asked != "all" and size is not None and way.removesuffix(SAME_GPUS).rpartition(" ")[2] != asked
        ]
        if sizes:
            yield Reading(f"worst twin and precision, {what}", max(sizes), None, None, rows, "rows")


def _aware(sources: Sources) -> Iterator[Reading]:
    boosting = _data(sources, "boosting")
    scores, real = boosting.get("scores", {}), boosting.get("real_runs", {}).get("scores", {})
    for run, way in (("boosting by job", "new job"), ("boosting by family", "new family")):
        yield from _over_families(scores.get(run), f"published steps, {way}")
    for by, found in sources.get("boosting_steps", {}).get("held_out", {}).items():
        each = found["boosting | all"]["all"]
        what = f"all published steps, new {by} (range over seeds)"
        yield Reading(what, each["mape"], each["least"], each["most"], each["rows"], "rows")
    for run, way in (("boosting by job", "new job"), ("boosting by family", "new family")):
        yield from _over_families(real.get(run), f"real runs on a CPU, {way}")


def _unseen(sources: Sources) -> Iterator[Reading]:
    boosting = _data(sources, "boosting")
    yield from _over_families(boosting.get("scores", {}).get("boosting by precision"), "published steps")
    real = boosting.get("real_runs", {}).get("scores", {}).get("boosting by precision")
    yield from _over_families(real, "real runs on a CPU, trained in one of two precisions")


def _error(sources: Sources) -> Iterator[Reading]:
    protocols = _data(sources, "predictddl").get("protocols", {})
    if same := protocols.get("same runs"):
        count = len(same["ratios"])
        yield Reading("one network, largest, same runs", max(same["ratios"].values()), None, None, count, "networks")
    for name, what in (
        ("same runs", "same runs, Ernest fitted in seconds"),
        ("same runs, in per cent", "same runs, Ernest fitted in per cent"),
        ("per network", "Ernest runs the network itself"),
    ):
        if each := protocols.get(name):
            count = len(each["ratios"])
            for key, statistic in (("ratio", "means"), ("median_ratio", "medians")):
                low, high = each[f"{key}_interval"]
                yield Reading(f"ratio of {statistic}, {what}", each[key], low, high, count, "networks")


def _speed(sources: Sources) -> Iterator[Reading]:
    speed = _data(sources, "predictddl").get("speed", {})
    for key, what in (("ratio_fresh", "a fresh process"), ("ratio_warm", "a process that has all loaded")):
        if each := speed.get(key):
            what = f"first answer about a new network in {what}, median (quartiles)"
            yield Reading(what, each["median"], each["q1"], each["q3"], each["timings"], "timings")


def _stagger(sources: Sources) -> Iterator[Reading]:
    """Measured makespan of a naive start over that of the start that was chosen, less one."""
    gains: dict[str, list[float]] = {"starting together": [], "one after the other": []}
    for pair in sources.get("stagger_runs", {}).get("pairs", ()):
        seconds = {row["name"]: statistics.median(row["measured_s"]) for row in pair["rows"]}
        for naive, name in zip(gains, ("01:0", "serial"), strict=True):
            gains[naive].append(seconds[name] / seconds["best"] - 1.0)
    for naive, values in gains.items():
        if values:
            low, high = over_groups(values, statistics.median)
            yield Reading(f"median gain over {naive}", statistics.median(values), low, high, len(values), "pairs")


READERS: Mapping[str, Callable[[Sources], Iterator[Reading]]] = {
    "features": _features,
    "range": _range,
    "blind": _blind,
    "aware": _aware,
    "unseen": _unseen,
    "error": _error,
    "speed": _speed,
    "stagger": _stagger,
}
"""Claim of `claims.CLAIMS` -> its readings."""
