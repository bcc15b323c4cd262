"""The study of boosting on all published steps: its page is what its file says, and its folds keep groups whole."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.papers import boosting_steps
from benchmarks.papers.boosting_steps import PAGE, RESULTS, folds, judge, mape, page_table
from benchmarks.papers.precision_table import precision_table
from precision_time.job import Job
from precision_time.measurements.repository import required_data_folder
from precision_time.predictors.interface import MeasuredJob
from precision_time.predictors.published import all_published
from precision_time.predictors.rows import Rows, merged
from precision_time.report.page import fill_markers


def test_the_page_shows_the_file() -> None:
    content = json.loads((RESULTS / "boosting.json").read_text(encoding="utf-8"))
    page = PAGE.read_text(encoding="utf-8")
    assert fill_markers(page, "boosting", page_table(content), PAGE.name) == page


@pytest.mark.slow
def test_a_fold_judged_again_gives_the_figure_of_the_file() -> None:
    pytest.importorskip("lightgbm")
    content = json.loads((RESULTS / "boosting.json").read_text(encoding="utf-8"))
    rows = Rows.of(merged(all_published(required_data_folder())), lambda job: job, "boosting")
    assert len(rows) == content["rows"]
    fold = next(each for each in folds(rows) if each.key == "job 0 0")
    assert mape(judge(rows, fold)) == pytest.approx(content["folds"][fold.key], rel=0.02)


def row(model: str, gpu: str, precision: str, seconds: float, batch: int = 8) -> MeasuredJob:
    job = Job(model, gpu=gpu, precision=precision, batch_size=batch)
    return MeasuredJob(f"{model} {gpu} {precision} {batch}", job, seconds, model)


def test_folds_judge_every_row_once_and_keep_groups_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    models, gpus = ("resnet50", "vgg16", "bert-base"), ("t4", "v100-16gb-sxm")
    measured = [row(m, g, "fp32", 0.1, b) for m in models for g in gpus for b in (2, 4, 8, 16)]
    rows = Rows.of(measured, lambda job: job, "test")
    monkeypatch.setattr(boosting_steps, "SEEDS", {"job": (0,), "family": (0,), "gpu": (0,)})
    found = folds(rows)
    for by in ("job", "family", "gpu"):
        judged = np.concatenate([fold.judged for fold in found if fold.by == by])
        assert sorted(judged.tolist()) == list(range(len(rows)))
    for fold in found:
        inside = {measured[i].job.gpu if fold.by == "gpu" else measured[i].family for i in fold.judged}
        outside = {measured[i].job.gpu if fold.by == "gpu" else measured[i].family for i in range(len(rows))} - inside
        others = [measured[i] for i in range(len(rows)) if i not in set(fold.judged.tolist())]
        if fold.by != "job":
            assert {each.job.gpu if fold.by == "gpu" else each.family for each in others} == outside


def test_a_precision_table_by_hand() -> None:
    measured = [
        row("resnet50", "t4", "fp32", 0.8),
        row("resnet50", "t4", "fp32", 1.6, 16),
        row("resnet50", "t4", "amp-fp16", 0.4),
        row("vgg16", "t4", "fp32", 0.1),
    ]
    text = precision_table(measured, np.array([0.1, -0.3, 0.05, 0.0]))
    assert "1 models on a GPU and count were measured in several precisions; in one alone: 1 in fp32" in text
    cells = [cell.strip() for cell in next(line for line in text.splitlines() if "resnet50" in line).split("|")]
    assert cells[4:8] == ["", "100 (2) 20%", "", "50 (1) 5%"]  # fp64 and tf32 were not measured
    assert cells[-2] == "2.00"
