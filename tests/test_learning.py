"""Corrections learned from outcomes: the posterior, its robustness, the state, and two workers."""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_time import Job
from precision_time.errors import DataError
from precision_time.estimate.interval import Z90
from precision_time.prediction import predict
from precision_time.serve.learning import Facets, Learning
from precision_time.serve.learning.cluster import MOST_JOBS, MOST_REPEATS
from precision_time.serve.learning.effects import EFFECTS, Coded, Variances, launching, prior_variance
from precision_time.serve.learning.learning import MOST_CLUSTERS
from precision_time.serve.learning.outcome import Observed, step_seconds
from precision_time.serve.learning.posterior import JobOutcomes, Posterior
from precision_time.serve.records import Outcome, Prediction, Recorded

VARIANCES = Variances({**dict.fromkeys(EFFECTS, 0.0), "cluster": 0.2, "family": 0.1, "launches": 0.3}, 0.1, 0.05)
SPREAD = 0.2


def facets(job: str, family: str = "bert", gpu: str = "a100", launch: float = 0.0) -> Facets:
    return Facets(gpu, "pytorch", "amp-bf16", family, f"{family}-large", "nchw flash eager", job, launch)


def recorded(
    number: int, of: Facets, measured_s: float, cluster: str = "hall", predicted_s: float = 1.0, **outcome: object
) -> Recorded:
    width = math.exp(Z90 * SPREAD)
    predicted = (predicted_s / width, predicted_s, predicted_s * width)
    prediction = Prediction(
        f"p{number}", 0.0, cluster, {"model": of.model}, {}, of.to_dict(), predicted, {"precision-time": "1"}
    )
    fields: dict[str, object] = {"recorded_at": float(number), "step_s": measured_s, **outcome}
    return Recorded(number, prediction, Outcome(f"k{number}", prediction.id, **fields))  # type: ignore[arg-type]


class Stored:
    """A store that holds a list."""

    def __init__(self, records: Sequence[Recorded]) -> None:
        self.records = records

    def recorded(self, after: int = 0) -> Iterator[Recorded]:
        return (each for each in self.records if each.number > after)


def learned(records: Sequence[Recorded], variances: Variances = VARIANCES) -> Learning:
    learning = Learning(variances)
    learning.catch_up(Stored(records))  # type: ignore[arg-type]
    return learning


def stream(count: int, seed: int, jobs: int = 12) -> list[Recorded]:
    """Outcomes of a cluster that is 20 % slower, and whose GPT jobs are another 10 % slower."""
    draw = random.Random(seed)
    records = []
    for number in range(1, count + 1):
        place = draw.randrange(jobs)
        family = "gpt" if place % 2 else "bert"
        log = math.log(1.2) + (math.log(1.1) if place % 2 else 0.0) + draw.gauss(0.0, 0.03)
        records.append(recorded(number, facets(f"job{place}", family), math.exp(log)))
    return records


def test_one_outcome_by_hand() -> None:
    """Two normal effects and one outcome: a small error has the weight of a t distribution's middle."""
    ratio = 0.01
    posterior = Posterior([JobOutcomes(facets("a"), (ratio,), (0.0,))], VARIANCES)
    shared, own, noise = 0.2**2 + 0.1**2, 0.1**2, 0.05**2
    weight = 5.0 / 4.0  # of both, at an error near zero
    total = shared + own / weight + noise / weight
    assert posterior.predicted(facets("other")).mean == pytest.approx(ratio * shared / total, rel=0.01)
    assert posterior.predicted(facets("a")).mean == pytest.approx(ratio * (shared + own / weight) / total, rel=0.01)
    assert posterior.predicted(facets("c", family="gpt")).mean == pytest.approx(ratio * 0.2**2 / total, rel=0.01)
    assert posterior.predicted(facets("other")).informed == pytest.approx(shared**2 / total / (shared + own), rel=0.01)


def test_a_new_cluster_starts_from_the_published_base() -> None:
    learning = learned(stream(20, 1))
    job = Job("bert-large", gpus=8, precision="amp-bf16", batch_size=8)
    base = predict(job)
    assert predict(job, learned=learning.cluster("elsewhere")).step == base.step
    assert learning.correction("elsewhere", Facets.of(base)).outcomes == 0
    assert Posterior([], VARIANCES).predicted(facets("a")).mean == 0.0


def test_outcomes_correct_other_jobs_other_models_and_the_same_job() -> None:
    learning = learned(stream(60, 2))
    same = learning.correction("hall", facets("job0"))
    other = learning.correction("hall", facets("new", "gpt"))
    stranger = learning.correction("hall", facets("new", "resnet"))
    assert same.factor == pytest.approx(1.2, rel=0.03)
    assert other.factor == pytest.approx(1.32, rel=0.04)
    assert stranger.factor == pytest.approx(1.25, rel=0.08)
    assert same.informed > other.informed > stranger.informed > 0.0
    assert same.sharing["job"] > 0
    assert "job" not in other.sharing
    assert "family" not in stranger.sharing
    assert same.outcomes == sum(len(job.outcomes) for job in learning.clusters["hall"].jobs.values())


