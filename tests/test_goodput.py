"""The parts of a run: sums by hand, failures against a discrete-event simulation, properties of the distribution."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from precision_time import Estimate, Job, predict, predict_time
from precision_time.capture.graph import Phase
from precision_time.errors import JobError
from precision_time.estimate.failures import (
    PUBLISHED_FAILURES,
    PUBLISHED_GPU_HOURS,
    FailureRate,
    Interruptions,
    best_interval,
    lost_shares,
)
from precision_time.estimate.goodput import Goodput, RunFacts
from precision_time.estimate.interval import Interval
from precision_time.estimate.levels import AXES, COUNT, Distribution, interval_of, normal, of_interval, uniform
from precision_time.estimate.run_parts import run_parts
from precision_time.placement import cluster_of
from precision_time.prediction import simulate_step
from precision_time.units import human_seconds

RUN = {"model": "resnet50", "gpu": "a100-80gb-sxm", "precision": "amp-bf16", "batch_size": 256, "gpus": 8}


def parts_of(estimate: Estimate) -> Goodput:
    assert estimate.goodput is not None
    return estimate.goodput


def facts_of(estimate: Estimate) -> RunFacts:
    basis = parts_of(estimate).basis
    assert basis is not None
    return basis[0]


def test_levels_are_even_and_independent() -> None:
    for axis in range(AXES):
        assert np.allclose(np.sort(uniform(axis)), (np.arange(COUNT) + 0.5) / COUNT)
    for a in range(AXES):
        for b in range(a):
            assert abs(np.corrcoef(normal(a), normal(b))[0, 1]) < 0.05, (a, b)


@given(st.floats(1.0, 1e6), st.floats(0.01, 1.0), st.floats(0.01, 1.0))
def test_quantile_and_probability_are_inverse(middle: float, below: float, above: float) -> None:
    distribution = Distribution.of_interval(Interval(middle * (1 - below / 2), middle, middle * (1 + above)))
    assert distribution.interval.p50 == pytest.approx(middle)
    for probability in (0.003, 0.2, 0.5, 0.77, 0.95, 0.998):
        assert distribution.probability(distribution.quantile(probability)) == pytest.approx(probability, abs=1e-6)
    assert distribution.probability(middle * 1.1) <= distribution.probability(middle * 1.2)


def test_a_certain_time_is_reached_or_not() -> None:
    ten = Distribution.of_interval(Interval(10.0, 10.0, 10.0))
    assert (ten.probability(9.99), ten.probability(10.0), ten.quantile(0.99)) == (0.0, 1.0, pytest.approx(10.0))


def test_the_sum_of_two_independent_parts() -> None:
    """Two log-normal parts of equal size: the spread of the sum is that of 200,000 drawn ones."""
    parts = [of_interval(Interval.around(100.0, 0.3), axis) for axis in (0, 1)]
    random.seed(1)
    drawn = np.sort([100 * (math.exp(random.gauss(0, 0.3)) + math.exp(random.gauss(0, 0.3))) for _ in range(200_000)])
    for quantile, seconds in zip((0.1, 0.5, 0.9), vars_of(interval_of(parts[0] + parts[1])), strict=True):
        assert seconds == pytest.approx(drawn[int(quantile * len(drawn))], rel=0.01)


def vars_of(interval: Interval) -> tuple[float, float, float]:
    return interval.p10, interval.p50, interval.p90


def test_parts_by_hand() -> None:
    """100 steps, an evaluation every 40 (two of 7 s), a checkpoint every 50 (two of 5 s), 60 s of start-up."""
    plain = predict_time(**RUN, steps=100, start_up_s=0)
    run = predict_time(
        **RUN, steps=100, start_up_s=60, compile_s=30, queue_s=1000, evaluation_every_steps=40, evaluation_s=7,
        checkpoint_every_steps=50, checkpoint_s=5,
    )  # fmt: skip
    assert plain.run is not None
    assert run.run is not None
    for quantile in ("p10", "p50", "p90"):
        steps_s = getattr(plain.step, quantile) * 100
        assert getattr(plain.run, quantile) == pytest.approx(steps_s)
        assert getattr(run.run, quantile) == pytest.approx(steps_s + 60 + 30 + 2 * 7 + 2 * 5)
    parts = {name: part.p50 for name, part in parts_of(run).parts.items()}
    assert {n: s for n, s in parts.items() if n != "training"} == pytest.approx(
        {"queue": 1000, "start_up": 60, "compile": 30, "evaluation": 14, "checkpoints": 10}
    )
    assert parts_of(run).from_submission().interval.p50 == pytest.approx(sum(parts.values()))
    assert Estimate.from_dict(run.to_dict()).goodput == run.goodput


def test_the_start_up_of_mlperf_is_the_default() -> None:
    one, many = (predict_time(**{**RUN, "gpus": gpus}, steps=1000) for gpus in (8, 512))
    fitted = run_parts().start_up
    expected = math.exp(fitted.log_s + fitted.benchmarks["resnet"][0])
    assert fitted.interval("resnet50", 1).p50 == pytest.approx(expected)
    assert fitted.interval("resnet50", 64).p50 == pytest.approx(expected * 64**fitted.per_log_node)
    assert fitted.interval("unknown", 1).p50 == pytest.approx(math.exp(fitted.log_s))
    assert parts_of(many).parts["start_up"].p50 > parts_of(one).parts["start_up"].p50 > expected / 2
    assert "733 runs of MLPerf" in str(one)


def test_loss_scaling_skips_steps_of_the_run() -> None:
    scaled = predict_time(**{**RUN, "precision": "amp-fp16"}, steps=20_010, start_up_s=0)
    assert parts_of(scaled).parts["skipped_steps"].p50 == pytest.approx(10 * scaled.step.p50, rel=1e-3)
    assert scaled.run.p50 == pytest.approx(20_010 * scaled.step.p50)
    static = predict_time(**{**RUN, "precision": "amp-fp16"}, steps=20_010, start_up_s=0, loss_scale="static")
    assert "skipped_steps" not in parts_of(static).parts


def test_evaluation_takes_the_forward_pass_times_the_fitted_factor() -> None:
    run = predict_time(**RUN, steps=1252, start_up_s=0, evaluation_samples=51_200, evaluation_every_steps=626)
    evaluated = simulate_step(run.job, run.job.precision_spec, cluster_of(run.job), evaluates=True)
    busy = evaluated.timeline.busy
    forward_s = (busy[Phase.FORWARD] + busy[Phase.LOSS]) * 51_200 / (256 * 8)
    assert 0.5 * run.breakdown["forward"] < busy[Phase.FORWARD] < 0.9 * run.breakdown["forward"], "no statistics"
    assert parts_of(run).parts["evaluation"].p50 == pytest.approx(
        2 * forward_s * run_parts().evaluation.factor,
        rel=0.05,  # the median of a sample, of a wide distribution
    )


@pytest.mark.parametrize(
    ("fields", "nbytes"),
    [
        ({}, (4 + 4)),  # fp32 weights and momentum
        ({"optimizer": "adamw"}, (4 + 8)),
        ({"precision": "bf16-master"}, (2 + 4 + 4)),
        ({"precision": "bf16-master", "layout": "fsdp"}, (4 + 4)),  # the fp32 shard is the only copy
        ({"precision": "bf16"}, (2 + 2)),
    ],
)
def test_bytes_of_a_checkpoint(fields: dict[str, str], nbytes: int) -> None:
    run = predict_time(**{**RUN, **fields}, steps=10, checkpoint_storage="nvme-gen4", checkpoint_every_steps=5)
    checkpoint = facts_of(run).checkpoint
    assert checkpoint.nbytes == pytest.approx(run.parameters * nbytes, abs=1)
    writers = 8 if fields.get("layout") == "fsdp" else 1  # at 2 GB/s each, 6.9 GB/s together
    assert checkpoint.stops_s == pytest.approx(checkpoint.nbytes / min(writers * 2e9, 6.9e9) + 1e-4)


def test_an_asynchronous_checkpoint_stops_training_for_the_copy_alone() -> None:
    given = {**RUN, "steps": 1000, "checkpoint_storage": "nfs-10gbe", "checkpoint_every_steps": 500}
    whole, behind = predict_time(**given), predict_time(**given, checkpoint_async=True)
    checkpoint = facts_of(behind).checkpoint
    assert checkpoint.stops_s == pytest.approx(checkpoint.nbytes / (0.8 * 16 * 1.969e9))
    assert parts_of(behind).parts["checkpoints"].p50 < parts_of(whole).parts["checkpoints"].p50 / 5


# --- failures


def simulated_run(
    work_s: float, tau: float, delta: float, restart_s: float, between_s: float, rng: random.Random
) -> float:
    """A run played event by event: segments of work and a checkpoint, exponential failures, restarts that may fail."""
    clock, done, until = 0.0, 0.0, rng.expovariate(1 / between_s)
    while done < work_s:
        segment = min(tau, work_s - done) + delta
        if until >= segment:
            clock, until, done = clock + segment, until - segment, done + segment - delta
            continue
        clock, until = clock + until, rng.expovariate(1 / between_s)
        while until < restart_s:
            clock, until = clock + until, rng.expovariate(1 / between_s)
        clock, until = clock + restart_s, until - restart_s
    return clock


@pytest.mark.parametrize(("tau", "delta", "restart", "between"), [(900, 30, 120, 9000), (3600, 60, 600, 40_000)])
def test_failures_against_a_simulation(tau: float, delta: float, restart: float, between: float) -> None:
    work = 100 * 3600.0
    rng = random.Random(7)
    played = np.array([simulated_run(work, tau, delta, restart, between, rng) for _ in range(1500)])
    levels = np.full(COUNT, work)
    lost = Interruptions.of(levels, tau, delta, restart, np.full(COUNT, between))
    total = work + work / tau * delta + lost.lost_work_s + lost.restarts_s
    assert total.mean() == pytest.approx(played.mean(), rel=0.005)
    assert np.quantile(total, 0.9) == pytest.approx(np.quantile(played, 0.9), rel=0.02)
    assert lost.mean_failures == pytest.approx(played.mean() / between, rel=0.02)
    (share,) = lost_shares((tau,), delta, restart, between)
    assert work * (1 + share) == pytest.approx(played.mean(), rel=0.005)


@given(st.floats(1, 1000), st.floats(5e3, 1e6))
def test_the_best_interval_loses_least(delta: float, between: float) -> None:
    best = best_interval(delta, between)
    assert best == pytest.approx(math.sqrt(2 * delta * between), rel=0.5)  # Young's first-order formula
    at_best, *others = lost_shares([best * factor for factor in (1.0, 0.6, 0.8, 1.25, 1.6)], delta, 60.0, between)
    assert at_best <= min(others) * 1.001


def test_the_published_rate_and_a_log() -> None:
    each = PUBLISHED_GPU_HOURS / PUBLISHED_FAILURES
    assert FailureRate.published().gpu_hours == pytest.approx(50_677, rel=1e-3)
    # 9 failures in 90,000 GPU-hours and one in 50,677: ten in 140,677.
    assert FailureRate.published(9, 90_000).gpu_hours == pytest.approx((90_000 + each) / 10)
    hours = FailureRate.published(9, 90_000).hours_between(100, 3)
    # Percentiles of Gamma(10) by scipy: 6.221, 9.669, 14.206, over its mean.
    for quantile, relative in ((0.1, 10 / 14.206), (0.5, 10 / 9.669), (0.9, 10 / 6.221)):
        assert np.quantile(hours, quantile) == pytest.approx((90_000 + each) / 10 / 100 * relative, rel=0.01)


def test_a_known_rate_gives_the_interval_and_nothing_invented() -> None:
    long = {**RUN, "steps": 10**6, "checkpoint_storage": "nvme-gen4"}
    known = predict_time(**long, gpu_hours_per_failure=80)
    best = best_interval(facts_of(known).checkpoint.stops_s, 10 * 3600.0)
    assert any(note.startswith(f"checkpoints lose least every {human_seconds(best)}") for note in parts_of(known).notes)
    assert {"lost_work", "restarts", "checkpoints"} <= set(parts_of(known).parts)
    unknown = predict_time(**long, checkpoint_every_s=600)
    assert any(note.startswith("failures are not known: checkpoints every") for note in parts_of(unknown).notes)
    without = predict_time(**RUN, steps=10**6)
    assert any("would more than double this run" in note for note in parts_of(without).notes)


def test_more_failures_never_make_a_run_shorter() -> None:
    before = 0.0
    for gpu_hours in (1e9, 1e5, 1e4, 1e3, 100, 10):
        run = predict_time(**RUN, steps=10**6, checkpoint_every_s=600, checkpoint_s=20, gpu_hours_per_failure=gpu_hours)
        assert run.run is not None
        assert run.run.p50 >= before
        before = run.run.p50


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"checkpoint_s": 3}, "needs checkpoint_every_steps or checkpoint_every_s"),
        ({"checkpoint_every_s": 0}, "leaves no time"),
        ({"checkpoint_every_s": 5, "checkpoint_every_steps": 5}, "keep one"),
        ({"checkpoint_async": True, "checkpoint_every_s": 5}, "needs checkpoint_storage"),
        ({"evaluation_every_steps": 5}, "evaluation_samples"),
        ({"evaluation_every_steps": 5, "evaluation_every_epochs": 1, "evaluation_s": 1}, "keep one"),
        ({"failures_seen": 5}, "needs failures_gpu_hours"),
        ({"failures_gpu_hours": 5}, "needs failures_seen"),
        ({"failures_seen": 5, "failures_gpu_hours": 5, "gpu_hours_per_failure": 1}, "keep one"),
        ({"failures_seen": 5, "failures_gpu_hours": 5, "failure_prior": "none"}, "leave one"),
        ({"failure_prior": "llama"}, "published"),
    ],
)
def test_contradictions_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(JobError, match=message):
        Job("resnet50", run=fields)


def test_a_schedule_of_one_precision_has_the_parts_of_that_precision() -> None:
    plain = predict(Job("resnet50", precision="amp-bf16", batch_size=64, run={"steps": 500}))
    schedule = [{"from_step": 0, "precision": "amp-bf16"}, {"from_step": 200, "precision": "amp-bf16"}]
    changed = predict(Job("resnet50", precision=schedule, batch_size=64, run={"steps": 500}))
    assert parts_of(changed).wall.quantiles == pytest.approx(parts_of(plain).wall.quantiles)
    assert {n: p.p50 for n, p in parts_of(changed).parts.items()} == pytest.approx(
        {n: p.p50 for n, p in parts_of(plain).parts.items()}
    )
