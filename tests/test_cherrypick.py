"""CherryPick and the searches beside it: their parts against independent code, their rules on made-up tables."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.papers.search_baselines import coordinate_descent, random_search
from precision_time.errors import DataError, PredictorError
from precision_time.job.job import Job
from precision_time.job.run import Run
from precision_time.predictors.cherrypick import (
    AUTHORS,
    IMPROVED,
    PUBLISHED,
    CherryPick,
    Setting,
    cherrypick,
    quasi_random,
)
from precision_time.predictors.cloud_search import (
    Configurations,
    Search,
    table_of,
)
from precision_time.predictors.slice_sampling import Sampled, along
from precision_time.predictors.surrogate import Averaged, Belief, Likelihood, expected_improvement
from precision_time.predictors.training_grid import ENERGY, predicted_configurations

pytest.importorskip("sklearn")
QUICK = replace(IMPROVED, surrogate=Averaged(draws=16))
SEARCHES: dict[str, Callable[..., Search]] = {
    "cherrypick": lambda table, *a, **k: cherrypick(table, *a, setting=QUICK, **k),
    "random": lambda table, *a, **k: random_search(table, *a, runs=7, **k),
    "coordinate descent": lambda table, *a, **k: coordinate_descent(table, *a, runs=7, **k),
}


def made_up(seed: int = 0, size: int = 4) -> Configurations:
    """A grid of machine types and counts with a smooth time and some noise."""
    draws = np.random.default_rng(seed)
    cells = [(speed, count) for speed in range(1, size + 1) for count in (1, 2, 4, 8)]
    seconds = [100.0 / speed / count**0.8 + 2.0 * count + draws.uniform(0.0, 3.0) for speed, count in cells]
    return table_of(
        [{"speed": float(s), "log_count": math.log(c)} for s, c in cells],
        [f"{c} x type {s}" for s, c in cells],
        [float(c) * s**0.7 for s, c in cells],
        cells,
        seconds,
    )


@settings(max_examples=50, deadline=None)
@given(st.floats(-3.0, 3.0), st.floats(0.05, 3.0), st.floats(-3.0, 3.0))
def test_expected_improvement_is_the_integral(mean: float, deviation: float, best: float) -> None:
    y = np.linspace(mean - 12 * deviation, mean + 12 * deviation, 200_001)
    density = np.exp(-0.5 * ((y - mean) / deviation) ** 2) / (deviation * math.sqrt(2 * math.pi))
    integral = float(np.sum(np.maximum(best - y, 0.0) * density) * (y[1] - y[0]))
    found = float(expected_improvement(np.array([mean]), np.array([deviation]), best)[0])
    assert found == pytest.approx(integral, abs=1e-5)


@settings(max_examples=50, deadline=None)
@given(st.floats(-3.0, 3.0), st.floats(0.05, 3.0), st.floats(-3.0, 3.0), st.floats(-3.0, 3.0))
def test_improvement_within_a_limit_is_the_integral(mean: float, deviation: float, best: float, limit: float) -> None:
    y = np.linspace(mean - 12 * deviation, mean + 12 * deviation, 200_001)
    density = np.exp(-0.5 * ((y - mean) / deviation) ** 2) / (deviation * math.sqrt(2 * math.pi))
    integral = float(np.sum(np.maximum(best - y, 0.0) * (y <= limit) * density) * (y[1] - y[0]))
    belief = Belief(np.ones(1), np.array([[mean]]), np.array([[deviation]]))
    found = float(belief.improvement_within(best, np.array([limit]))[0])
    assert found == pytest.approx(integral, abs=2e-3)
    product = float(belief.expected_improvement(best)[0] * belief.below(np.array([limit]))[0])
    assert product <= found + 1e-9
    assert belief.improvement_within(best, np.array([math.inf]))[0] == pytest.approx(
        belief.expected_improvement(best)[0]
    )


def test_one_draw_is_scikit_learns_process() -> None:
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    draws = np.random.default_rng(3)
    places, known, asked = draws.uniform(size=(7, 3)), draws.normal(size=7), draws.uniform(size=(5, 3))
    ours = Averaged(draws=4)
    belief = ours(places, known, asked, 0)
    lengths, variance, noise = ours.sample(3)
    fits = []
    for at in range(4):
        kernel = variance[at] * (Matern(lengths[at], nu=2.5) + ConstantKernel(1.0) + WhiteKernel(noise[at]))
        oracle = GaussianProcessRegressor(kernel, optimizer=None, alpha=0.0).fit(places, known - known.mean())
        mean, deviation = oracle.predict(asked, return_std=True)
        np.testing.assert_allclose(belief.mean[at], mean + known.mean(), rtol=1e-8)
        np.testing.assert_allclose(belief.deviation[at] ** 2, deviation**2 - variance[at] * noise[at], rtol=1e-6)
        fits.append(oracle.log_marginal_likelihood_value_)
    weights = np.exp(np.array(fits) - max(fits))
    np.testing.assert_allclose(belief.weights, weights / weights.sum(), rtol=1e-6)


def test_slice_sampling_gives_the_distribution() -> None:
    draws = np.random.default_rng(0)
    point, direction, found = np.array([0.0, 5.0]), np.array([1.0, 0.0]), []
    for _ in range(4000):  # exponential with mean 2, of the first coordinate
        point = along(lambda at: -at[0] / 2.0 if at[0] >= 0.0 else -math.inf, point, direction, draws)
        found.append(point[0])
    assert point[1] == 5.0
    assert np.mean(found) == pytest.approx(2.0, abs=0.2)
    assert np.mean(np.array(found) > 2.0) == pytest.approx(math.exp(-1.0), abs=0.04)


def test_a_point_without_better_neighbours_stays() -> None:
    peak = np.array([1.0])
    stayed = along(lambda at: 0.0 if at[0] == 1.0 else -math.inf, peak, np.array([1.0]), np.random.default_rng(0))
    assert stayed[0] == 1.0


def test_one_sample_is_scikit_learns_process() -> None:
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import Matern

    from precision_time.predictors import slice_sampling

    draws = np.random.default_rng(3)
    places, known, asked = draws.uniform(size=(6, 3)), draws.normal(size=6), draws.uniform(size=(5, 3))
    prior = Sampled(samples=3, burn_in=20)
    belief = prior(places, known, asked, 4)
    levels, lengths = slice_sampling._samples(prior, 4, 3, places.tobytes(), known.tobytes())
    assert levels.shape == lengths.shape == (3, 3)
    assert ((lengths > 0.0) & (lengths <= prior.longest)).all()
    for at, (mean, variance, noise) in enumerate(levels):
        assert known.min() <= mean <= known.max()
        jitter = variance * slice_sampling.JITTER
        oracle = GaussianProcessRegressor(variance * Matern(lengths[at], nu=2.5), alpha=noise + jitter, optimizer=None)
        middle, deviation = oracle.fit(places, known - mean).predict(asked, return_std=True)
        np.testing.assert_allclose(belief.mean[at], middle + mean, rtol=1e-6)
        np.testing.assert_allclose(belief.deviation[at] ** 2, deviation**2 + jitter, rtol=1e-4)


def test_a_fixed_noise_stays_and_equal_costs_are_no_fault() -> None:
    from precision_time.predictors import slice_sampling

    places = np.linspace(0.0, 1.0, 5)[:, None]
    prior = Sampled(samples=2, burn_in=5, noise=0.02)
    levels, _ = slice_sampling._samples(prior, 0, 1, places.tobytes(), np.full(5, 3.0).tobytes())
    assert (levels[:, 2] == 0.02).all()
    assert (levels[:, 0] == 3.0).all()
    assert np.isfinite(Sampled(burn_in=5)(places[:1], np.array([2.0]), places, 0).middle).all()


@pytest.mark.parametrize("surrogate", [Likelihood(), Averaged(), Sampled()])
def test_a_surrogate_interpolates_its_observations(surrogate: Likelihood | Averaged | Sampled) -> None:
    places = np.linspace(0.0, 1.0, 9)[:, None]
    known = np.sin(4.0 * places[:, 0])
    belief = surrogate(places, known, np.vstack([places, [[5.0]]]), 0)
    np.testing.assert_allclose(belief.middle[:9], known, atol=0.15)
    spread = belief.weights @ belief.deviation
    assert spread[-1] > 3.0 * spread[:9].max()
    limit = np.full(10, belief.middle[-1])
    assert belief.below(limit)[-1] == pytest.approx(0.5, abs=0.2)


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_measured_twice(name: str, seed: int) -> None:
    table, asked = made_up(), []

    def measure(index: int) -> float:
        asked.append(index)
        return table.known()(index)

    found = SEARCHES[name](table, measure, seed=seed)
    assert len(asked) == len(set(asked)) == len(found.history)
    assert [t.index for t in found.history] == asked
    assert found.cost == pytest.approx(sum(table.known()(i) * table.price_per_s[i] for i in asked))
    assert found == SEARCHES[name](table, seed=seed)
    assert found.best is not None
    assert found.best.cost == min(t.cost for t in found.history)


@pytest.mark.parametrize("setting", [PUBLISHED, AUTHORS, IMPROVED])
def test_it_stops_by_its_rule_and_no_sooner(setting: Setting) -> None:
    found = cherrypick(made_up(), setting=setting, seed=1)
    assert len(found.history) >= setting.least_runs
    assert f"is below {setting.stop_below:.0%}" in found.stopped or "all" in found.stopped
    starts, rest = found.history[: setting.starts], found.history[setting.least_runs :]
    assert all(t.improvement is None for t in starts)
    if "all" not in found.stopped:
        chosen = cherrypick(
            made_up(), setting=replace(setting, stop_below=0.0, most_runs=len(found.history) + 1), seed=1
        )
        assert chosen.history[:-1] == found.history
    if not setting.per_cost:
        assert all(t.improvement is not None and t.improvement >= setting.stop_below for t in rest)


def test_ask_and_tell_are_the_search() -> None:
    table = made_up()
    known = table.known()
    whole = cherrypick(table, deadline_s=40.0, setting=QUICK, seed=2)
    search = CherryPick(replace(table, seconds=None), deadline_s=40.0, setting=QUICK, seed=2)
    while (suggestion := search.ask()) is not None:
        assert suggestion is search.ask()  # nothing changes until a result is told
        assert search.stopped == ""
        search.tell(suggestion.name, known(suggestion.index))
    assert search.result() == whole
    assert search.best == whole.best


def test_a_suggestion_says_why() -> None:
    table = made_up()
    search = CherryPick(table, deadline_s=40.0, setting=QUICK)
    first = search.ask()
    assert first is not None
    assert (first.improvement, first.chance, first.cost) == (None, None, None)
    for index in (0, 5, 10, 15):
        search.tell(index, table.known()(index))
    ranked = search.ranked()
    assert sorted(each.index for each in ranked) == [i for i in range(16) if i not in (0, 5, 10, 15)]
    for each in ranked:
        assert each.chance is not None
        assert each.cost is not None
        assert 0.0 <= each.chance <= 1.0
        assert each.seconds == pytest.approx(each.cost / table.price_per_s[each.index])
        assert each.spread is not None
        assert each.spread > 1.0
    trial = search.trials.done[0]
    search.tell(0, 1.0)  # a correction
    assert search.trials.done[0].seconds == 1.0 != trial.seconds
    for wrong in ("none", 16, -1, 1.5):
        with pytest.raises(PredictorError, match="is unknown"):
            search.tell(wrong, 1.0)  # type: ignore[arg-type]


def test_failed_runs_are_not_asked_for_again_and_their_neighbours_later() -> None:
    table = made_up()
    search = CherryPick(table, setting=replace(QUICK, stop_below=0.0))
    tried = []
    while (suggestion := search.ask()) is not None:
        fails = suggestion.name.startswith(("1 x", "2 x"))  # too small for the job
        tried.append(suggestion.name)
        search.tell(suggestion.index, None if fails else table.known()(suggestion.index))
    assert len(tried) == len(set(tried)) == 16
    assert set(search.result().failed) == {name for name in table.names if name.startswith(("1 x", "2 x"))}
    assert search.best is not None
    assert not search.best.name.startswith(("1 x", "2 x"))
    failures_last = [name.startswith(("1 x", "2 x")) for name in tried[6:]]
    assert sum(failures_last[:5]) <= sum(failures_last[5:])
    all_fail = CherryPick(table, setting=QUICK)
    while (suggestion := all_fail.ask()) is not None:
        all_fail.tell(suggestion.index, None)
    assert (all_fail.best, all_fail.stopped) == (None, "all 16 measured")
    all_fail.tell(3, 5.0)
    assert all_fail.best is not None
    assert len(all_fail.result().failed) == 15


def test_a_budget_of_runs_is_kept() -> None:
    found = cherrypick(made_up(), setting=replace(QUICK, stop_below=0.0, most_runs=5))
    assert (len(found.history), found.stopped) == (5, "5 runs used")
    assert len(cherrypick(made_up(), setting=replace(QUICK, stop_below=0.0)).history) == 16


@pytest.mark.parametrize("seed", range(4))
def test_the_deadline_is_kept_where_it_can_be(seed: int) -> None:
    table = made_up()
    times = [table.known()(i) for i in range(len(table))]
    deadline = sorted(times)[1] * 1.0001  # two configurations keep it
    found = cherrypick(table, deadline_s=deadline, seed=seed, setting=QUICK)
    assert found.best is not None
    assert found.best.seconds <= deadline
    missed = cherrypick(table, deadline_s=min(times) / 2, seed=seed, setting=QUICK)
    assert missed.best is None
    assert len(missed.history) == len(table)
    assert table.best(min(times) / 2) is None


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 16), st.integers(0, 50))
def test_baselines_use_the_runs_they_are_given(world: int, runs: int, seed: int) -> None:
    table = made_up(world)
    assert len(random_search(table, runs=runs, seed=seed).history) == runs
    assert len(coordinate_descent(table, runs=runs, seed=seed).history) == runs


def test_coordinate_descent_walks_one_coordinate_at_a_time() -> None:
    places = [(a, b) for a in range(3) for b in range(3)]
    costs = {(0, 0): 9, (0, 1): 8, (0, 2): 7, (1, 0): 6, (1, 1): 5, (1, 2): 4, (2, 0): 3, (2, 1): 1, (2, 2): 2}
    table = table_of(
        [{"a": a, "b": b} for a, b in places], [str(p) for p in places], [1.0] * 9, places, [costs[p] for p in places]
    )
    for seed in range(9):
        found = coordinate_descent(table, runs=5, seed=seed)  # 3 along a, then 2 more along b: a bowl, so enough
        assert found.best is not None
        assert found.best.name == "(2, 1)"


def test_quasi_random_starts_differ_and_spread() -> None:
    places = made_up().normalised
    starts = [quasi_random(places, 3, seed) for seed in range(20)]
    assert all(len(set(s)) == 3 for s in starts)
    assert len({tuple(s) for s in starts}) > 10
    assert quasi_random(places, 1, 0)[0] in range(16)
    assert quasi_random(np.zeros((4, 0)), 2, 0) == [0, 1]


def test_a_table_without_varying_features_can_be_searched() -> None:
    table = table_of([{"a": 1.0}] * 3, ["x", "y", "z"], [1.0] * 3, [(0,), (1,), (2,)], [3.0, 1.0, 2.0])
    found = cherrypick(table)
    assert found.best is not None
    assert found.best.name == "y"


def test_saved_and_read_back() -> None:
    found = cherrypick(made_up(), deadline_s=50.0, setting=QUICK)
    assert Search.from_json(found.to_json()) == found
    for text in ("nothing", "{}", json.dumps({"history": [{"a": 1}], "stopped": "", "deadline_s": None})):
        with pytest.raises(DataError, match="search"):
            Search.from_json(text)


def test_progress_is_reported() -> None:
    told: list[tuple[int, int]] = []
    found = cherrypick(made_up(), setting=QUICK, progress=lambda done, of: told.append((done, of)))
    assert told == [(i + 1, 16) for i in range(len(found.history))]


def test_bad_arguments_raise() -> None:
    table = made_up()
    with pytest.raises(PredictorError, match="deadline_s"):
        cherrypick(table, deadline_s=0.0)
    with pytest.raises(PredictorError, match="took nan s"):
        cherrypick(table, lambda index: math.nan)
    with pytest.raises(PredictorError, match="measure function"):
        cherrypick(replace(table, seconds=None))
    with pytest.raises(PredictorError, match="twice"):
        replace(table, names=("same",) * 16)
    with pytest.raises(PredictorError, match="shape"):
        replace(table, feature_names=("one",))
    with pytest.raises(PredictorError, match="price_per_s"):
        replace(table, price_per_s=table.price_per_s * 0.0)
    with pytest.raises(PredictorError, match="coordinates"):
        replace(table, coordinates=table.coordinates[:-1])
    with pytest.raises(PredictorError, match="empty"):
        table_of([], [], [], [])
    with pytest.raises(PredictorError, match="features of 'b'"):
        table_of([{"a": 1.0}, {"c": 1.0}], ["a", "b"], [1.0, 1.0], [(0,), (1,)])
    with pytest.raises(PredictorError, match="starts"):
        Setting(starts=0)
    with pytest.raises(PredictorError, match="stop_below"):
        Setting(stop_below=-1.0)


def test_a_simulated_world_holds_what_can_run() -> None:
    job = Job("resnet50", run=Run(samples=10_000))
    table = predicted_configurations(job, gpus=("t4", "a100-80gb-sxm"), counts=(1, 4), batches=(32,), price=ENERGY)
    assert not any("t4, tf32" in n or "t4, amp-bf16" in n for n in table.names)  # no such units
    assert "4 x a100-80gb-sxm, amp-bf16, batch 32" in table.names
    one, four = (table.names.index(f"{n} x t4, fp32, batch 32") for n in (1, 4))
    assert table.price_per_s[four] == pytest.approx(4 * table.price_per_s[one])
    assert table.known()(four) < table.known()(one)
    one, four = (
        predicted_configurations(job, gpus=("a100-80gb-sxm",), counts=(count,), precisions=("tf32",)).price_per_s[0]
        for count in (1, 4)
    )
    assert one == four == pytest.approx(27.44705 / 3600)  # AWS rents A100 by the eight
    dollars = predicted_configurations(job, gpus=("t4",), counts=(2,), batches=(32,), usd_per_gpu_hour={"t4": 0.36})
    np.testing.assert_allclose(dollars.price_per_s, 2e-4)
    with pytest.raises(PredictorError, match="price"):
        predicted_configurations(job, gpus=("t4",), usd_per_gpu_hour={})
    with pytest.raises(PredictorError, match="length"):
        predicted_configurations(Job("resnet50"))
