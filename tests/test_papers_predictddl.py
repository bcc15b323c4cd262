"""The study of PredictDDL: networks held out, Ernest beside it, and a whole quick study on real runs."""

from __future__ import annotations

import dataclasses
import json
import math
from functools import cache

import numpy as np
import pytest

from benchmarks.papers.predictddl import study
from benchmarks.papers.predictddl_ernest import same_runs
from benchmarks.papers.predictddl_held_out import held_out, network_of_row
from benchmarks.papers.study import Context
from precision_time.predictors.interface import MeasuredJob
from precision_time.predictors.predictddl.regressors import LINEAR, SVR, Setting
from precision_time.predictors.predictddl.selection import grouped_folds
from precision_time.predictors.predictddl.trainer import Design, described
from precision_time.predictors.runs import read_runs
from predictddl_cases import IMAGE_MODELS, lawful

_FEW_NETWORKS = (
    "small-lenet5", "small-alexnet", "small-vgg11", "small-resnet20", "small-mlp", "small-nin", "small-mixer-p8",
    "small-gcn",
)  # fmt: skip


QUICK = Design(settings=(Setting(LINEAR, (("alpha", 0.1),)), Setting(SVR, (("C", 100.0), ("width", 0.1)))))


@cache
def rows() -> tuple[MeasuredJob, ...]:
    return tuple(lawful())


def test_no_network_is_predicted_by_a_predictor_trained_on_it() -> None:
    described_rows = described(rows())
    held = held_out(described_rows, QUICK, 3, network_of_row)
    assert [each.row.measured.id for each in held] == [row.id for row in rows()]
    # Told from a table without the network, the answer is the same whatever that network's own times are.
    spoilt = [
        dataclasses.replace(row, seconds=1000 * row.seconds) if row.job.model == "vgg16" else row for row in rows()
    ]
    again = held_out(described(spoilt), QUICK, 3, network_of_row)
    for one, two in zip(held, again, strict=True):
        if one.row.measured.job.model == "vgg16":
            assert one.seconds == two.seconds


def test_ernest_with_the_same_runs_has_one_time_for_all_networks() -> None:
    held = held_out(described(rows()), QUICK, 3, network_of_row)
    protocol = same_runs(held, 3, 0)
    by_fold: dict[tuple, set[float]] = {}
    parts = grouped_folds([row.job.model for row in rows()], 3, 0)
    fold_of = {i: number for number, (_, unseen) in enumerate(parts) for i in unseen.tolist()}
    for i, each in enumerate(protocol.beside):
        job = each.held.row.measured.job
        key = (fold_of[i], job.batch_size, job.precision, job.gpus)
        by_fold.setdefault(key, set()).add(round(each.ernest_s, 9))
    assert all(len(said) == 1 for said in by_fold.values())
    assert protocol.even == math.inf
    assert set(protocol.ratios()) == set(IMAGE_MODELS)


@pytest.mark.slow
def test_a_quick_study() -> None:
    spoken: list[str] = []
    runs = [row for row in read_runs() if row.job.model in _FEW_NETWORKS and row.dataset == "cifar-10"]
    context = Context([], [], runs, None, quick=True, progress=lambda part, done, of: spoken.append(part))
    section = study(context)
    assert spoken
    assert len(section.figures) == 4
    assert all(figure.svg.startswith("<svg") for figure in section.figures)
    rows_said = section.data["rows"]
    assert len(rows_said) == len(runs)
    errors = [abs(each["predicted_s"] / each["measured_s"] - 1) for each in rows_said]
    assert section.data["designs"]["predictddl"]["mape"] == pytest.approx(np.mean(errors))
    target = next(claim for claim in section.claims if "(target)" in claim.published)
    protocols = section.data["protocols"]
    fits = [protocols[name] for name in ("same runs", "same runs, in per cent")]
    own, told = (section.data["protocols"][name] for name in ("per network", "per network, both told"))
    assert own["ernest_mape"] == told["ernest_mape"]  # the same rows; only PredictDDL is told more
    assert own["predictddl_mape"] != told["predictddl_mape"]
    speed = section.data["speed"]
    assert speed["call_s"]["median"] < speed["warm_s"]["median"] < speed["fresh_s"]["median"]
    assert speed["ernest_pass_s"]["median"] < speed["ernest_runs_s"]["median"]
    assert speed["ernest_warm_s"]["median"] < speed["ernest_fresh_s"]["median"]
    assert target.met == (min(each[key] for each in fits for key in ("ratio", "median_ratio")) >= 3.0)
    for each in fits:
        assert each["ratio"] == pytest.approx(each["ernest_mape"] / each["predictddl_mape"])
        assert each["ratio_interval"][0] <= each["ratio_interval"][1]
    json.dumps(section.data)


def test_a_study_of_too_few_networks_has_a_note() -> None:
    section = study(Context([], [], [], None))
    assert any("too few to leave some out" in line for line in section.text)
