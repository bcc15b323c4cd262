"""A few scale factors from published whole steps, and how well they hold on rows they have not seen.

    python -m precision_time.fit.steps --shared DIR             fit, write timing/data/step_scales.json, print the table
    python -m precision_time.fit.steps --shared DIR --report    only judge: every row held out by family, GPU, precision

The kernel models come from kernel tables; whole steps may only move factors on a group of families per architecture and
dtype class, shrunk towards zero and towards each other, and three factors of host and execution. Each fold refits all
of them without the rows it is judged on.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precision_time.capture.training_step import training_step
from precision_time.fit.rows import Row, read_rows
from precision_time.fit.score import Judged, summary_table
from precision_time.hardware.catalog import default_catalog
from precision_time.hardware.fabric import Cluster
from precision_time.layout.data_parallel import data_parallel
from precision_time.layout.rank_program import RankProgram
from precision_time.timeline.simulate import Timeline, simulate
from precision_time.timing.constants import StepConstants
from precision_time.timing.operators import WorkOptions
from precision_time.timing.price import PricedProgram, price
from precision_time.timing.work import MEMORY_FAMILIES

Array = NDArray[np.float64]
OUTPUT = Path(__file__).parent.parent / "timing" / "data" / "step_scales.json"

_NORMS = ("batch_norm", "layer_norm", "group_norm", "softmax")
_INDEXED = ("embedding", "gather", "scatter", "sort")
GROUPS: dict[str, tuple[str, ...]] = {
    "conv.nchw": ("conv.nchw",),
    "conv.nhwc": ("conv.nhwc",),
    "conv_dilated": ("conv_dilated",),
    "grouped": ("conv_grouped", "conv_depthwise"),
    "matmul": ("matmul", "rnn"),
    "norm": _NORMS,
    "indexed": _INDEXED,
    "traffic": tuple(sorted(MEMORY_FAMILIES - {*_NORMS, *_INDEXED, "optimizer"})),
}
"""Families (with the layout where it matters) that share a factor. Attention and optimizer keep what tables say."""
_GROUP_OF = {family: group for group, families in GROUPS.items() for family in families}
EXECUTIONS = ("torchscript", "xla")
PRIOR = {"execution": 0.20, "host": 0.30}
GROUP_PRIOR = {
    "matmul": 0.05, "traffic": 0.08, "norm": 0.15, "conv": 0.25, "conv_dilated": 0.50, "grouped": 0.35, "indexed": 0.35,
}  # fmt: skip
"""Prior standard deviations of the log factors, set by what the kernel tables already measure: matrix products and
pointwise traffic are known to 5-10 %, norms by a published figure, half-precision convolutions by none. A factor's
dtype class and architecture may depart from the group by 0.7 and 0.5 of it."""
TRUST_WEIGHT = {"A": 1.0, "B": 0.6, "C": 0.1}
"""Rows of trust C (other frameworks' kernels, loose or host-bound) only help to settle the execution factors."""
NOISE = 0.10
"""Standard deviation of log(measured) that the fit allows a row before shrinkage yields."""


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A row with everything that does not depend on the factors."""

    row: Row
    program: RankProgram
    cluster: Cluster
    options: WorkOptions
    execution: str
    family: str
    weight: float


def cases(rows: Iterable[Row], progress: Callable[[int], None] = lambda done: None) -> list[Case]:
    """The rows that can be expressed, traced."""
    found = []
    for done, row in enumerate(rows, 1):
        progress(done)
        if row.job is None:
            continue
        job = row.job
        step = training_step(job)
        cluster = default_catalog().cluster(job.gpu, job.gpus, node=job.system or job.node, nodes=job.nodes)
        program = data_parallel(step, cluster.gpus, job.grad_accum, job.no_sync, job.communication_dtype)
        options = WorkOptions(tf32=step.precision.tf32, channels_last=job.memory_format == "nhwc")
        found.append(Case(row, program, cluster, options, job.execution, step.family, TRUST_WEIGHT[row.trust]))
    return _balanced(found)


def _balanced(found: list[Case]) -> list[Case]:
    """Rows of one model, GPU and precision are near copies: together they weigh as the root of their number."""
    sizes: dict[tuple[str, str, str], int] = {}
    for case in found:
        key = (case.row.model, case.row.gpu, case.row.precision)
        sizes[key] = sizes.get(key, 0) + 1
    return [
        dataclasses.replace(c, weight=c.weight / sizes[(c.row.model, c.row.gpu, c.row.precision)] ** 0.5) for c in found
    ]


class Parameters:
    """The log factors as one vector: group, group x class, group x class x architecture, execution, host."""

    def __init__(self, keys: Sequence[tuple[str, str, str]]) -> None:
        self.keys = sorted(set(keys))
        names: dict[str, float] = {}
        for group, arch, kind in self.keys:
            family = group.partition(".")[0]
            width = GROUP_PRIOR[family]
            names[family] = width
            names[group] = width if group == family else 0.7 * width
            names[f"{group}|{kind}"] = 0.7 * width
            names[f"{group}|{arch}|{kind}"] = 0.5 * width
        for execution in EXECUTIONS:
            names[f"execution:{execution}"] = PRIOR["execution"]
        for host in ("operator", "tensor"):
            names[f"host:{host}"] = PRIOR["host"]
        self.names = list(names)
        self.prior = np.array(list(names.values()))
        self.index = {name: i for i, name in enumerate(self.names)}

    def columns(self, group: str, arch: str, kind: str) -> list[int]:
        """Parameters that add up to the log factor of a group on an architecture in a dtype class."""
        wanted = {group.partition(".")[0], group, f"{group}|{kind}", f"{group}|{arch}|{kind}"}
        return [self.index[name] for name in sorted(wanted) if name in self.index]

    def constants(self, theta: Array) -> StepConstants:
        """The factors as `price` reads them, with `*` architectures for those never seen."""
        scales: dict[str, float] = {}
        for group, families in GROUPS.items():
            for kind in ("fp64", "fp32", "tf32", "half", "fp8"):
                if group in self.index:
                    common = float(np.exp(theta[self.columns(group, "*", kind)].sum()))
                    scales |= {f"{family}|*|{kind}": common for family in families}
        for group, arch, kind in self.keys:
            factor = float(np.exp(theta[self.columns(group, arch, kind)].sum()))
            scales |= {f"{family}|{arch}|{kind}": factor for family in GROUPS[group]}
        execution = {e: float(np.exp(theta[self.index[f"execution:{e}"]])) for e in EXECUTIONS}
        host = {h: float(np.exp(theta[self.index[f"host:{h}"]])) for h in ("operator", "tensor")}
        return StepConstants(scales, execution, host)


def run(case: Case, constants: StepConstants) -> tuple[PricedProgram, Timeline]:
    priced = price(case.program, case.cluster, case.options, case.execution, constants)
    return priced, simulate(priced)


def _keys(case: Case, priced: PricedProgram) -> dict[tuple[str, str, str], float]:
    """Seconds of the step by (group, architecture, dtype class)."""
    program = case.program
    times = np.zeros(len(program.kinds))
    for segment, repeats in (
        (program.micro, program.micro_steps),
        (program.accumulate, program.micro_steps - 1),
        (program.bucket_copies, program.synced_micro_steps),
        (program.tail, 1),
    ):
        if len(segment) and repeats > 0:
            times += np.bincount(segment.kind, minlength=len(times)) * repeats
    seconds = priced.work_s * times[priced.works.owner]
    found: dict[tuple[str, str, str], float] = {}
    table = priced.works.table
    for index, (family, variant, _, kind) in enumerate(table.classes):
        group = _GROUP_OF.get(family) or _GROUP_OF.get(f"{family}.{variant.rpartition('.')[2]}")
        if group is not None:
            key = (group, case.cluster.gpu.arch, kind)
            found[key] = found.get(key, 0.0) + float(seconds[table.class_of == index].sum())
    return found


def fit(training: Sequence[Case], iterations: int = 6) -> tuple[Parameters, Array]:
    """Gauss-Newton on log(measured / predicted) with the Gaussian prior.

    The slope of a group's factor is the group's share of the step; the host's slopes are differences.
    """
    plain = StepConstants()
    shares = [_keys(case, run(case, plain)[0]) for case in training]
    parameters = Parameters([key for share in shares for key in share])
    theta = np.zeros(len(parameters.names))
    for _ in range(iterations):
        constants = parameters.constants(theta)
        slopes = np.zeros((len(training), len(theta)))
        residual = np.zeros(len(training))
        for i, case in enumerate(training):
            priced, timeline = run(case, constants)
            residual[i] = np.log(case.row.measured_s / timeline.step_s)
            busy = 0.0
            for (group, arch, kind), seconds in _keys(case, priced).items():
                slopes[i, parameters.columns(group, arch, kind)] += seconds / timeline.step_s
                busy += seconds
            if case.execution in EXECUTIONS:
                slopes[i, parameters.index[f"execution:{case.execution}"]] = busy / timeline.step_s
            if timeline.host_gap_s < 0.002 * timeline.step_s:
                continue  # the device never waits for the host, so the host's factors do not move this row
            for host in ("operator", "tensor"):
                bent = dataclasses.replace(constants, host={**constants.host, host: constants.host[host] * 1.1})
                change = np.log(
                    simulate(price(case.program, case.cluster, case.options, case.execution, bent)).step_s
                    / timeline.step_s
                )
                slopes[i, parameters.index[f"host:{host}"]] = change / np.log(1.1)
        # rows far off say that the model lacks something, not that a factor is wrong: they pull less (Huber)
        robust = np.minimum(1.0, 0.3 / np.maximum(np.abs(residual), 1e-9))
        weight = np.array([c.weight for c in training]) * robust / NOISE**2
        left = (slopes * weight[:, None]).T @ slopes + np.diag(parameters.prior**-2)
        right = (slopes * weight[:, None]).T @ residual - theta / parameters.prior**2
        step = np.linalg.solve(left, right)
        theta = theta + step
        if float(np.abs(step).max()) < 0.01:
            break
    return parameters, theta


def judge(held_out: Sequence[Case], constants: StepConstants) -> list[Judged]:
    return [Judged.of(case.row, case.family, *run(case, constants)) for case in held_out]


FOLDS: dict[str, Callable[[Case], str]] = {
    "model family": lambda case: case.family,
    "GPU": lambda case: case.cluster.gpu.arch + ("-sxm" if "sxm" in case.row.gpu else "-pcie"),
    "precision": lambda case: case.row.precision,
}


def cross_validate(everything: Sequence[Case], fold: Callable[[Case], str]) -> list[Judged]:
    """Every row judged by factors fitted without its fold."""
    judged: list[Judged] = []
    for name in sorted({fold(case) for case in everything}):
        parameters, theta = fit([c for c in everything if fold(c) != name])
        judged += judge([c for c in everything if fold(c) == name], parameters.constants(theta))
    return judged


Z90 = 1.2815515655446004
"""90th percentile of the standard normal distribution."""


def coverage(judged: Sequence[Judged]) -> float:
    """Share of rows inside P10-P90 when the base spread comes from the other families' held-out rows only."""
    inside = []
    for family in {j.family for j in judged}:
        base = spread_for([j for j in judged if j.family != family])
        inside += [
            abs(j.log_error) <= Z90 * float(np.hypot(base, j.widening))
            for j in judged
            if j.family == family and j.trust in "AB"
        ]
    return float(np.mean(inside))


def spread_for(judged: Sequence[Judged], coverage: float = 0.8) -> float:
    """The base spread with which the P10-P90 interval holds `coverage` of the held-out rows, what jobs add included."""
    trusted = [j for j in judged if j.trust in "AB"]
    size = np.abs([j.log_error for j in trusted])
    added = np.array([j.widening for j in trusted])
    candidates = np.linspace(0.0, 1.0, 1001)
    held = [float((size <= Z90 * np.hypot(base, added)).mean()) for base in candidates]
    return float(next(base for base, share in zip(candidates, held, strict=True) if share >= coverage))


def document(parameters: Parameters, theta: Array, judged: Sequence[Judged], source: Path, rows: int) -> dict[str, Any]:
    constants = parameters.constants(theta)
    architectures = sorted({arch for _, arch, _ in parameters.keys})
    scales = constants.scales
    return {
        "provenance": {
            "command": "python -m precision_time.fit.steps --shared DIR",
            "table": source.name,
            "sha256": hashlib.sha256(source.read_bytes()).hexdigest(),
            "rows": rows,
            "date": datetime.date.today().isoformat(),
            "prior_standard_deviations": {**GROUP_PRIOR, **PRIOR},
        },
        "parameters": {name: round(float(value), 4) for name, value in zip(parameters.names, theta, strict=True)},
        "scales": {key: round(value, 4) for key, value in sorted(scales.items())},
        "execution": {k: round(v, 4) for k, v in constants.execution.items()},
        "host": {k: round(v, 4) for k, v in constants.host.items()},
        "interval": {
            "log_spread": round(spread_for(judged), 4),
            "architectures": architectures,
            "unseen_architecture": 0.15,
        },
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m precision_time.fit.steps", description=__doc__.splitlines()[0])
    parser.add_argument("--shared", type=Path, required=True, help="folder with data/published/measurements.csv")
    parser.add_argument("--report", action="store_true", help="judge only, write nothing")
    parser.add_argument("--readme", type=Path, help="write the held-out table between this file's accuracy markers")
    given = parser.parse_args(arguments)
    table = given.shared / "data" / "published" / "measurements.csv"
    rows = list(read_rows(table))
    everything = cases(rows, lambda done: print(f"\rtracing {done}/{len(rows)}", end="", file=sys.stderr))
    print(file=sys.stderr)
    folds = {name: cross_validate(everything, fold) for name, fold in FOLDS.items()}
    plain = judge(everything, StepConstants())
    text = summary_table({"without factors": plain, **{f"held out by {n}": j for n, j in folds.items()}})
    text += f"\nP10-P90 holds {coverage(folds['model family']):.0%} of them, with the spread set by the other families"
    print(text)
    if not given.report:
        parameters, theta = fit(everything)
        content = document(parameters, theta, folds["model family"], table, len(everything))
        OUTPUT.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        print(f"written: {OUTPUT.name}, {len(theta)} factors from {len(everything)} rows", file=sys.stderr)
    if given.readme:
        _between_markers(given.readme, text)
    return 0


def _between_markers(path: Path, text: str) -> None:
    begin, end = "<!-- accuracy:begin -->", "<!-- accuracy:end -->"
    content = path.read_text(encoding="utf-8")
    before, _, rest = content.partition(begin)
    _, _, after = rest.partition(end)
    path.write_text(f"{before}{begin}\n```\n{text}\n```\n{end}{after}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