def test_the_effect_of_launches_acts_where_launching_limits() -> None:
    jobs = [JobOutcomes(facets(f"{i}", launch=0.3 * (i % 2)), (0.4 * (i % 2),), (0.0,)) for i in range(12)]
    posterior = Posterior(jobs, VARIANCES)
    assert posterior.predicted(facets("x", launch=0.3)).mean > 0.25
    assert abs(posterior.predicted(facets("y")).mean) < 0.12
    assert launching(0.0) == 0.0


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 30), st.integers(0, 1000))
def test_one_at_a_time_is_all_at_once(count: int, seed: int) -> None:
    """Exactly, where a state is kept and read between outcomes; and where outcomes come in another order, but for the
    tails, which follow it, and for the last digits of sums."""
    records = stream(count, seed)
    at_once = learned(records)
    step_by_step = Learning(VARIANCES)
    for number in range(1, count + 1):
        step_by_step.catch_up(Stored(records[:number]))  # type: ignore[arg-type]
        step_by_step = Learning.from_dict(json.loads(json.dumps(step_by_step.to_dict())), VARIANCES)
        step_by_step.correction("hall", facets("job1", "gpt"))
    assert step_by_step.to_dict() == at_once.to_dict()
    queries = [facets("job0"), facets("job1", "gpt"), facets("new", "resnet")]
    for query in queries:
        assert step_by_step.correction("hall", query) == at_once.correction("hall", query)
    order = list(range(count))
    random.Random(seed).shuffle(order)
    shuffled = learned(
        [Recorded(place + 1, records[i].prediction, records[i].outcome) for place, i in enumerate(order)]
    )
    if count <= MOST_REPEATS:  # then no outcome of a job was dropped
        for query in queries:
            one, other = shuffled.correction("hall", query), at_once.correction("hall", query)
            assert one.factor == pytest.approx(other.factor, rel=1e-6)
            assert one.informed == pytest.approx(other.informed, abs=1e-6)


def test_two_workers_and_a_kept_state_agree() -> None:
    records = stream(40, 3)
    first, second = Learning(VARIANCES), learned(records)
    assert first.catch_up(Stored(records[:25])) == 25  # type: ignore[arg-type]
    again = Learning.from_dict(json.loads(json.dumps(first.to_dict())), VARIANCES)
    assert again.catch_up(Stored(records)) == 15  # type: ignore[arg-type]
    assert again.catch_up(Stored(records)) == 0  # type: ignore[arg-type]
    assert again.to_dict() == second.to_dict()
    assert again.number == 40
    assert again.learn(records[3]) is None, "read before"
    assert again.to_dict() == second.to_dict()


def test_states_that_cannot_be_read_say_so() -> None:
    for content in ([], {"format": 1}, {"format": 99, "number": 1, "clusters": {}}):
        with pytest.raises(DataError):
            Learning.from_dict(content, VARIANCES)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="launch"):
        Facets.from_dict({**facets("a").to_dict(), "launch": "much"})
    with pytest.raises(DataError, match="family"):
        Facets.from_dict({name: text for name, text in facets("a").to_dict().items() if name != "family"})


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10_000), st.integers(10, 60))
def test_a_tenth_of_broken_machines_does_not_poison(seed: int, count: int) -> None:
    draw = random.Random(seed)
    records = stream(count, seed)
    broken = [
        Recorded(r.number, r.prediction, Outcome(r.outcome.key, r.outcome.prediction, r.outcome.recorded_at, s))
        for r in records
        for s in [(r.outcome.step_s or 0.0) * (draw.uniform(2.0, 5.0) if r.number % 10 == 5 else 1.0)]
    ]
    healthy, poisoned = learned(records), learned(broken)
    for query in (facets("new"), facets("new", "gpt"), facets("new", "resnet")):
        one, other = healthy.correction("hall", query).factor, poisoned.correction("hall", query).factor
        assert abs(math.log(other / one)) < 0.06


@given(st.floats(0.0, 2.9))
@settings(max_examples=50, deadline=None)
def test_the_influence_of_one_outcome_is_bounded(ratio: float) -> None:
    """However slow a machine is, one outcome moves other jobs by less than a quarter of what a cluster differs by."""
    others = [JobOutcomes(facets(f"{i}"), (0.0,), (0.0,)) for i in range(3)]
    moved = Posterior([*others, JobOutcomes(facets("x"), (ratio,), (0.0,))], VARIANCES).predicted(facets("new")).mean
    assert -0.001 < moved < 0.25 * VARIANCES.effects["cluster"]


