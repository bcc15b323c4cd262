"""Boosting on a calibrated device: facts from the device file, what the simulator cannot learn, the study."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import numpy as np
import pytest

from fakes import HOST, TWO, US, device_document
from precision_time.errors import PredictorError
from precision_time.job import Job
from precision_time.predictors.boosting import Boosting
from precision_time.predictors.facts import facts_of
from precision_time.predictors.interface import MeasuredJob
from precision_time.predictors.residual import BoostingResidual
from precision_time.predictors.runs import read_runs
from precision_time.predictors.simulator import BlindSimulator, Simulator
from precision_time.predictors.trees import Setting

FEW = Setting(rounds=20, seeds=1)
REDUCED = [[1024.0, 1e-3], [1e9, 1e-3]]
"""Seconds of an all-reduce by bytes: whatever its size, a millisecond."""


def write(path: Path, **host: float) -> str:
    document = device_document(TWO, host={**HOST, **host}, collectives={"all_reduce": {"2": REDUCED}})
    path.write_text(json.dumps(document), encoding="utf-8")
    return str(path)


@pytest.fixture
def here(tmp_path: Path) -> Job:
    """A job on an invented CPU of 100 GFLOP/s."""
    return Job("resnet50", gpu="this-cpu", device=write(tmp_path / "device.json"), batch_size=8)


def test_facts_come_from_the_device_file(here: Job) -> None:
    alone, two = facts_of(here), facts_of(here.replace(gpus=2))
    assert alone.in_turns
    assert two.wire_s == pytest.approx(1e-3 * round(two.wire_s / 1e-3))  # a millisecond for each bucket
    assert two.wire_s >= 1e-3
    assert not facts_of(Job("resnet50", gpu="v100-16gb-sxm", batch_size=8)).in_turns


def test_a_device_calibrated_anew_is_counted_anew(here: Job) -> None:
    before = facts_of(here)
    assert facts_of(here.replace(run={"steps": 7})) is before  # a run's length is no fact of a step
    path = Path(here.device or "")
    write(path, operator_us=40.0)
    os.utime(path, (1.0, 1.0))
    assert facts_of(here).host_s > 5 * before.host_s


def test_host_and_kernels_take_turns_on_a_cpu(here: Job) -> None:
    facts = dataclasses.replace(facts_of(here), host_s=2.0)
    assert facts.initial_s == pytest.approx(facts.kernel_s + 2.0)
    gpu = dataclasses.replace(facts, cluster=facts_of(Job("resnet50", gpu="v100-16gb-sxm")).cluster)
    assert gpu.initial_s == pytest.approx(max(facts.kernel_s, 2.0))


def jobs_here(here: Job) -> list[MeasuredJob]:
    """36 jobs of three networks that take 2.5 times what the simulator says of them."""
    found = []
    for model in ("small-mlp", "small-lenet5", "small-alexnet"):
        for batch in (2, 4, 8):
            for gpus in (1, 2):
                for precision in ("fp32", "amp-bf16"):
                    job = here.replace(model=model, batch_size=batch, gpus=gpus, precision=precision)
                    found.append(
                        MeasuredJob(f"{model} {batch} {gpus}", job, 2.5 * Simulator().step_seconds(job), model)
                    )
    return found


def test_rows_with_measured_kernels_do_not_move_step_factors(here: Job) -> None:
    pytest.importorskip("torch")  # graphs under a CPU's autocast do not ship
    measured = jobs_here(here)
    with pytest.raises(PredictorError, match="none of the 36 measured jobs"):
        Simulator().fit(measured)
    predictor = BoostingResidual(Setting(rounds=60, seeds=1))
    predictor.fit(measured)
    assert predictor.simulator.constants is None
    ratio = np.mean([predictor.predict(m.job).seconds / m.seconds for m in measured])
    assert ratio == pytest.approx(1.0, abs=0.1)
    job = measured[0].job
    assert Simulator().step_seconds(job) == pytest.approx(Simulator().predict(job).seconds)
    fitted = Simulator(rounds=1)
    fitted.fit([MeasuredJob("gpu", Job("resnet50", gpu="v100-16gb-sxm", batch_size=8), 0.1, "resnet")])
    assert fitted.step_seconds(job) == pytest.approx(fitted.predict(job).seconds)
    half = job.replace(precision="amp-bf16")
    assert BlindSimulator("fp32").step_seconds(half) == Simulator().step_seconds(job)


# --- real runs


@pytest.fixture(scope="module")
def runs() -> list[MeasuredJob]:
    pytest.importorskip("torch")
    return list(read_runs())


def test_lengths_of_a_run_are_judged_by_their_steps(runs: list[MeasuredJob]) -> None:
    from precision_time.predictors.interface import steps_of

    some = [m for m in runs if m.job.model in ("small-mlp", "small-lenet5") and m.job.gpus == 1]
    predictor = Boosting(FEW)
    predictor.fit([m for m in runs if m.job.model in ("small-mlp", "small-lenet5", "small-alexnet")])
    steps = {round(predictor.predict(m.job).seconds / steps_of(m.job) / US, 3) for m in some}
    assert len(steps) == len({(m.job.model, m.dataset, m.job.batch_size, m.precision) for m in some})
