"""Published rows as the outcomes of clusters, one after the other: what is predicted of each before it is learned.

A cluster is a source, of MLPerf a submitter; its rows come by release, those of a release in the order of its tables.
Nothing that predicts a row has seen its source: neither the parameters (`held_out`), nor the variances of effects, nor
the width of the first interval.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.replay.held_out import HeldOutRow
from benchmarks.replay.variances import Fit, by_source
from precision_time.fit.folds import least_spread
from precision_time.serve.learning.cluster import Cluster, KnownJob
from precision_time.serve.learning.effects import Variances
from precision_time.serve.learning.outcome import Known, Observed

INJECTED = 0.1
"""Share of outcomes that an injection of broken machines makes slower."""
SLOWDOWNS = (2.0, 5.0)


@dataclass(frozen=True, slots=True)
class Step:
    """A row as it was predicted by what was known before it. Logs of predicted / measured.

    outcomes    of the cluster before it; `others` of these of other jobs, `models` of other models
    plain       without any correction
    learned     by all outcomes before it
    by_others   by those of other jobs
    by_models   by those of other models; None where there are none
    running     by the mean of log(measured / predicted) of all before it
    anchored    by the shipped parameters and anchors, which saw it (those of the same job left out)
    deviation   of log(measured) from the median that all outcomes before it give, in spreads
    inside      whether it is within P10-P90; `inside_plain`: of the uncorrected interval
    broken      whether an injection made it slower
    learn_s     seconds of the processor that learning it took
    """

    id: str
    source: str
    cluster: str
    outcomes: int
    others: int
    repeats: int
    models: int
    plain: float
    learned: float
    by_others: float
    by_models: float | None
    running: float
    anchored: float
    deviation: float
    inside: bool
    inside_plain: bool
    broken: bool
    learn_s: float


def base_spreads(rows: Sequence[HeldOutRow], without: str) -> dict[str, float]:
    """By kind of step the spread that puts 80 % of the rows of other sources into P10-P90, beside what each job adds;
    "": of all kinds. A source counts as the root of its rows."""
    others = [row for row in rows if row.source != without]
    sizes = {name: len(each) for name, each in by_source(others).items()}
    kinds: dict[str, list[HeldOutRow]] = {"": others}
    for row in others:
        kinds.setdefault(row.kind, []).append(row)
    return {
        kind: least_spread(
            [row.residual for row in each], [row.widening for row in each], [sizes[row.source] ** -0.5 for row in each]
        )
        for kind, each in kinds.items()
        if not kind or len({row.source for row in each}) > 1
    }


@dataclass(slots=True)
class _Stream:
    """A cluster and what happened on it so far."""

    cluster: Cluster
    seen: list[HeldOutRow]
    ratios: list[float]


def in_time(rows: Sequence[HeldOutRow]) -> Sequence[HeldOutRow]:
    """The rows of a source by release, those of a release in the order of its tables."""
    return sorted(rows, key=lambda row: row.release)


def replay(
    rows: Sequence[HeldOutRow],
    fit: Fit,
    order: Callable[[Sequence[HeldOutRow]], Sequence[HeldOutRow]] = in_time,
    injected: int | None = None,
    sources: Iterable[str] | None = None,
    variances: Variances | None = None,
) -> list[Step]:
    """Every row of every source (of `sources`: None: all) in its order. `injected`: seed by which a tenth of the
    outcomes is made two to five times slower; the rows themselves are then judged as they were measured."""
    steps: list[Step] = []
    for name, members in by_source(rows).items():
        if sources is not None and name not in sources:
            continue
        fitted, spreads = variances or fit.variances(name), base_spreads(rows, name)
        random = np.random.default_rng(injected)
        streams: dict[str, _Stream] = {}
        for number, row in enumerate(order(members), 1):
            stream = streams.setdefault(row.cluster, _Stream(Cluster(row.cluster, fitted), [], []))
            slower = 1.0
            if injected is not None and random.random() < INJECTED:
                slower = float(random.uniform(*SLOWDOWNS))
            spread = math.hypot(spreads.get(row.kind, spreads[""]), row.widening)
            steps.append(_step(stream, row, number, spread, slower))
            stream.seen.append(row)
            stream.ratios.append(row.residual + math.log(slower))
    return steps


def _step(stream: _Stream, row: HeldOutRow, number: int, spread: float, slower: float) -> Step:
    cluster, facets, actual = stream.cluster, row.facets, row.residual
    learned = cluster.correction(facets)
    mean, width = math.log(learned.factor), learned.narrowed(spread)
    repeats = [each for each in stream.seen if each.job == row.job]
    strangers = [each for each in stream.seen if each.model != row.model]
    by_others = mean
    if repeats:
        by_others = _mean(cluster, row, lambda known: known.facets.job != row.job)
    by_models = _mean(cluster, row, lambda known: known.facets.model != row.model) if strangers else None
    known = Known(number, row.measured_s * slower, 0.0, row.release)
    start = time.process_time()
    cluster.learn(Observed(facets, row.predicted_s, spread, known, row.id, row.cluster, row.model))
    cluster.correction(facets)
    took = time.process_time() - start
    low, high = mean - learned.low * width, mean + learned.high * width
    return Step(
        id=row.id,
        source=row.source,
        cluster=row.cluster,
        outcomes=len(stream.seen),
        others=len(stream.seen) - len(repeats),
        repeats=len(repeats),
        models=len(strangers),
        plain=-actual,
        learned=mean - actual,
        by_others=by_others - actual,
        by_models=None if by_models is None else by_models - actual,
        running=(float(np.mean(stream.ratios)) if stream.ratios else 0.0) - actual,
        anchored=math.log(row.anchored_s / row.measured_s),
        deviation=(actual - mean) / width,
        inside=low <= actual <= high,
        inside_plain=abs(actual) <= 1.2815515655446004 * spread,
        broken=slower != 1.0,
        learn_s=took,
    )


def _mean(cluster: Cluster, row: HeldOutRow, keep: Callable[[KnownJob], bool]) -> float:
    """The correction by some of the cluster's jobs."""
    jobs = {key: known for key, known in cluster.jobs.items() if keep(known)}
    some = Cluster(cluster.name, cluster.variances, jobs, current=cluster.current)
    return math.log(some.correction(row.facets).factor)
