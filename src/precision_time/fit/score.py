"""Errors of judged rows, and the table that shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from precision_time.estimate.assemble import spread_terms
from precision_time.estimate.spread import widening
from precision_time.fit.rows import Row
from precision_time.timeline.simulate import Timeline
from precision_time.timing.price import PricedProgram


@dataclass(frozen=True, slots=True)
class Judged:
    """A measured row and what was predicted for it."""

    id: str
    trust: str
    framework: str
    model: str
    family: str
    gpu: str
    precision: str
    gpus: int
    measured_s: float
    predicted_s: float
    host_share: float
    exposed_share: float
    widening: float

    @classmethod
    def of(cls, row: Row, family: str, priced: PricedProgram, timeline: Timeline) -> Judged:
        step = timeline.step_s
        return cls(
            row.id, row.trust, row.framework, row.model, family, row.gpu, row.precision, row.gpus, row.measured_s, step,
            timeline.host_gap_s / step, timeline.communication_exposed_s / step,
            widening(spread_terms(priced, timeline)),
        )  # fmt: skip

    @property
    def error(self) -> float:
        return self.predicted_s / self.measured_s - 1.0

    @property
    def log_error(self) -> float:
        return float(np.log(self.predicted_s / self.measured_s))


def summary_table(runs: Mapping[str, Sequence[Judged]]) -> str:
    """MAPE, median, signed mean and P90 of each run on the rows of trust A and B, then by precision of the last run."""
    lines = [f"{'rows of trust A and B':34}{'rows':>6}{'MAPE':>8}{'median':>8}{'signed':>8}{'P90':>8}"]
    for name, judged in runs.items():
        lines.append(_line(name, [j for j in judged if j.trust in "AB"]))
    first = next((name for name in runs if "family" in name), None)
    if first is not None:
        trusted = [j for j in runs[first] if j.trust in "AB"]
        for title in ("precision", "family", "gpu"):
            lines.append(f"{first}, by {title}:")
            values = sorted({str(getattr(j, title)) for j in trusted})
            lines += [_line(f"  {v}", [j for j in trusted if getattr(j, title) == v]) for v in values]
    return "\n".join(lines)


def _line(name: str, judged: Sequence[Judged]) -> str:
    error = np.array([j.error for j in judged])
    size = np.abs(error)
    return (
        f"{name:34}{len(judged):>6}{size.mean():>8.1%}{np.median(size):>8.1%}{error.mean():>+8.1%}"
        f"{np.quantile(size, 0.9):>8.1%}"
    )
