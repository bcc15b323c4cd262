"""The study of the additive model: errors by hand, and a whole section on jobs whose truth is the model itself."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from benchmarks.papers.additive import AWARE, REPAIRS, SIMULATOR, judge, study
from benchmarks.papers.additive_errors import Judged, accuracy, mape, twin_table
from benchmarks.papers.study import Context, Section
from precision_time.job import Job
from precision_time.predictors.additive import Additive
from precision_time.predictors.interface import MeasuredJob
from precision_time.timing.constants import StepConstants


def jobs() -> list[Job]:
    one = Job("resnet50", gpu="a100-80gb-sxm", batch_size=32)
    found = [one.replace(precision=p, gpus=n) for p in ("fp32", "amp-fp16") for n in (1, 8)]
    return [*found, Job("bert-base", precision="amp-fp16", gpu="v100-16gb-sxm", batch_size=8)]


def true_rows(**changes: Any) -> list[MeasuredJob]:
    """Jobs that take exactly what the additive model says."""
    model = Additive()
    model.fit([MeasuredJob("", job, 1.0, "") for job in jobs()])
    return [
        MeasuredJob(f"{i}", job.replace(**changes), model.predict(job).seconds, "a family")
        for i, job in enumerate(jobs())
    ]


def test_errors_by_hand() -> None:
    rows = [MeasuredJob(str(s), Job("resnet50"), s, "") for s in (1.0, 2.0, 4.0)]
    judged = [Judged(row, {"two": 2.0} if row.seconds > 1 else {}) for row in rows]
    found = accuracy(judged, "two")  # errors 0 % and -50 %
    assert (found.n, found.mape, found.median_ape, found.signed_mean) == (2, 0.25, 0.25, -0.25)
    assert found.p90_ape == pytest.approx(0.45)
    assert accuracy(judged, "none").n == 0
    assert math.isnan(mape(judged, "none"))


def test_a_twin_is_off_by_the_ratio_of_the_precisions() -> None:
    rows = true_rows()
    judged = judge("test", rows, Context((), (), ()), StepConstants())
    assert mape(judged, AWARE) == pytest.approx(0.0, abs=1e-9)
    by_job = {each.measured.job.signature(): each for each in judged}
    slow, fast = (by_job[row.job.signature()] for row in (rows[0], rows[2]))
    assert fast.seconds["blind fp32"] == pytest.approx(slow.measured.seconds)
    assert fast.error("blind fp32") == pytest.approx(slow.measured.seconds / fast.measured.seconds - 1)
    table = twin_table("test", judged, AWARE)
    assert [row[0] for row in table.rows] == ["fp32", "amp-fp16"]
    assert table.rows[0][2] == table.rows[0][3] == "0.0%"
    # All that the equations leave out, put back one by one, ends at what the simulator calls these terms.
    assert slow.seconds[REPAIRS[-1]] == pytest.approx(slow.seconds[SIMULATOR], rel=0.05)


def test_the_section(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.papers import additive_layouts

    monkeypatch.setattr(additive_layouts, "WORLD", 2)
    monkeypatch.setattr(additive_layouts, "MODEL", "bert-base")
    monkeypatch.setattr(additive_layouts, "TOKENS", 128)
    said: list[str] = []
    large = [MeasuredJob("l", Job("bert-base", gpu="h100-sxm", gpus=4, layout="pp=2,dp=2", grad_accum=4, batch_size=2),
                         1.0, "bert")]  # fmt: skip
    context = Context(true_rows(), large, (), quick=True, progress=lambda part, done, of: said.append(part))
    section = study(context)
    assert isinstance(section, Section)
    json.dumps(dict(section.data))
    assert any("no real runs" in text for text in section.text)
    assert all(figure.svg.startswith("<svg") for figure in section.figures)
    assert all(len(row) == len(table.header) for table in section.tables for row in table.rows)
    assert all(claim.met is None for claim in section.claims)  # nothing here can be met: other jobs, other devices
    assert [v.predictor for v in section.verdicts] == ["additive", "simulator, kernels alone"]
    assert all(v.call_s is not None and 0.0 < v.call_s < 1.0 for v in section.verdicts)
    layouts = section.data["layouts"]
    assert {(row["dp"], row["tp"], row["pp"]) for row in layouts} == {(2, 1, 1), (1, 2, 1), (1, 1, 2)}
    stages = next(table for table in section.tables if table.header[0] == "pp")
    assert stages.rows[0][:2] == ("2", "1")
    assert {"additive: published rows", "additive: large models"} <= set(said)


def test_nothing_to_judge() -> None:
    assert judge("none", (), Context((), (), ()), None) == []
