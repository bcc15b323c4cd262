"""Plans, layouts and schedules on a cluster with outcomes: every candidate has the correction of its own facets."""

from __future__ import annotations

import json

import pytest

from precision_time import Job, predict
from precision_time.plan import Goal, Space, plan, rank_layouts
from precision_time.serve.learning import Facets
from precision_time.serve.learning.cluster import Cluster
from precision_time.serve.learning.effects import shipped_variances
from precision_time.serve.learning.outcome import Known, Observed

JOB = Job("resnet50", gpu="a100-40gb-sxm", precision="amp-fp16", batch_size=256, gpus=8, run={"epochs": 10})
SPACE = Space(
    providers=("aws",), gpu=("a100-40gb-sxm", "v100-16gb-sxm"), gpus=(8, 16), precision=("amp-fp16", "torch-fp32")
)


@pytest.fixture(scope="module")
def slow() -> Cluster:
    """A100s take 40 % longer in amp-fp16 than predicted."""
    cluster = Cluster("hall", shipped_variances())
    for number, batch in enumerate((32, 64, 128, 256), 1):
        estimate = predict(JOB.replace(batch_size=batch))
        step_s = estimate.step.p50
        known = Known(number, 1.4 * step_s, float(number))
        cluster.learn(Observed(Facets.of(estimate), step_s, 0.1, known, f"p{number}", "hall", "resnet50"))
    return cluster


def test_every_option_is_the_corrected_prediction_of_its_job(slow: Cluster) -> None:
    plain, found = plan(JOB, space=SPACE), plan(JOB, space=SPACE, learned=slow)
    assert len(found.options) == len(plain.options)
    for before, option in zip(plain.options, found.options, strict=True):
        alone = predict(option.assessed.job, learned=slow)
        assert option.assessed.step == alone.step
        assert option.assessed.learned == alone.learned
        assert before.assessed.step == predict(before.assessed.job).step
    factors = {
        (option.assessed.job.gpu, option.assessed.precision): option.assessed.learned.factor
        for option in found.options
        if option.assessed.learned
    }
    same, other_precision = factors["a100-40gb-sxm", "amp-fp16"], factors["a100-40gb-sxm", "torch-fp32"]
    assert same > other_precision > factors["v100-16gb-sxm", "torch-fp32"] > 1.0
    assert any(line.startswith("corrected by 4 outcomes on hall, step +") for line in found.basis)
    assert not any("outcomes" in line for line in plain.basis)
    shown = json.loads(json.dumps(found.to_dict()))
    assert shown["chosen"]["learned"]["cluster"] == "hall"
    assert "learned" not in plain.to_dict()["chosen"]


def test_layouts_are_ranked_by_corrected_steps(slow: Cluster) -> None:
    for row in rank_layouts(JOB, learned=slow).rows:
        assert row.step == predict(row.job, learned=slow).step


def test_every_part_of_a_schedule_has_its_own_correction(slow: Cluster) -> None:
    first, then = "torch-fp32", "amp-fp16"
    job = JOB.replace(precision=[{"from_step": 0, "precision": first}, {"from_step": 1000, "precision": then}])
    corrected = predict(job, learned=slow)
    alone = [predict(JOB.replace(precision=name), learned=slow) for name in (first, then)]
    assert alone[0].learned
    assert alone[1].learned
    assert alone[1].learned.factor > alone[0].learned.factor + 0.02
    assert corrected.step == alone[1].step
    assert f"torch-fp32 {alone[0].step.p50:.4g} s x 1000 steps" in corrected.assumptions[0]
    assert corrected.learned
    assert corrected.learned.factor == alone[1].learned.factor


def test_a_searched_schedule_is_that_of_its_job(slow: Cluster) -> None:
    space = Space(providers=("aws",), gpu=("a100-40gb-sxm",), gpus=(8,), schedule="torch-fp32:30%..amp-fp16")
    chosen = plan(JOB, Goal(), space, learned=slow).chosen
    alone = predict(chosen.assessed.job, learned=slow)
    assert chosen.assessed.wall is not None
    assert alone.goodput is not None
    assert chosen.assessed.wall.interval == alone.goodput.wall.interval
