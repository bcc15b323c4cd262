"""Whether predictions choose the right layout: published ladders of layouts of one job at one global batch."""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precision_time.fit.layouts import HELD_OUT_BY_MODEL, Judgement
from precision_time.job.job import Job
from precision_time.measurements.row import Row
from precision_time.report.errors import percent
from precision_time.report.table import Table

APART = 1.05
"""Ratio of two measured steps from which their order counts."""


RUNS = ("without factors", HELD_OUT_BY_MODEL)
_LINE = re.compile(r"[\s:#]*(?:line|L)?\s*\d+\s*$")


def ladder_key(row: Row, job: Job) -> tuple[Any, ...]:
    """Equal for rows of one job on equal GPUs and samples, whatever the layout, micro-batch and recomputation.

    Rows of one document alone make a ladder, since another has another release of the framework.
    """
    layout = job.layout_spec
    samples = (job.batch_size or 0) * job.grad_accum * layout.dp
    fixed = (row.framework, _LINE.sub("", row.source), job.model, repr(dict(job.model_config)), repr(dict(job.input)))
    return (*fixed, job.precision, job.execution, job.gpu, job.gpus, samples)


def arrangement(job: Job) -> tuple[Any, ...]:
    """What differs between the rungs of a ladder; rows with equal ones are repeats."""
    return job.layout, job.batch_size, job.grad_accum, job.recompute, job.recompute_layers


def order(judged: Judgement) -> list[dict[str, Any]]:
    """By run (how rows were held out) and framework: pairs in the right order, and regret of the chosen layout.

    Rows of trust A and B count; of repeats the first.
    """
    ladders: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    rungs = [arrangement(case.job) for case in judged.cases]
    for place, case in enumerate(judged.cases):
        known = ladders[ladder_key(case.row, case.job)]
        if judged.trusted[place] and rungs[place] not in [rungs[each] for each in known]:
            known.append(place)
    several = [places for places in ladders.values() if len(places) > 1]
    measured = np.exp(judged.measured)
    found = []
    for run, logs in ((run, judged.runs[run]) for run in RUNS if run in judged.runs):
        frameworks: Mapping[str, list[list[int]]] = defaultdict(list)
        for places in several:
            frameworks[judged.cases[places[0]].row.framework].append(places)
        for name, chosen in (("all", several), *sorted(frameworks.items())):
            found.append({"run": run, "framework": name, **_judged(chosen, measured, logs)})
    return found


def _judged(
    ladders: Sequence[Sequence[int]], measured: NDArray[np.float64], logs: NDArray[np.float64]
) -> dict[str, Any]:
    right = pairs = 0
    regrets = []
    for places in ladders:
        for a, b in itertools.combinations(places, 2):
            if max(measured[a] / measured[b], measured[b] / measured[a]) > APART:
                pairs += 1
                right += (measured[a] < measured[b]) == (logs[a] < logs[b])
        best = min(measured[place] for place in places)
        regrets.append(measured[min(places, key=lambda place: logs[place])] / best - 1.0)
    return {
        "ladders": len(ladders),
        "pairs": pairs,
        "right": round(right / pairs, 4) if pairs else None,
        "regret": round(math.fsum(regrets) / len(regrets), 4) if regrets else None,
        "worst_regret": round(float(max(regrets)), 4) if regrets else None,
    }


def table(found: Sequence[Mapping[str, Any]]) -> str:
    """The table of the page."""
    rows = [
        [
            each["run"],
            each["framework"],
            f"{each['ladders']}",
            f"{each['pairs']}",
            "" if each["right"] is None else percent(each["right"], 1),
            "" if each["regret"] is None else percent(each["regret"], 1),
            "" if each["worst_regret"] is None else percent(each["worst_regret"], 0),
        ]
        for each in found
    ]
    heads = ["run", "framework", "ladders", "pairs", "in the right order", "mean regret", "worst"]
    return Table(heads, rows, left=2).markdown()
