"""The studies of CherryPick and Ernest: their tables, and whole quick studies on invented and published runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from benchmarks.papers import cherrypick as cherrypick_study
from benchmarks.papers import ernest as ernest_study
from benchmarks.papers.cloud_tables import CloudRun, cloud_configurations, read_cloud_runs
from benchmarks.papers.study import Context, Section
from benchmarks.papers.training_tables import measured_configurations, published_configurations
from precision_time.errors import DataError, PredictorError
from precision_time.job.job import Job
from precision_time.job.run import Run
from precision_time.predictors.cherrypick import AUTHORS, cherrypick
from precision_time.predictors.interface import MeasuredJob

pytest.importorskip("sklearn")


def cloud_run(vm: str, cpus: int, machines: int, seconds: float) -> CloudRun:
    return CloudRun("kmeans", vm, cpus, 4.0 * cpus, False, 0.36, vm.startswith("i2"), 2, machines, seconds)


def test_cloud_prices_by_hand() -> None:
    runs = (cloud_run("m4.large", 2, 8, 100.0), cloud_run("m4.large", 2, 16, 60.0), cloud_run("i2.large", 2, 16, 50.0))
    plain = cloud_configurations(runs, "kmeans")
    np.testing.assert_allclose(plain.price_per_s, [8e-4, 16e-4, 16e-4])
    theirs = cloud_configurations(runs, "kmeans", encoding="totals", as_authors=True)
    assert theirs.names == ("16 x m4.large", "16 x i2.large")  # 16 cores are left out
    np.testing.assert_allclose(theirs.price_per_s, [16 * (0.36 + 60 / 720) / 3600, 16e-4])  # network disks cost
    with pytest.raises(PredictorError, match="nearest"):
        cloud_configurations(runs, "kmean")
    with pytest.raises(PredictorError, match="encoding"):
        cloud_configurations(runs, "kmeans", encoding="none")


def test_a_file_without_runs_raises(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cloud runs"):
        read_cloud_runs(tmp_path)


def published_row(gpu: str, gpus: int, precision: str, batch: int, step_s: float) -> MeasuredJob:
    job = Job("resnet50", gpu=gpu, gpus=gpus, precision=precision, batch_size=batch)
    return MeasuredJob(f"{gpu}{gpus}{precision}{batch}", job, step_s, "resnet", "imagenet")


def test_published_steps_are_priced_as_whole_instances() -> None:
    rows = [
        published_row("v100-16gb-sxm", gpus, precision, batch, batch / 400)
        for gpus in (1, 4, 8) for precision in ("fp32", "amp-fp16") for batch in (32, 64)
    ]  # fmt: skip
    slower = published_row("v100-16gb-sxm", 8, "fp32", 64, 9.0)  # equal configuration: the faster one counts
    unpriced = published_row("rtx-3090", 1, "fp32", 64, 0.1)
    table = published_configurations([*rows, slower, unpriced])["resnet50, "]
    assert len(table) == 12
    at = table.names.index("4 x v100-16gb-sxm, amp-fp16, batch 64")
    assert table.known()(at) == pytest.approx(1e6 / (4 * 64) * 64 / 400)
    assert table.price_per_s[at] == pytest.approx(12.24 / 3600)
    assert table.known()(table.names.index("8 x v100-16gb-sxm, fp32, batch 64")) == pytest.approx(1e6 / 8 / 400)
    assert published_configurations(rows[:11]) == {}


def real_runs() -> tuple[MeasuredJob, ...]:
    """Made-up rows in the shape of real ones: t = 0.1 + 2 s/m, half as long in bf16."""
    rows = []
    for precision in ("fp32", "amp-bf16"):
        for batch in (16, 64):
            for gpus in (1, 2):
                for samples in (1000, 2000, 4000, 8000):
                    run = Run(samples=samples, dataset="cifar10")
                    job = Job("resnet50", precision=precision, batch_size=batch, gpu="t4", gpus=gpus, run=run)
                    seconds = (
                        (0.1 + samples / 4000 / gpus) * (0.5 if precision != "fp32" else 1.0) * (16 / batch) ** 0.2
                    )
                    rows.append(MeasuredJob(str(len(rows)), job, seconds, "resnet", "cifar-10", 3.0 * seconds))
    return tuple(rows)


def test_real_runs_become_a_choice_over_the_most_data() -> None:
    tables = measured_configurations(real_runs())
    assert list(tables) == ["resnet50, cifar-10"]
    table = tables["resnet50, cifar-10"]
    assert len(table) == 8
    assert table.names[table.best() or 0] == "1 x t4, amp-bf16, batch 64"
    assert measured_configurations(real_runs()[:2]) == {}


@pytest.mark.parametrize("study", [ernest_study.study, cherrypick_study.study])
def test_studies_note_missing_tables_and_judge_the_others(study: Callable[[Context], Section]) -> None:
    told: list[str] = []
    section = study(Context((), (), real_runs(), None, quick=True, progress=lambda part, done, of: told.append(part)))
    assert any("not judged" in part for part in section.text)
    assert told
    assert all(len(row) == len(table.header) for table in section.tables for row in table.rows)
    json.dumps(section.data)
    bare = study(Context((), (), (), None, quick=True))
    assert any("no real runs" in part for part in bare.text)


def test_exact_real_runs_are_predicted_exactly() -> None:
    splits = ernest_study.more_data(ernest_study.groups_of_runs(real_runs()))
    assert len(splits) == 4
    for way in ernest_study.DESIGNED:
        assert max(abs(j.error) for j in ernest_study.evaluate(splits, way).judged) < 1e-6


DATA = Path(__file__).parents[1] / "data"


def test_published_cloud_runs() -> None:
    runs = read_cloud_runs(DATA)
    assert len(runs) == 361
    assert [len(cloud_configurations(runs, j)) for j in ("kmeans", "spark", "terasort", "tpcds", "tpch")] == [
        47, 59, 72, 61, 52,
    ]  # fmt: skip
    for study in (ernest_study.study, cherrypick_study.study):
        section = study(Context((), (), (), DATA, quick=True))
        assert section.figures
        assert section.figures[0].svg.startswith("<svg")
    # TeraSort falls by machines: the held-out largest clusters are within a factor of two.
    splits = ernest_study.larger_clusters(runs, "terasort")
    assert all(abs(j.error) < 1.0 for j in ernest_study.evaluate(splits, ernest_study.ALL[0]).judged)
    of = [cherrypick(cloud_configurations(runs, "tpcds", as_authors=True), seed=s, setting=AUTHORS) for s in range(5)]
    judged = cherrypick_study.judge(cloud_configurations(runs, "tpcds", as_authors=True), of)
    assert float(np.median(judged.gap)) <= 0.05
