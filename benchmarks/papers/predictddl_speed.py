"""How long until PredictDDL, and Ernest, first say anything of a new network, and how long an answer takes after that.

    call     one answer about a network that the process has answered for: the model alone
    fresh    from starting a process to its first answer: the interpreter, imports (torch, to trace the network),
             loading the predictor, tracing, embedding, the regressor
    warm     the same answer in a process that has traced another network before, so that all is imported and loaded

New networks are those of the real runs at sizes of pictures that none has, so no graph of them ships or is remembered.
Ernest has to run a network first: to its process are added the seconds of the runs that its design asks for, of the
same network and data (at the size that was run), as they were measured: 2 or 3 repeats each with building and warm-up.
Those leave out starting processes, so a fresh one pays for one start with torch imported, as timed here. `ernest_pass`
counts each run once and without building and warm-up, the least that anybody could charge. The runs were made on a
quiet machine; processes are timed as they find it, other studies beside them.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.papers.predictddl_ernest import PER_NETWORK
from benchmarks.papers.predictddl_held_out import FEW, FULL
from benchmarks.papers.study import Claim, Table
from benchmarks.papers.wording import portion
from precision_time.errors import PredictorError
from precision_time.job.job import Job
from precision_time.predictors.interface import MeasuredJob
from precision_time.predictors.predictddl.predictor import PredictDDL
from precision_time.predictors.predictddl.trainer import Row

NETWORKS, REPEATS, AGAIN = 5, 3, 20
ROOT = Path(__file__).parents[2]
"""Where `python -m benchmarks.papers.first_answer` finds its module."""
SIZES = (48, 96, 80)
"""Pictures of these sizes on a side are in no run; patches of 4 and 8 and windows divide them."""
BUDGET_S = 75.0
"""For fresh processes; after it no size more is begun."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, quartiles and number of some timings in seconds, or of ratios of them."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        low, median, high = (float(q) for q in np.quantile(values, (0.25, 0.5, 0.75)))
        return cls(median, low, high, len(values))

    def __format__(self, form: str) -> str:
        return f"{self.median:{form}} ({self.low:{form}}-{self.high:{form}})"


@dataclass(frozen=True, slots=True)
class Speed:
    """Timings in seconds. Ernest's `fresh` and `warm` hold the runs it needs; `ratio_*` are Ernest's over PredictDDL's,
    every timing of a network beside every one of the same network."""

    call: Spread
    fresh: Spread
    warm: Spread
    ernest_call: Spread
    ernest_runs: Spread
    ernest_pass: Spread
    torch_start: Spread
    ernest_fresh: Spread
    ernest_warm: Spread
    ratio_fresh: Spread
    ratio_warm: Spread

    def to_dict(self) -> dict[str, dict[str, float]]:
        return {
            name if name.startswith("ratio") else f"{name}_s": {
                "median": each.median,
                "q1": each.low,
                "q3": each.high,
                "timings": each.count,
            }
            for name in self.__slots__
            for each in (getattr(self, name),)
        }


