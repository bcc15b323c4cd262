"""Ernest and its experiment design, against exact data, brute force and random designs."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_time.errors import DataError, PredictorError
from precision_time.job.job import Job
from precision_time.job.run import Run
from precision_time.predictors.ernest import (
    SPREAD_UNKNOWN,
    Ernest,
    by_key,
    designed,
    fit_curve,
    job_key,
    point_of,
    runs_to_make,
    samples_of,
)
from precision_time.predictors.experiment_design import (
    Point,
    criterion_value,
    design,
    features,
    reduced,
    relative_costs,
)
from precision_time.predictors.interface import MeasuredJob, Predictor
from precision_time.predictors.registry import predictor_class

pytest.importorskip("cvxpy")
GRID = [Point(s, m) for s in (0.1, 0.2, 0.5, 1.0) for m in (1, 2, 4, 8)]
THETA = st.tuples(*[st.floats(0.0, 100.0)] * 4).filter(lambda t: max(t) > 1e-3)


def job(samples: int = 1000, gpus: int = 1, **words: object) -> Job:
    given: dict[str, object] = {"precision": "fp32", "batch_size": 10, "gpu": "t4", **words}
    run = Run(samples=samples, dataset="made-up", dataset_size=10_000)
    return Job("resnet50", gpus=gpus, run=run, **given)  # type: ignore[arg-type]


def measured(theta: tuple[float, ...], points: list[Point], **words: object) -> list[MeasuredJob]:
    made = []
    for p in points:
        seconds = theta[0] + theta[1] * p.fraction / p.ranks + theta[2] * p.ranks + theta[3] * math.log(p.ranks)
        run = job(round(10_000 * p.fraction), p.ranks, **words)
        made.append(MeasuredJob(f"{p} {words}", run, seconds, "resnet", "made-up", cost_s=2.0 * seconds))
    return made


def test_features_by_hand() -> None:
    np.testing.assert_allclose(features([Point(0.5, 4)]), [[1.0, 0.125, 4.0, math.log(4.0)]])


@settings(max_examples=60, deadline=None)
@given(THETA)
def test_exact_data_give_their_parameters_back(theta: tuple[float, float, float, float]) -> None:
    seconds = [float(features([p])[0] @ np.array(theta)) for p in GRID]
    curve = fit_curve(GRID, seconds)
    np.testing.assert_allclose(curve.theta, theta, atol=1e-6 * max(theta), rtol=1e-6)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0.1, 1000.0), min_size=len(GRID), max_size=len(GRID)), st.booleans())
def test_parameters_are_never_negative_and_no_neighbour_fits_better(seconds: list[float], relative: bool) -> None:
    theta = np.array(fit_curve(GRID, seconds, relative).theta)
    assert np.all(theta >= 0.0)
    times = np.array(seconds)
    weights = 1.0 / times if relative else np.ones_like(times)

    def loss(tried: np.ndarray) -> float:
        return float(np.sum((weights * (features(GRID) @ tried - times)) ** 2))

    for axis, sign in itertools.product(range(4), (-1.0, 1.0)):
        moved = theta.copy()
        moved[axis] = max(0.0, moved[axis] + sign * 1e-3 * (1.0 + moved[axis]))
        assert loss(theta) <= loss(moved) * (1.0 + 1e-9) + 1e-12


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from("AD"), st.floats(1.0, 30.0))
def test_a_design_keeps_its_budget_and_no_random_one_is_better(seed: int, criterion: str, budget: float) -> None:
    draws = np.random.default_rng(seed)
    points = [GRID[i] for i in sorted(draws.choice(len(GRID), 10, replace=False))]
    found = design(points, budget=budget, criterion=criterion)
    assert all(0.0 <= w <= 1.0 for w in found.weights)
    weighted_cost = sum(w * c for w, c in zip(found.weights, found.costs, strict=True))
    assert weighted_cost <= budget * (1.0 + 1e-6)
    rows, costs = reduced(points), relative_costs(points)
    for _ in range(20):
        other = draws.uniform(0.0, 1.0, len(points)) ** draws.uniform(0.5, 4.0)
        other *= min(1.0, weighted_cost / float(costs @ other))
        value = criterion_value(rows, other, criterion)
        assert (value >= found.value * (1 - 1e-4)) if criterion == "A" else (value <= found.value + 1e-4)


@pytest.mark.parametrize("criterion", ["A", "D"])
def test_a_small_design_is_what_brute_force_finds(criterion: str) -> None:
    points = [Point(s, 1) for s in (0.1, 0.4, 1.0)]  # on one rank only 1 and s are told apart
    found = design(points, budget=5.0, criterion=criterion)
    scaled = features(points)[:, :2] / features(points)[:, :2].mean(axis=0)
    scaled[:, 0] *= math.sqrt(2.0)  # m is 1 too, so the constant has two columns' length
    costs = relative_costs(points)
    best = math.inf
    for weights in itertools.product(np.linspace(0.0, 1.0, 41), repeat=3):
        if costs @ np.array(weights) <= 5.0 and sum(w > 0 for w in weights) >= 2:
            information = (scaled.T * np.array(weights)) @ scaled
            sign, logarithm = np.linalg.slogdet(information)
            value = np.trace(np.linalg.inv(information)) if criterion == "A" else -logarithm
            best = min(best, float(value)) if sign > 0 else best
    reached = found.value if criterion == "A" else -found.value
    assert reached <= best + 1e-6
    assert reached == pytest.approx(best, rel=0.02, abs=0.02)


@pytest.mark.parametrize("counts", [(1,), (1, 2), (4, 8, 16, 32), (24, 32, 40, 48)])
def test_the_runs_of_a_design_span_the_directions_of_all_candidates(counts: tuple[int, ...]) -> None:
    points = [Point(s, m) for s in (0.01, 0.05, 0.1) for m in counts]
    made = list(design(points, budget=0.2).runs)
    assert np.linalg.matrix_rank(features(made)) == np.linalg.matrix_rank(features(points))


@pytest.mark.parametrize(
    ("given", "words"),
    [({"criterion": "E"}, "criterion 'E'"), ({"budget": 0.0}, "budget 0.0"), ({"budget": math.nan}, "budget nan")],
)
def test_a_bad_design_raises(given: dict[str, object], words: str) -> None:
    with pytest.raises(PredictorError, match=words):
        design(GRID, **given)  # type: ignore[arg-type]
    with pytest.raises(PredictorError, match="points"):
        design([])


def test_bad_points_raise() -> None:
    with pytest.raises(PredictorError, match="fraction"):
        Point(0.0, 1)
    with pytest.raises(PredictorError, match="ranks"):
        Point(0.5, 0)


def test_fraction_and_ranks_of_a_job() -> None:
    assert point_of(job(2500, 4)) == Point(0.25, 4)
    assert samples_of(Job("resnet50", batch_size=8, gpus=4, grad_accum=2)) == 64
    assert samples_of(Job("resnet50", batch_size=8, gpus=4, run=Run(steps=3))) == 96
    assert samples_of(Job("resnet50", run=Run(epochs=0.5, dataset="cifar10"))) == 25_000
    with pytest.raises(PredictorError, match="dataset"):
        samples_of(Job("resnet50", run=Run(epochs=1)))


def test_predictions_of_a_job_it_was_run_for() -> None:
    theta = (3.0, 200.0, 0.5, 1.0)
    model = Ernest()
    assert isinstance(model, Predictor)
    model.fit(measured(theta, GRID))
    found = model.predict(job(10_000, 16))
    assert found.seconds == pytest.approx(3.0 + 200.0 / 16 + 8.0 + math.log(16), rel=1e-6)
    assert found.p10_s < found.seconds < found.p90_s
    assert found.notes == ("extrapolated from 16 runs on 1 to 8 GPUs and 0.1 to 1 of the data",)
    assert model.predict(job(5_000, 8)).notes[0].startswith("interpolated from 16 runs")
    spent = model.cost()
    assert spent.runs == len(GRID)
    assert spent.measured_s == pytest.approx(sum(r.cost_s for r in measured(theta, GRID)))


def steps(*runs: tuple[int, int, float], **words: object) -> list[MeasuredJob]:
    """Single steps of (GPUs, batch of a rank, seconds)."""
    given: dict[str, object] = {"precision": "fp32", "gpu": "t4", **words}
    return [
        MeasuredJob(f"{gpus}-{batch}", Job("resnet50", gpus=gpus, batch_size=batch, **given), seconds, "resnet")  # type: ignore[arg-type]
        for gpus, batch, seconds in runs
    ]


def test_published_steps_of_a_model_on_a_gpu_are_one_curve() -> None:
    """t = 0.1 + 0.01 s / m: 16 samples of a rank take 0.26 s on any number of GPUs, and a run as often as it steps."""
    model = Ernest(per_step=True)
    other = steps((1, 8, 9.0), gpu="l4")
    model.fit([*steps((1, 8, 0.18), (1, 32, 0.42), (2, 8, 0.18), optimizer="adam"), *other])
    asked = steps((4, 16, 0.0))[0].job
    assert model.predict(asked).seconds == pytest.approx(0.26, rel=1e-6)
    assert model.predict(asked.replace(run={"samples": 64 * 10})).seconds == pytest.approx(2.6, rel=1e-6)
    assert model.predict(asked).notes == ("extrapolated from 3 runs on 1 to 2 GPUs and 8 to 32 samples of a step",)
    with pytest.raises(PredictorError, match=r"resnet50 in fp32 on l4.*of this model it has t4 in fp32"):
        model.predict(other[0].job)  # a single run says nothing of how time grows


@pytest.mark.parametrize(
    "words", [{"precision": "amp-fp16"}, {"batch_size": 20}, {"gpu": "l4"}, {"optimizer": "adam"}, {"grad_accum": 2}]
)
def test_another_job_needs_runs_of_its_own(words: dict[str, object]) -> None:
    model = Ernest()
    model.fit(measured((1.0, 10.0, 0.0, 0.0), GRID))
    with pytest.raises(PredictorError, match=r"make these runs and fit them: samples \d+ on gpus 1"):
        model.predict(job(5_000, 4, **words))
    pooled = Ernest(by=())
    pooled.fit(measured((1.0, 10.0, 0.0, 0.0), GRID))
    assert pooled.predict(job(10_000, 4, **words)).seconds == pytest.approx(3.5)


def test_scale_and_layout_are_not_the_job() -> None:
    assert job_key(job(100, 1)) == job_key(job(9_000, 8))
    assert job_key(job(100, 4)) != job_key(job(100, 4, layout="fsdp"))
    assert len(by_key([*measured((1, 1, 0, 0), GRID), *measured((1, 1, 0, 0), GRID, precision="tf32")])) == 2
    assert job_key(job(), ("model", "precision")) == (("model", "resnet50"), ("precision", "fp32"))
    with pytest.raises(PredictorError, match="modle"):
        Ernest(by=("modle",))
    with pytest.raises(PredictorError, match="gpus"):
        Ernest(by=("gpus",))


def test_runs_to_make_are_small_and_of_a_whole_step() -> None:
    asked = runs_to_make(job(10_000, 8))
    assert asked
    assert all(samples <= 1_000 and samples >= 10 * ranks and ranks <= 8 for samples, ranks in asked)
    assert runs_to_make(Job("resnet50", batch_size=8)) == []
    with pytest.raises(PredictorError, match="ernest has no runs, so none of"):
        Ernest().predict(job())


def test_designed_rows_are_those_of_the_design() -> None:
    rows = [*measured((1, 10, 0.1, 0), GRID), *measured((2, 20, 0.1, 0), GRID, precision="tf32")]
    chosen = designed(rows, budget=5.0)
    assert 0 < len(chosen) < len(rows)
    assert {point_of(r.job) for r in chosen} == set(design(GRID, budget=5.0).runs)


def test_few_runs_have_an_unknown_spread_and_noise_widens_it() -> None:
    assert fit_curve(GRID[:2], [1.0, 2.0]).log_spread == SPREAD_UNKNOWN
    draws = np.random.default_rng(0)
    exact = [float(features([p])[0] @ np.array([3.0, 50.0, 0.2, 0.1])) for p in GRID]
    spreads = [fit_curve(GRID, exact * np.exp(n * draws.standard_normal(len(GRID)))).log_spread for n in (0.01, 0.3)]
    assert spreads[0] < spreads[1]


def test_saved_and_read_back(tmp_path: Path) -> None:
    model = Ernest(by=("model", "precision"), relative=True)
    model.fit(measured((1.0, 30.0, 0.3, 0.0), GRID[:9]))
    model.save(tmp_path / "model")
    again = predictor_class("ernest").load(tmp_path / "model")
    assert again.predict(job(7_000, 3)) == model.predict(job(7_000, 3))
    assert again.cost() == model.cost()
    (tmp_path / "model" / "ernest.json").write_text("{}")
    with pytest.raises(DataError, match="ernest"):
        Ernest.load(tmp_path / "model")
    with pytest.raises(DataError, match="ernest"):
        Ernest.load(tmp_path / "nowhere")