def test_a_cluster_that_is_three_times_slower_is_believed() -> None:
    records = [recorded(i, facets(f"job{i}"), 3.0) for i in range(1, 13)]
    assert learned(records).correction("hall", facets("new")).factor == pytest.approx(3.0, rel=0.12)


def test_a_second_outcome_of_a_job_settles_whether_the_first_was_broken() -> None:
    usual = [recorded(i, facets(f"job{i}"), 1.0) for i in range(1, 9)]
    slow = recorded(9, facets("x"), 3.0)
    once = learned([*usual, slow])
    assert once.correction("hall", facets("x")).factor < 1.5, "probably a broken machine"
    twice = learned([*usual, slow, recorded(10, facets("x"), 3.0)])
    assert twice.correction("hall", facets("x")).factor > 2.3
    back = learned([*usual, slow, recorded(10, facets("x"), 1.0)])
    assert back.correction("hall", facets("x")).factor == pytest.approx(1.0, rel=0.06)


def test_old_software_is_forgotten_slowly() -> None:
    def outcome(number: int, seconds: float, at: float, torch: str) -> Recorded:
        return recorded(number, facets("a"), seconds, recorded_at=at, machine={"torch": torch})

    year = 365.25 * 86400.0
    variances = replace(VARIANCES, effects={**VARIANCES.effects, "release": 0.1})
    old = [outcome(i, 1.3, 0.0, "2.4") for i in range(1, 5)]
    same = learned([*old, outcome(5, 1.0, 0.0, "2.4")], variances).correction("hall", facets("a")).factor
    newer = learned([*old, outcome(5, 1.0, 0.0, "2.9")], variances).correction("hall", facets("a")).factor
    later = learned([*old, outcome(5, 1.0, 8.0 * year, "2.9")], variances).correction("hall", facets("a")).factor
    assert same > newer > later > 1.0


def test_what_a_release_changed_in_some_jobs_is_expected_of_the_others() -> None:
    """Ten jobs take 1 s; the first three take 0.9 s each on a new release. The others have not run on it."""
    variances = replace(VARIANCES, effects={**VARIANCES.effects, "release": 0.1})
    old = [recorded(i, facets(f"{i}"), 1.0, machine={"torch": "2.4"}) for i in range(1, 11)]
    new = [recorded(10 + i, facets(f"{i}"), 0.9, machine={"torch": "2.9"}) for i in range(1, 4)]
    assert learned(old, variances).correction("hall", facets("9")).factor == pytest.approx(1.0, abs=0.01)
    assert learned([*old, *new], variances).correction("hall", facets("9")).factor == pytest.approx(0.92, abs=0.02)
    assert learned([*old, *new]).correction("hall", facets("9")).factor > 0.96, "without an effect of releases"


def test_outcomes_of_a_job_follow_a_better_prediction() -> None:
    """The predictor's next version predicts 1.3 s where it predicted 1 s: then no outcome is slower."""
    records = [recorded(i, facets("a"), 1.3) for i in range(1, 4)]
    after = learned([*records, recorded(4, facets("a"), 1.3, predicted_s=1.3)])
    assert after.correction("hall", facets("a")).factor == pytest.approx(1.0, abs=0.01)


def _full(count: int) -> Learning:
    """A cluster that has seen so many jobs, without what was expected of each."""
    learning = learned([recorded(1, facets("j1"), 1.0)])
    for number in range(2, count + 1):
        observed = Observed.of(recorded(number, facets(f"j{number}", f"f{number % 9}"), 1.0 + 0.0005 * number))
        assert observed is not None
        learning.clusters["hall"]._keep(observed)
        learning.number = number
    return learning


def test_the_state_is_bounded() -> None:
    learning = _full(5 * MOST_JOBS)
    jobs = learning.clusters["hall"].jobs
    assert len(jobs) == MOST_JOBS
    assert f"j{5 * MOST_JOBS}" in jobs
    assert "j1" not in jobs
    for number in range(learning.number + 1, learning.number + 1 + 2 * MOST_REPEATS):
        learning.learn(recorded(number, facets("one"), 1.0))
    assert len(jobs["one"].outcomes) == MOST_REPEATS
    assert len(json.dumps(learning.to_dict())) < 400_000


def test_clusters_are_bounded() -> None:
    learning = Learning(VARIANCES)
    for number in range(1, MOST_CLUSTERS + 20):
        learning.learn(recorded(number, facets("a"), 1.0, cluster=f"c{number}"))
    assert len(learning.clusters) == MOST_CLUSTERS
    assert "c1" not in learning.clusters


