"""The main line as a predictor, and its twin that is blind to precision.

Without `fit` it answers as `precision_time.predict` does: shipped step factors, corrected by published anchors. `fit`
settles the step factors anew (`fit.factors`) on the jobs it is given, and from then on nothing else corrects it, so
that it can be judged on rows that the shipped factors were fitted to.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from precision_time.errors import MissingPeakError, PredictorError
from precision_time.fit.cases import Case, cases, run
from precision_time.fit.factors import fit
from precision_time.hardware.catalog import default_catalog
from precision_time.job.file import compact_json
from precision_time.job.job import Job
from precision_time.job.precision import parse_precision
from precision_time.layered_prediction import is_layered
from precision_time.measurements.row import Row
from precision_time.prediction import predict
from precision_time.predictors.facts import JobKey
from precision_time.predictors.interface import Cost, Forecast, MeasuredJob, Predictor, steps_of
from precision_time.timing.constants import StepConstants
from precision_time.timing.kernels import compute_peak
from precision_time.timing.layout_costs import shipped_layout_costs

ROUNDS = 2
"""Gauss-Newton steps of a fit. The board takes up to six; held out by family, two predict the same to 0.1 % of MAPE."""
FILE = "line.json"
_PARTS = ("scales", "execution", "host", "ranks")


class Line(Predictor):
    """The main line of the package under the interface of the published predictors."""

    name = "line"

    def __init__(self, rounds: int = ROUNDS) -> None:
        self.rounds = rounds
        self.constants: StepConstants | None = None
        self._cost = Cost(0, 0.0, 0.0)

    def fit(self, measured: Sequence[MeasuredJob]) -> None:
        """Settle the step factors on these jobs; those of other layouts than data parallel teach nothing here."""
        start = time.perf_counter()
        self.constants = None
        taught = [case for each in self._taught(measured) if (case := _case(each, self._seen(each.job))) is not None]
        if not taught:
            raise PredictorError(
                f"line: none of the {len(measured)} measured jobs is plain data parallel, which its factors are "
                "fitted to; give such jobs, or leave fit out to use the shipped factors"
            )
        found = fit(taught, iterations=self.rounds).constants
        self.constants = replace(found, layouts=shipped_layout_costs())
        self._cost = Cost(len(measured), sum(m.cost_s for m in measured), time.perf_counter() - start)

    def predict(self, job: Job) -> Forecast:
        step = predict(self._seen(job), constants=self.constants).step
        steps = steps_of(job)
        return Forecast(step.p50 * steps, step.p10 * steps, step.p90 * steps)

    def step_seconds(self, job: Job) -> float:
        """Seconds of one step alone, without memory, interval and breakdown."""
        seen = self._seen(job)
        if self.constants is None or is_layered(seen):
            return float(predict(seen, constants=self.constants).step.p50)
        return float(run(_traced(JobKey.of(seen)), self.constants)[1].step_s)

    def cost(self) -> Cost:
        return self._cost

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        constants = self.constants
        said = None if constants is None else {part: dict(getattr(constants, part)) for part in _PARTS}
        content = {"predictor": self.name, "rounds": self.rounds, "constants": said, "cost": asdict(self._cost)}
        (folder / FILE).write_text(compact_json({**content, **self._own()}) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Line:
        content = read_json(folder, FILE, cls.name)
        found = cls._from(content)
        if content["constants"] is not None:
            found.constants = StepConstants(**content["constants"], layouts=shipped_layout_costs())
        found._cost = Cost(**content["cost"])
        return found

    # --- what the blind twin does otherwise

    def _seen(self, job: Job) -> Job:
        return job

    def _taught(self, measured: Sequence[MeasuredJob]) -> Sequence[MeasuredJob]:
        return measured

    def _own(self) -> dict[str, Any]:
        return {}

    @classmethod
    def _from(cls, content: dict[str, Any]) -> Line:
        return cls(content["rounds"])


class BlindLine(Line):
    """The line with the dtype frozen: every job is one in `precision`, and rows measured in it alone teach."""

    name = "line-blind"

    def __init__(self, precision: str = "fp32", rounds: int = ROUNDS) -> None:
        super().__init__(rounds)
        self.precision = parse_precision(precision).label

    def _seen(self, job: Job) -> Job:
        return frozen(job, self.precision)

    def _taught(self, measured: Sequence[MeasuredJob]) -> Sequence[MeasuredJob]:
        return only(measured, self.precision, self.name)

    def _own(self) -> dict[str, Any]:
        return {"precision": self.precision}

    @classmethod
    def _from(cls, content: dict[str, Any]) -> BlindLine:
        return cls(content["precision"], content["rounds"])


def frozen(job: Job, precision: str) -> Job:
    """The job as one sees it who takes all jobs to run in `precision`, or in fp32 where the GPU has no unit for it."""
    catalog = default_catalog().with_file(job.device) if job.device else default_catalog()
    try:
        compute_peak(catalog.gpu(job.gpu), parse_precision(precision).math, "")
    except MissingPeakError:
        precision = "fp32"
    return job.replace(precision=precision, communication_dtype=None)


def only(measured: Sequence[MeasuredJob], precision: str, name: str) -> list[MeasuredJob]:
    """The jobs measured in one precision; `PredictorError` where there are none."""
    found = [each for each in measured if each.precision == precision]
    if not found:
        have = ", ".join(sorted({each.precision for each in measured})) or "none"
        raise PredictorError(f"{name}: no measured job ran in precision {precision!r}; measured ones: {have}")
    return found


# --- jobs as the fit of step factors takes them


@lru_cache(maxsize=512)
def _traced(key: JobKey) -> Case:
    """The case of a data-parallel job; its row says nothing."""
    return cases([_row("", key.job, math.nan, "")])[0]


def _case(measured: MeasuredJob, seen: Job) -> Case | None:
    """A measured job as a row of trust B: how sure a measurement is, `MeasuredJob` does not say."""
    if seen.device or seen.layout != "dp" or seen.recompute != "none" or is_layered(seen):
        return None
    seconds = measured.seconds / steps_of(measured.job)
    return replace(_traced(JobKey.of(seen)), row=_row(measured.id, seen, seconds, measured.family))


def _row(name: str, job: Job, seconds: float, family: str) -> Row:
    return Row(
        id=name, source="", line=0, trust="B", framework=job.framework, model=job.model, family=family, gpu=job.gpu,
        precision=job.precision, gpus=job.gpus, measured_s=seconds, job=job, reason="", assumed=(), setting=(),
        digest="",
    )  # fmt: skip


def read_json(folder: Path, file: str, name: str) -> dict[str, Any]:
    """What a predictor of that name wrote; `PredictorError` where it did not."""
    path = folder / file
    if not path.is_file():
        raise PredictorError(
            f"{str(folder)!r} holds no saved predictor {name!r} (no {file}); fit one and save it there"
        )
    content = json.loads(path.read_text(encoding="utf-8"))
    if content.get("predictor") != name:
        raise PredictorError(
            f"{str(folder)!r} holds predictor {content.get('predictor')!r}, not {name!r}; load it by its own name"
        )
    return dict(content)
