"""A learned correction applied to an estimate: all parts follow it, and nothing changes without it."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_time import Estimate, Job
from precision_time.estimate.interval import Z90
from precision_time.estimate.learned import Learned
from precision_time.estimate.verified import defects
from precision_time.prediction import predict

JOB = Job(
    "bert-large",
    gpu="a100-80gb-sxm",
    gpus=8,
    precision="amp-bf16",
    batch_size=64,
    run={"steps": 2000, "price_per_gpu_hour": 2.0, "evaluation_samples": 5000, "evaluation_every_steps": 500},
)
SLOWER = Learned("hall-2", 12, {"gpu": 12, "precision": 9, "family": 3}, 1.25, 0.6, 0.02, 1.5, 1.0, prior_spread=0.15)


def test_everything_that_takes_time_follows_the_factor() -> None:
    plain, learned = predict(JOB), predict(JOB, learned=SLOWER)
    assert learned.step.p50 == pytest.approx(1.25 * plain.step.p50)
    assert learned.learned is not None
    assert learned.learned.uncorrected_s == pytest.approx(plain.step.p50)
    for term, seconds in plain.breakdown.items():
        assert learned.breakdown[term] == pytest.approx(1.25 * seconds)
    assert learned.goodput is not None
    assert plain.goodput is not None
    assert learned.goodput.parts["training"].p50 == pytest.approx(1.25 * plain.goodput.parts["training"].p50, rel=0.02)
    assert learned.run is not None
    assert plain.run is not None
    assert learned.cost_usd is not None
    assert learned.run.p50 > plain.run.p50 + 0.2 * plain.goodput.parts["training"].p50
    assert learned.cost_usd.p50 == pytest.approx(learned.run.p50 / 3600 * 16.0)
    assert learned.memory == plain.memory
    assert learned.samples_per_s == pytest.approx(plain.samples_per_s / 1.25)
    assert learned.sources["measured"] > plain.sources["measured"]


def test_the_tails_are_apart_and_the_spread_is_what_outcomes_leave() -> None:
    plain, learned = predict(JOB), predict(JOB, learned=SLOWER)
    before = math.log(plain.step.p90 / plain.step.p50) / Z90
    left = math.sqrt((0.4 * before) ** 2 + 0.6 * (0.4 * 0.15**2 + 0.02**2))
    assert math.log(learned.step.p90 / learned.step.p50) == pytest.approx(1.0 * left)
    assert math.log(learned.step.p50 / learned.step.p10) == pytest.approx(1.5 * left)


def test_the_spread_goes_from_that_of_the_base_to_that_of_the_outcomes() -> None:
    """By hand: 0.3 of the base, 0.2 between jobs and 0.05 of one outcome. Half explained, half of the base's variance
    counts half, and half of what is between jobs, with that of one outcome, the other half."""

    def left(informed: float, base: float = 0.3) -> float:
        return Learned("a", 3, {}, 1.0, informed, 0.05, prior_spread=0.2).narrowed(base)

    assert left(0.0) == pytest.approx(0.3)
    assert left(0.5) == pytest.approx(math.sqrt(0.25 * 0.09 + 0.5 * (0.5 * 0.04 + 0.0025)))
    assert left(1.0) == pytest.approx(0.05)
    assert left(0.5, base=0.02) > 0.1, "a base that is too sure of itself does not make the corrected interval so"
    assert Learned("a", 0, prior_spread=0.2).narrowed(0.3) == 0.3


def test_a_correction_without_outcomes_changes_no_number() -> None:
    plain, neutral = predict(JOB), predict(JOB, learned=Learned("new", 0))
    given, other = plain.to_dict(), neutral.to_dict()
    assert "learned" not in given
    assert other.pop("learned")["outcomes"] == 0
    assert other == given


def test_the_correction_is_read_back_from_json() -> None:
    estimate = predict(JOB, learned=SLOWER)
    again = Estimate.from_dict(json.loads(json.dumps(estimate.to_dict())))
    assert again == estimate
    assert again.learned == estimate.learned


def test_the_text_says_in_one_line_what_it_rests_on() -> None:
    text = str(predict(JOB, learned=SLOWER))
    line = "corrected by 12 outcomes on hall-2, step +25.0%: 12 of this gpu, 9 of this precision, 3 of this family"
    assert line in text.splitlines()
    assert "outcomes on" not in str(predict(JOB))
    anchors = [line for line in str(predict(JOB)).splitlines() if "of this family (anchors)" in line]
    assert [line for line in text.splitlines() if "of this family (anchors)" in line] == anchors


@settings(max_examples=25, deadline=None)
@given(st.floats(0.05, 8.0), st.floats(0.0, 1.0), st.floats(0.0, 0.1), st.floats(0.4, 4.2), st.floats(0.4, 4.2))
def test_any_correction_leaves_a_consistent_estimate(
    factor: float, informed: float, own: float, low: float, high: float
) -> None:
    learned = Learned("c", 7, {"gpu": 7}, factor, informed, own, low, high)
    estimate = predict(JOB, learned=learned)
    assert not list(defects(estimate))
    assert estimate.step.p10 >= estimate.floor_s * (1 - 1e-9)
    assert sum(estimate.breakdown.values()) == pytest.approx(estimate.step.p50)


@pytest.mark.parametrize(
    "job",
    [
        Job(
            "resnet50",
            gpus=8,
            batch_size=128,
            data={"storage": "nfs-10gbe", "workers": 4},
            run={"epochs": 3, "dataset": "imagenet"},
        ),
        JOB.replace(precision=[{"from_step": 0, "precision": "fp32"}, {"from_step": 500, "precision": "amp-bf16"}]),
        JOB.replace(layout="tp=2,pp=2,dp=2", model="gpt2", batch_size=2, grad_accum=8, framework="megatron"),
        JOB.replace(anchors="none"),
    ],
)
def test_other_jobs_are_consistent_too(job: Job) -> None:
    estimate = predict(job, learned=SLOWER)
    assert not list(defects(estimate))
    assert estimate.step.p50 > predict(job).step.p50
    assert Estimate.from_dict(json.loads(json.dumps(estimate.to_dict()))) == estimate
    assert estimate.trace_events()["traceEvents"]