def test_an_outcome_is_learned_in_milliseconds() -> None:
    """About 10 ms on one idle core with 200 jobs; the bound allows for busy machines."""
    learning = _full(MOST_JOBS)
    took = []
    for number in range(MOST_JOBS + 1, MOST_JOBS + 6):
        start = time.process_time()
        learning.learn(recorded(number, facets(f"j{number}"), 1.1))
        learning.correction("hall", facets("x"))
        took.append(time.process_time() - start)
    assert min(took) < 0.1


def test_seconds_of_a_step_from_what_an_outcome_has() -> None:
    parts = {"start_up": {"p50": 100.0}, "training": {"p50": 900.0}, "queue": {"p50": 50.0}}
    estimate = {"goodput": {"parts": parts}, "steps": 1000}
    prediction = Prediction("p", 0.0, "c", {}, estimate, {}, (1.0, 1.0, 1.0), {})

    def of(**fields: object) -> float | None:
        return step_seconds(prediction, Outcome("k", "p", 0.0, **fields))  # type: ignore[arg-type]

    assert of(step_s=2.0, run_s=5.0) == 2.0
    assert of(steps_s=(1.0, 9.0, 3.0)) == 3.0
    assert of(run_s=1300.0, finished=True) == pytest.approx(1.2)
    assert of(run_s=1300.0) is None, "it may have ended early"
    assert of(run_s=1300.0, finished=False) is None
    assert of(run_s=50.0, finished=True) is None
    assert of(step_s=math.nan) is None
    assert of(step_s=0.0) is None
    assert of(peak_bytes=5) is None


def test_outcomes_of_other_units_and_of_loaders_are_not_learned() -> None:
    learning = Learning(VARIANCES)
    assert learning.learn(recorded(1, facets("a"), 1000.0)) is None
    cluster = learning.clusters["hall"]
    assert (cluster.unused, cluster.outcomes, len(learning.anomalies())) == (1, 0, 1)
    waits = recorded(2, facets("b"), 1.1)
    stalled = Prediction(
        "w", 0.0, "hall", {}, {"breakdown": {"forward": 0.8, "loader_stall": 0.2}}, waits.prediction.facets,
        waits.prediction.predicted, {},
    )  # fmt: skip
    assert learning.learn(Recorded(2, stalled, waits.outcome)) is None
    assert cluster.outcomes == 0
    assert learning.number == 2


def test_outcomes_of_predictions_without_facets_are_passed_over() -> None:
    good = recorded(1, facets("a"), 1.1)
    prediction = Prediction("p", 0.0, "hall", {}, {}, {"gpu": "a100"}, good.prediction.predicted, {})
    learning = Learning(VARIANCES)
    assert learning.learn(Recorded(1, prediction, good.outcome)) is None
    assert (learning.number, learning.clusters) == (1, {})


def test_covariances_are_those_of_the_table() -> None:
    jobs = [facets("a"), facets("b", "gpt", launch=0.05), facets("c", gpu="h100", launch=0.2)]
    squares = VARIANCES.squares
    shared = Coded(jobs).shared(squares)
    weights = [launching(job.launch) for job in jobs]
    for i, one in enumerate(jobs):
        for j, other in enumerate(jobs):
            expected = 0.2**2 + 0.1**2 * (one.family == other.family) + 0.3**2 * weights[i] * weights[j]
            assert shared[i, j] == pytest.approx(expected)
        assert Coded(jobs).shared_with(one, squares) == pytest.approx(shared[i])
        assert prior_variance(one, squares) == pytest.approx(shared[i, i])
    assert np.linalg.eigvalsh(shared).min() > -1e-12


def test_facets_of_jobs() -> None:
    job = Job("ResNet-50", gpus=8, precision="mixed", batch_size=256, run={"epochs": 90})
    base = predict(job)
    found = Facets.of(base)
    assert (found.model, found.family, found.precision, found.gpu) == (
        "resnet50", "resnet", "amp-fp16", "a100-80gb-sxm"
    )  # fmt: skip
    assert found.launch == pytest.approx(base.bound_shares["launch"], abs=1e-4)
    assert Facets.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    assert Facets.of_job(job.replace(run={"epochs": 1}), 0.0).job == found.job, "a longer run has the same steps"
    assert Facets.of_job(job.replace(batch_size=128), 0.0).job != found.job
    default = Facets.of_job(Job("resnet50", batch_size=None), 0.0)
    named = predict(Job("resnet50"))
    batch = round(named.samples_per_s * named.step.p50)
    assert Facets.of_job(Job("resnet50", batch_size=batch), 0.0).job == default.job
    assert Facets.of_job(Job("timm:tf_efficientnet_b0"), 0.0).family == "timm:efficientnet"
