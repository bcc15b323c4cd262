"""An estimate is checked where it is made; the floor under it is below every measured step."""

from __future__ import annotations

import dataclasses
import json
import math
import timeit
from pathlib import Path
from typing import Any

import pytest

from precision_time import Estimate, predict
from precision_time.errors import InternalError, PrecisionTimeError
from precision_time.estimate.interval import Interval
from precision_time.estimate.verified import defects, verified
from precision_time.job import Job
from precision_time.measurements.row import Row
from precision_time.measurements.table import read_table
from precision_time.placement import cluster_of
from precision_time.prediction import simulate_step

PUBLISHED = Path(__file__).parent.parent / "data" / "published"
RUN = {"epochs": 3, "dataset": "imagenet", "price_per_gpu_hour": 2.0}


@pytest.fixture(scope="module")
def sound() -> Estimate:
    return predict(Job.from_dict({"model": "resnet50", "gpus": 8, "precision": "amp-fp16", "run": RUN}))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"step": Interval(0.2, 0.1, 0.3)}, "step"),
        ({"step": Interval(0.1, 0.2, math.nan)}, "step"),
        ({"run": Interval(1.0, 2.0, math.inf)}, "run"),
        ({"epoch": Interval(-1.0, 2.0, 3.0)}, "epoch"),
        ({"floor_s": 1e9}, "P10 of step"),
        ({"floor_s": math.nan}, "floor_s"),
        ({"breakdown": {"forward": 1.0}}, "breakdown"),
        ({"sources": {"measured": 0.5}}, "sources"),
        ({"bound_shares": {"compute": 1.5, "memory": -0.5}}, "bound_shares"),
        ({"flops_per_step": {"fp32": -1.0}}, "flops_per_step"),
        ({"communication": {"data": {"exposed_s": math.nan}}}, "communication data"),
        ({"samples_per_s": math.inf}, "samples_per_s"),
        ({"cost_usd": Interval(0.0, 1.0, 2.0)}, "cost_usd"),
        ({"energy_j": Interval(0.0, 1.0, 9.0)}, "P90 of energy_j"),
    ],
)
def test_a_broken_estimate_is_our_error_and_holds_its_job(sound: Estimate, change: dict[str, Any], said: str) -> None:
    assert verified(sound) is sound
    with pytest.raises(InternalError, match=said) as raised:
        verified(dataclasses.replace(sound, **change))
    assert isinstance(raised.value, PrecisionTimeError)
    assert Job.from_dict(json.loads(str(raised.value).partition("with its job: ")[2])) == sound.job


def test_memory_of_other_stages_cannot_exceed_the_peak(sound: Estimate) -> None:
    rows = sound.memory.by_category
    broken = dataclasses.replace(sound.memory, stages=(rows, {**rows, "weights": 1 << 50}))
    assert "fullest stage" in next(defects(dataclasses.replace(sound, memory=broken)))
    negative = dataclasses.replace(sound.memory, by_category={**rows, "weights": -1})
    assert "memory: weights" in next(defects(dataclasses.replace(sound, memory=negative)))


def test_the_check_costs_little(sound: Estimate) -> None:
    assert min(timeit.repeat(lambda: verified(sound), number=20, repeat=20)) / 20 < 200e-6


def test_a_schedule_is_checked_and_its_cost_follows_its_run() -> None:
    parts = [{"from_step": 0, "precision": "fp32"}, {"from_step": 100, "precision": "tf32"}]
    found = predict(Job.from_dict({"model": "resnet50", "gpus": 8, "precision": parts, "run": RUN}))
    assert found.cost_usd is not None
    assert found.run is not None
    for quantile in ("p10", "p50", "p90"):
        assert getattr(found.cost_usd, quantile) == pytest.approx(getattr(found.run, quantile) / 3600 * 2.0 * 8)


@pytest.mark.parametrize(
    "job",
    [
        {"model": "ssd300-resnet34", "batch_size": 256, "precision": "amp-fp16", "memory_format": "nhwc"},
        {"model": "mpt-7b", "gpus": 64, "layout": "fsdp", "precision": "bf16-master", "grad_accum": 32},
        {"model": "resnet50", "gpu": "l4", "batch_size": 512, "precision": "tf32"},
    ],
)
def test_no_quantile_is_below_the_floor(job: dict[str, Any]) -> None:
    found = predict(Job.from_dict(job))
    assert 0.0 < found.floor_s <= found.step.p10 <= found.step.p50 <= found.step.p90


def _above(row: Row) -> str:
    """What is wrong where the floor of a row's job is above its measured step."""
    if row.job is None:
        return ""
    try:
        timed = simulate_step(row.job, row.job.precision_spec, cluster_of(row.job)).timed
    except PrecisionTimeError:
        return ""
    floor_s = float(timed.calls_per_kind @ timed.floor_s)
    return f"{row.id}: floor {floor_s:.4g} s, measured {row.measured_s:.4g} s" if floor_s > row.measured_s else ""


def test_the_floor_is_below_the_fastest_published_steps() -> None:
    """Submissions to MLPerf fuse normalisations into convolutions: a floor of unfused kernels is above them."""
    rows = [row for row in read_table(PUBLISHED / "measurements_more.csv").rows if row.id.startswith("mlperf-v")]
    fast = [row for row in rows if row.model in ("retinanet-resnext50", "resnet50") and row.gpus <= 8]
    assert len(fast) > 40
    assert not [wrong for row in fast if (wrong := _above(row))]


@pytest.mark.slow
@pytest.mark.parametrize(
    "table", ["measurements", "measurements_more", "measurements_llm", "measurements_llm_more", "internevo"]
)
def test_the_floor_is_below_every_published_step(table: str) -> None:
    rows = read_table(PUBLISHED / f"{table}.csv").rows
    assert not [wrong for row in rows if (wrong := _above(row))]
