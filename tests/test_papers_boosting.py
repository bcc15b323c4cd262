"""The study of boosting: who trains on what, and whole quick studies on invented rows and on real runs."""

from __future__ import annotations

import json

import pytest

from boosting_cases import measured_jobs
from precision_time.predictors.interface import MeasuredJob
from precision_time.predictors.published import job_group
from precision_time.predictors.runs import read_runs


@pytest.fixture(scope="module")
def measured() -> list[MeasuredJob]:
    return measured_jobs()


@pytest.mark.slow
def test_a_quick_study_of_published_rows(measured: list[MeasuredJob]) -> None:
    pytest.importorskip("matplotlib")
    from benchmarks.papers.boosting import study
    from benchmarks.papers.study import Context

    heard: list[tuple[str, int, int]] = []
    section = study(Context(measured, measured[::2], (), quick=True, progress=lambda *said: heard.append(said)))
    scores = section.data["scores"]
    assert {"boosting by job", "boosting by family", "simulator by family", "boosting-residual by family"} <= set(
        scores
    )
    assert scores["boosting by job"]["all"]["n"] == 72
    assert set(scores["boosting by job"]["precision"]) == {"fp32", "tf32", "amp-fp16"}
    by_job = section.claims[0]
    assert by_job.met == (scores["boosting by job"]["all"]["mape"] <= 0.098)
    blind = section.data["blind"]
    assert blind["blind, trained in amp-fp16"]["tf32"] > 2 * blind["aware"]["tf32"]
    assert blind["blind, trained on all rows as fp32"]["amp-fp16"] > 2 * blind["aware"]["amp-fp16"]
    assert all(figure.svg.startswith("<svg") for figure in section.figures)
    assert all(len(row) == len(table.header) for table in section.tables for row in table.rows)
    counts = [count for count, _ in section.data["learning_curve"]]
    assert counts == sorted(counts)
    assert any("Large" in table.caption for table in section.tables)
    assert {part for part, _, _ in heard} == {"boosting: held out", "boosting: large models", "boosting: all rows"}
    assert {v.predictor for v in section.verdicts} == {"boosting", "boosting-residual", "simulator"}
    assert all(v.call_s is not None and 0.0 < v.call_s < 1.0 for v in section.verdicts)
    json.dumps(section.data)


def test_a_study_without_rows_has_a_note(measured: list[MeasuredJob]) -> None:
    from benchmarks.papers.boosting import study
    from benchmarks.papers.study import Context

    section = study(Context((), (), ()))
    assert "absent" in section.text[0]
    assert not section.claims
    few = study(Context(measured[:15], (), (), quick=True))
    assert few.text[0] == "15 published rows are too few to judge boosting held out."


def test_no_question_of_the_study_trains_on_what_it_judges(measured: list[MeasuredJob]) -> None:
    from benchmarks.papers.boosting_held_out import BLIND, questions

    asked = questions(measured, seed=0)
    whole: dict[str, list[int]] = {}
    for question in asked:
        taught, judged = (
            {job_group(measured[i]) for i in rows} for rows in (question.training, question.judged)
        )  # fmt: skip
        if question.run != "boosting by precision":
            assert not taught & judged, question.run
        assert not set(question.training) & set(question.judged)
        whole.setdefault(question.run, []).extend(question.judged)
        if question.kind == BLIND:
            assert {measured[i].precision for i in question.training} == {question.precision}
    for run, judged in whole.items():
        if run != "boosting without attention":
            assert sorted(judged) == list(range(72)), run


@pytest.fixture(scope="module")
def runs() -> list[MeasuredJob]:
    pytest.importorskip("torch")
    return list(read_runs())


def test_no_question_about_real_runs_trains_on_what_it_judges(runs: list[MeasuredJob]) -> None:
    from benchmarks.papers.boosting_runs import ATTENTION, questions_of_runs

    asked = questions_of_runs(runs, seed=0)
    whole: dict[str, list[int]] = {}
    alike = {
        "job": lambda m: (m.job.model, m.dataset, m.job.gpus), "network": lambda m: m.job.model,
        "family": lambda m: m.family, "precision": lambda m: m.precision, "attention": lambda m: m.family,
    }  # fmt: skip
    for question in asked:
        way = "job" if question.run.startswith("blind") else question.run.rpartition(" ")[2]
        taught, judged = ({alike[way](runs[i]) for i in rows} for rows in (question.training, question.judged))
        assert taught, question.run
        assert not taught & judged, question.run
        whole.setdefault(question.run, []).extend(question.judged)
        if question.run.startswith("blind"):
            assert {runs[i].precision for i in question.training} == {question.run.split()[1]}
    for run, judged in whole.items():
        unseen = [i for i, each in enumerate(runs) if each.family in ATTENTION]
        assert sorted(judged) == (unseen if run.endswith("attention") else list(range(len(runs)))), run
    assert {runs[i].job.model for i in whole["boosting without attention"]} == {
        "small-vit-p4", "small-vit-p8", "small-deit-p8", "small-cct", "small-swin"
    }  # fmt: skip


@pytest.mark.slow
def test_a_quick_study_of_real_runs(runs: list[MeasuredJob]) -> None:
    pytest.importorskip("matplotlib")
    from benchmarks.papers.boosting import QUICK
    from benchmarks.papers.boosting_runs import FEW as NETWORKS
    from benchmarks.papers.boosting_runs import study
    from benchmarks.papers.study import Context

    heard: list[str] = []
    section = study(Context((), (), runs, quick=True, progress=lambda part, done, of: heard.append(part)), QUICK)
    scores = section.data["scores"]
    judged = [m for m in runs if m.job.model in NETWORKS and m.dataset == "cifar-10"]
    for run in ("boosting by job", "boosting by family", "boosting-residual by family", "simulator"):
        assert scores[run]["all"]["n"] == len(judged)
        assert set(scores[run]["precision"]) == {"fp32", "amp-bf16"}
    assert set(scores["boosting without attention"]["family"]) == {"vit"}
    blind = section.data["blind"]
    assert blind["simulator, blind, knows fp32"]["fp32"] == blind["simulator, aware"]["fp32"]
    assert blind["simulator, blind, knows fp32"]["amp-bf16"] != blind["simulator, aware"]["amp-bf16"]
    assert blind["boosting, blind, trained in fp32"]["amp-bf16"] != blind["boosting, aware"]["amp-bf16"]
    for verdict in section.verdicts:
        assert verdict.rows == "real runs"
        assert set(verdict.errors) == {"all", "fp32", "amp-bf16"}
        assert verdict.call_s
        assert verdict.measured_s
        assert 0.0 < verdict.measured_s < sum(m.cost_s for m in judged) + 600.0
    assert all(figure.svg.startswith("<svg") for figure in section.figures)
    assert all(len(row) == len(table.header) for table in section.tables for row in table.rows)
    assert {"boosting: counting real runs", "boosting: real runs, held out"} == set(heard)
    json.dumps(dict(section.data))