def timed(
    rows: Sequence[Row],
    ernest_runs: Mapping[str, Sequence[MeasuredJob]],
    quick: bool = False,
    report: Callable[[int, int], None] = lambda done, of: None,
) -> Speed:
    """`ernest_runs` holds for every network and dataset type the runs of Ernest's design (`ernest_runs`)."""
    keys = sorted(ernest_runs)
    chosen = keys[:: max(1, len(keys) // NETWORKS)][: 1 if quick else NETWORKS]
    repeats, again = (1, 2) if quick else (REPEATS, AGAIN)
    first = {key: ernest_runs[key][0].job for key in chosen}
    steps = len(chosen) * (repeats + 1) + 1
    with tempfile.TemporaryDirectory(prefix="precision-time-") as folder:
        predictor = PredictDDL(dataclasses.replace(FULL, settings=FEW[:1]))  # which regressor it is takes no time
        predictor.learn_described(rows)
        predictor.save(Path(folder))
        new = [(key, first[key].replace(input={"image_size": size})) for size in SIZES[:repeats] for key in chosen]
        base = {"predictor": "predictddl", "folder": folder}
        fresh: dict[str, list[float]] = {}
        begin = time.perf_counter()
        for done, (key, job) in enumerate(new):
            if len(fresh) == len(chosen) and time.perf_counter() - begin > BUDGET_S:
                break  # every network was timed once; a busy machine is not worth more
            fresh.setdefault(key, []).append(_first_line({**base, "jobs": [job.to_dict()]})[0])
            report(done + 1, steps)
        other = first[chosen[0]].replace(input={"image_size": SIZES[0] + 64}).to_dict()
        lines = _lines({**base, "jobs": [other, *(job.to_dict() for _, job in new)], "again": again})
        warm: dict[str, list[float]] = {}
        for (key, _), line in zip(new, lines[1:-1], strict=True):
            warm.setdefault(key, []).append(line["answer_s"])
        calls = lines[-1]["call_s"]
    starts = [_torch_start() for _ in range(repeats)]
    report(len(new) + 1, steps)
    start_s = float(np.median(starts))
    ernest_fresh: dict[str, float] = {}
    ernest_warm: dict[str, float] = {}
    ernest_calls: list[float] = []
    for done, key in enumerate(chosen, len(new) + 2):
        wall, lines = _first_line(_ernest_request(first[key], ernest_runs[key], again))
        runs_s = sum(m.cost_s for m in ernest_runs[key])
        ernest_fresh[key] = start_s + runs_s + wall
        ernest_warm[key] = runs_s + lines[0]["ready_s"] + lines[0]["answer_s"]
        ernest_calls += lines[-1]["call_s"]
        report(done, steps)
    return Speed(
        call=Spread.of(calls),
        fresh=Spread.of(_flat(fresh)),
        warm=Spread.of(_flat(warm)),
        ernest_call=Spread.of(ernest_calls),
        ernest_runs=Spread.of([sum(m.cost_s for m in ernest_runs[key]) for key in keys]),
        ernest_pass=Spread.of([sum(m.seconds for m in ernest_runs[key]) for key in keys]),
        torch_start=Spread.of(starts),
        ernest_fresh=Spread.of(list(ernest_fresh.values())),
        ernest_warm=Spread.of(list(ernest_warm.values())),
        ratio_fresh=Spread.of([ernest_fresh[key] / s for key, seconds in fresh.items() for s in seconds]),
        ratio_warm=Spread.of([ernest_warm[key] / s for key, seconds in warm.items() for s in seconds]),
    )


def _ernest_request(job: Job, runs: Sequence[MeasuredJob], again: int) -> dict[str, Any]:
    return {
        "predictor": "ernest",
        "by": PER_NETWORK,
        "jobs": [job.to_dict()],
        "again": again,
        "rows": [[m.job.to_dict(), m.seconds] for m in runs],
    }


def _torch_start() -> float:
    """Seconds of a process that imports torch and ends."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True, capture_output=True)
    return time.perf_counter() - start


def _flat(groups: Mapping[str, Sequence[float]]) -> list[float]:
    return [value for group in groups.values() for value in group]


def _first_line(request: Mapping[str, Any]) -> tuple[float, list[dict[str, Any]]]:
    """Seconds from starting a process to reading its first answer, and all its lines."""
    command = [sys.executable, "-m", "benchmarks.papers.first_answer"]
    text = json.dumps(request)
    start = time.perf_counter()
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(text)
        process.stdin.close()
        line = process.stdout.readline()
        wall = time.perf_counter() - start
        rest = process.stdout.read()
        errors = process.stderr.read() if process.stderr else ""
    if process.returncode or not line:
        last = (errors.strip().splitlines() or ["nothing"])[-1]
        raise PredictorError(f"the process that predicts {request['jobs'][0]['model']} failed: {last}")
    return wall, [json.loads(each) for each in (line + rest).splitlines()]


def _lines(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    return _first_line(request)[1]


def speed_claims(speed: Speed) -> tuple[Claim, ...]:
    """Ratios beside the published one."""
    return (
        Claim(
            "time to a first answer about a new network in a fresh process, Ernest's over PredictDDL's: median "
            "(quartiles)",
            "10.3",
            f"{speed.ratio_fresh:.1f}: {speed.ernest_fresh:.1f} s / {speed.fresh:.1f} s",
            None,
            f"Starting python and importing torch, which tracing needs, takes {speed.torch_start.median:.1f} s: "
            f"{portion(speed.torch_start.median, speed.fresh.median)} of PredictDDL's. Ernest pays one such start too.",
        ),
        Claim(
            "the same in a process that has all loaded",
            "10.3",
            f"{speed.ratio_warm:.0f}: {speed.ernest_warm:.1f} s / {speed.warm:.2f} s",
            None,
            "PredictDDL traces and embeds the network, Ernest makes its design's runs of it. The paper does not say "
            "which of the two it timed.",
        ),
        Claim(
            "time of one answer about a known network, Ernest's over PredictDDL's",
            "",
            f"{speed.ernest_call.median / speed.call.median:.2f} ({1e3 * speed.ernest_call.median:.2f} ms / "
            f"{1e3 * speed.call.median:.2f} ms)",
            None,
            "Four terms against columns, a law and a regressor.",
        ),
    )


def speed_table(speed: Speed) -> Table:
    """All timings with their quartiles."""
    rows = []
    for what, timings, predictddl in (
        ("call: one answer about a known network", speed.ernest_call, speed.call),
        ("fresh: from starting a process to its first answer about a new network", speed.ernest_fresh, speed.fresh),
        ("warm: the same with all imported and loaded", speed.ernest_warm, speed.warm),
        ("of Ernest's: the runs of its design, as measured", speed.ernest_runs, None),
        ("of Ernest's: one pass of each run, no repeats, building or warm-up", speed.ernest_pass, None),
        ("of Ernest's fresh: one start of python with torch", speed.torch_start, None),
    ):
        cells = [f"{each:.4g}" if each else "" for each in (timings, predictddl)]
        rows.append((what, *cells, str(timings.count), str(predictddl.count) if predictddl else ""))
    rows.append(("ratio, fresh", f"{speed.ratio_fresh:.3g}", "", str(speed.ratio_fresh.count), ""))
    rows.append(("ratio, warm", f"{speed.ratio_warm:.3g}", "", str(speed.ratio_warm.count), ""))
    return Table(
        "Seconds until the first answer: median (quartiles)",
        ("what", "Ernest", "PredictDDL", "Ernest's timings", "PredictDDL's"),
        tuple(rows),
    )
