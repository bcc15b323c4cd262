"""Spot instances: fitted spells, runs against a replay tick by tick, deadlines that hold, plans with spot prices."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.spot import CHECKPOINT_H, NEW, OWN, RESULTS, START_H, page, replayed
from precision_time.errors import DataError, JobError, PlanError
from precision_time.fit.spot import Trace
from precision_time.job import Job
from precision_time.plan import Goal, Space, plan
from precision_time.plan.spot import PATHS, PUBLISHED, Spells, Zone, market_of, played, published_zones, work_levels
from precision_time.prediction import predict

ZONE = Zone("z", Spells(0.7, 2.0), Spells(0.8, 1.0))


def test_spells_are_fitted() -> None:
    """Weibull spells of which those above three hours are cut off."""
    rng = np.random.default_rng(3)
    hours = 2.0 * rng.weibull(0.7, 4000)
    found = Spells.fitted(hours[hours < 3.0].tolist(), [3.0] * int((hours >= 3.0).sum()))
    assert found.shape == pytest.approx(0.7, rel=0.05)
    assert found.scale == pytest.approx(2.0, rel=0.05)
    assert found.mean == pytest.approx(2.0 * math.gamma(1 + 1 / 0.7), rel=0.08)
    drawn = found.drawn(np.linspace(0.0005, 0.9995, 1000))
    assert drawn.mean() == pytest.approx(found.mean, rel=0.03)


def test_the_zone_of_a_trace() -> None:
    """Spells of 2, 3, 1, 2 and 1 entries between two that are seen in part, six minutes each."""
    trace = [0, 1, 1, 0, 0, 0, 1, 0, 0, 1, 1, 1]
    zone = Zone.of_trace("t", [bool(v) for v in trace], 0.1)
    assert zone is not None
    up = Spells.fitted([0.2, 0.1], [0.3])
    assert (zone.up.shape, zone.up.scale) == pytest.approx((up.shape, up.scale))
    down = Spells.fitted([0.3, 0.2], [0.1])
    assert (zone.down.shape, zone.down.scale) == pytest.approx((down.shape, down.scale))
    assert Zone.of_trace("t", [True] * 50, 0.1) is None
    assert Zone.from_dict(json.loads(json.dumps(zone.to_dict()))) == zone


@pytest.mark.parametrize("deadline_h", [None, 8.0, 16.0])
def test_runs_against_a_replay_tick_by_tick(deadline_h: float | None) -> None:
    """Traces drawn from the zone and replayed by other code, from a moment long after their beginning."""
    rng, gap_h = np.random.default_rng(5), 0.02
    finish, demand = [], []
    for _ in range(600):
        there: list[bool] = []
        up = bool(rng.random() < 0.5)
        while len(there) < 110 / gap_h:
            spells = ZONE.up if up else ZONE.down
            there += [up] * max(1, round(spells.scale * rng.weibull(spells.shape) / gap_h))
            up = not up
        trace = Trace("drawn", 1, gap_h, tuple(there))
        done = replayed(trace, int(50 / gap_h), 5.0, deadline_h or math.inf, deadline_h is not None)
        if done is not None:
            finish.append(done[0])
            demand.append(done[1])
    runs = played(np.full(4000, 5.0), (ZONE,), deadline_h, START_H, CHECKPOINT_H)
    assert len(finish) > 590
    assert runs.finish_h.mean() == pytest.approx(float(np.mean(finish)), rel=0.04)
    assert np.quantile(runs.finish_h, 0.9) == pytest.approx(float(np.quantile(finish, 0.9)), rel=0.08)
    assert runs.demand_h.mean() == pytest.approx(float(np.mean(demand)), abs=0.15)


@settings(max_examples=30, deadline=None)
@given(st.floats(0.2, 30), st.floats(1.0, 5.0), st.floats(0.0, 0.3), st.floats(0.01, 2.0))
def test_a_deadline_that_on_demand_meets_is_met(work: float, slack: float, start: float, checkpoint: float) -> None:
    runs = played(np.full(200, work), published_zones(), work * slack, start, checkpoint)
    assert (runs.finish_h <= work * slack * (1 + 1e-9)).all()
    assert (runs.spot_h + runs.demand_h >= work * (1 - 1e-9)).all()
    assert (runs.finish_h >= work * (1 - 1e-9)).all()


def test_without_slack_all_is_on_demand() -> None:
    runs = played(np.full(100, 5.0), published_zones(), 5.0, 0.1, 0.2)
    assert (runs.demand_h == 5.0).all()
    assert (runs.spot_h == 0.0).all()
    assert runs.usd(1.0, 3.0).tolist() == [15.0] * 100


def test_levels_of_work_are_those_of_the_run() -> None:
    estimate = predict(Job("resnet50", gpus=8, precision="amp-fp16", batch_size=256, run={"epochs": 90}))
    assert estimate.goodput is not None
    hours = work_levels(estimate.goodput.wall)
    assert len(hours) == PATHS
    for quantile in (0.1, 0.5, 0.9):
        assert np.quantile(hours, quantile) == pytest.approx(estimate.goodput.wall.quantile(quantile) / 3600, rel=0.01)


PRICES = """InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,SpotPrice,Region
p4d.24xlarge,A100,8.0,96,1152,22.0,9.0,us-east-1
p5.48xlarge,H100,8,192,2048,55.0,,us-east-1
"""
JOB = Job(
    "resnet50", precision="amp-fp16", batch_size=256, gpus=8,
    run={"epochs": 90, "checkpoint_every_s": 600, "checkpoint_s": 2},
)  # fmt: skip


@pytest.fixture
def prices(tmp_path: Path) -> str:
    path = tmp_path / "vms.csv"
    path.write_text(PRICES, encoding="utf-8")
    return str(path)


def test_a_plan_with_spot(prices: str, tmp_path: Path) -> None:
    goal = Goal(deadline_hours=12)
    demand = plan(JOB, goal, Space(providers=(prices,), gpus=(8,)))
    spot = plan(JOB, goal, Space(providers=(prices,), gpus=(8,), spot="published"))
    assert demand.chosen.spot is None
    chosen = spot.chosen
    assert chosen.spot is not None
    assert chosen.in_time == 1.0
    assert chosen.cost.interval.p50 < demand.chosen.cost.interval.p50
    assert "on spot" in str(spot)
    assert "seven traces" in str(spot)
    expected = 9.0 * chosen.spot.spot_hours + 22.0 * chosen.spot.demand_hours
    assert demand.chosen.cost.interval.p50 - expected == pytest.approx(chosen.spot.saved_usd)
    # two instances at once: no published trace, but one of one's own
    both = Space(providers=(prices,), gpus=(16,), spot="published")
    alone = plan(JOB, goal, both)
    assert all(o.spot is None for o in alone.options)
    assert "number of instances for which no trace of spot is published" in " ".join(str(alone).split())
    assert "options have no known spot price" in str(spot)
    trace = tmp_path / "trace.json"
    data = [3] * 40 + [1] * 10 + [2] * 50 + [0] * 5 + [2] * 30 + [1] * 8 + [4] * 10
    trace.write_text(json.dumps({"metadata": {"gap_seconds": 600}, "data": data}), encoding="utf-8")
    own = plan(JOB, goal, Space(providers=(prices,), gpus=(16,), spot=str(trace)))
    assert any(o.spot is not None for o in own.options)


def test_what_spot_cannot_do(prices: str, tmp_path: Path) -> None:
    space = Space(providers=(prices,), gpus=(8,), spot="published")
    with pytest.raises(JobError, match="checkpoint_every_s"):
        plan(JOB.replace(checkpoint_every_s=None, checkpoint_s=None), Goal(), space)
    with pytest.raises(PlanError):
        plan(JOB, Goal(deadline_hours=0.1), space)
    trace = tmp_path / "trace.json"
    for content, says in (
        ({"data": [1, 0]}, "gap_seconds"),
        ({"gap_seconds": 600, "data": "x"}, "no data"),
        ({"gap_seconds": 600, "data": [1, -1]}, "no data"),
        ({"gap_seconds": 600, "data": []}, "no data"),
        ({"metadata": 3, "data": [1]}, "gap_seconds"),
    ):
        trace.write_text(json.dumps(content), encoding="utf-8")
        with pytest.raises(DataError, match=says):
            market_of(str(trace))
    assert market_of(PUBLISHED).zones(2) == ()
    with pytest.raises(DataError, match="spot trace"):  # also where no offer has a spot price
        plan(JOB, Goal(), Space(providers=("aws",), gpu=("l4",), gpus=(8,), spot=str(tmp_path / "absent.json")))
    trace.write_text(json.dumps({"gap_seconds": 600, "data": [1] * 100}), encoding="utf-8")
    always = plan(JOB, Goal(), Space(providers=(prices,), gpus=(8,), spot=str(trace)))
    assert "trace.json has no spells" in " ".join(str(always).split())


def test_the_page_agrees_with_the_data_and_deadlines_hold() -> None:
    content = json.loads((RESULTS / "spot.json").read_text(encoding="utf-8"))
    assert page(content) == (RESULTS / "spot.md").read_text(encoding="utf-8"), "stale: python -m benchmarks.spot"
    for name in (NEW, OWN):
        assert content[name]["met"] == 1.0
        assert 0.75 < content[name]["covered"] < 0.95
