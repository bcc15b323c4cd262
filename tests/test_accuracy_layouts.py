"""Steps of large models judged held out: errors by group, goals, and pages that agree with the data."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.accuracy.layout_order import order, table
from benchmarks.accuracy.layouts import GROUPS, errors_of, page, summary
from precision_time.fit.layouts import FOLDS, HELD_OUT_BY_MODEL, Judgement
from precision_time.job.job import Job
from precision_time.timing.parameters import read_data

ROOT = Path(__file__).parents[1]
ERRORS = json.loads((ROOT / "benchmarks" / "results" / "large-models.json").read_text(encoding="utf-8"))


def case(framework: str, gpus: int, trust: str, measured_s: float) -> SimpleNamespace:
    facts = {"framework": framework, "gpus": gpus, "trust": trust, "measured_s": measured_s}
    model = f"{gpus} GPUs {measured_s}"
    job = Job("gpt2-xl", gpus=gpus, gpu="a100-80gb-sxm", batch_size=1)
    row = SimpleNamespace(
        **facts, source="a table line 3", gpu="a100-80gb-sxm", precision="bf16", model=model, job=None
    )
    return SimpleNamespace(row=row, job=job)


def test_errors_by_group_by_hand() -> None:
    cases: Any = [
        case("megatron-deepspeed", 8, "A", 1.0),
        case("megatron-deepspeed", 64, "B", 2.0),
        case("megatron-deepspeed", 64, "C", 1.0),
        case("megatron-deepspeed", 4, "A", 1.0),
    ]
    logs = np.log([1.1, 1.8, 2.0, 1.0])
    runs = {f"held out by {name}": logs for name in FOLDS}
    widenings = np.full(4, 0.08)
    judged = Judgement(cases, cases, np.zeros(0), runs, widenings, widenings, np.array(["whole"] * 4))
    groups = {(g["title"], g["trust"]): g for g in errors_of(judged)["groups"]}
    several, few = GROUPS[2][0], GROUPS[3][0]
    assert set(groups) == {("all", "A, B"), ("all", "all"), (several, "A, B"), (several, "all"), (few, "A, B")}
    trusted = groups[several, "A, B"]["runs"][HELD_OUT_BY_MODEL]
    assert (trusted["n"], trusted["mape"], trusted["signed_mean"]) == (2, 0.1, 0.0)
    # By the spread that two other models need: log 0.9 lies within 2.4 times (Student's t) their larger error, 0.095.
    assert trusted["coverage_p10_p90"] == 1.0
    assert groups[several, "all"]["runs"][HELD_OUT_BY_MODEL]["mape"] == pytest.approx(0.4)
    assert groups[several, "A, B"]["goal"] == 0.10


def test_order_of_layouts_by_hand() -> None:
    """A ladder of three: 1.0, 1.02 and 2.0 s measured. Two pairs are more than 5 % apart; one is predicted wrong."""
    cases: Any = [case("megatron", 8, "A", seconds) for seconds in (1.0, 1.02, 2.0)]
    for each, layout in zip(cases, ("dp", "fsdp", "tp=2"), strict=True):
        each.job = each.job.replace(layout=layout, batch_size=2 if layout == "tp=2" else 1)
    alone = case("megatron", 16, "A", 5.0)
    runs = {"without factors": np.log([1.5, 1.0, 1.2, 5.0])}
    widenings = np.full(4, 0.08)
    judged = Judgement([*cases, alone], cases, np.zeros(0), runs, widenings, widenings, np.array(["whole"] * 4))
    everything, megatron = order(judged)
    assert (everything["ladders"], everything["pairs"], everything["right"]) == (1, 2, 0.5)
    assert everything["regret"] == everything["worst_regret"] == 0.02  # the second is chosen
    assert {**megatron, "framework": "all"} == everything
    assert "50.0%" in table([everything])


def test_pages_agree_with_the_data() -> None:
    stale = "stale: python -m benchmarks.accuracy layouts"
    text = (ROOT / "benchmarks" / "results" / "large-models.md").read_text(encoding="utf-8")
    assert page(read_data("layout_scales.json"), ERRORS) == text, stale
    assert summary(ERRORS) in (ROOT / "README.md").read_text(encoding="utf-8"), stale


def test_goals_are_met_held_out_by_model() -> None:
    judged = [group for group in ERRORS["groups"] if group["goal"] is not None and group["trust"] == "A, B"]
    assert len(judged) == 4
    assert not {g["title"] for g in judged if g["runs"][HELD_OUT_BY_MODEL]["mape"] > g["goal"]}


def test_the_order_of_layouts_meets_its_goals() -> None:
    (found,) = [o for o in ERRORS["order"] if o["run"] == HELD_OUT_BY_MODEL and o["framework"] == "all"]
    assert found["pairs"] > 150
    assert found["right"] >= 0.92
    assert found["regret"] <= 0.04
