"""Optuna with a real study, and the time estimator of SkyPilot against predictions."""

from __future__ import annotations

from math import ceil
from types import SimpleNamespace
from typing import Any

import pytest

from precision_time import Job, predict
from precision_time.errors import CatalogError, JobError, PrecisionTimeError
from precision_time.global_batch import at_global_batch, global_batch_of
from precision_time.integrations.skypilot import time_estimator

JOB = Job("resnet50", gpu="v100-16gb-sxm", precision="amp-fp16", batch_size=256, run={"steps": 1000})


@pytest.fixture
def optuna() -> Any:
    found = pytest.importorskip("optuna")
    found.logging.set_verbosity(found.logging.ERROR)
    return found


def job_of(trial: Any) -> Job:
    return JOB.replace(batch_size=trial.suggest_categorical("batch_size", [32, 64, 128, 256, 512, 1024]))


def test_trials_that_cannot_fit_or_end_never_run(optuna: Any) -> None:
    from precision_time.integrations.optuna import predicted

    ran: list[int] = []

    def objective(trial: Any) -> float:
        ran.append(trial.params["batch_size"])
        return float(trial.params["batch_size"])

    sizes = [32, 64, 128, 256, 512, 1024]
    deadline_s = predict(JOB.replace(batch_size=128)).goodput.wall.quantile(0.8)  # type: ignore[union-attr]
    study = optuna.create_study(sampler=optuna.samplers.GridSampler({"batch_size": sizes}, seed=1))
    study.optimize(predicted(objective, job_of, deadline_s=deadline_s), n_trials=6)
    allowed = []
    for size in sizes:
        estimate = predict(JOB.replace(batch_size=size))
        assert estimate.goodput is not None
        if estimate.memory.fit_probability >= 0.5 and estimate.goodput.wall.probability(deadline_s) >= 0.5:
            allowed.append(size)
    assert sorted(ran) == allowed
    assert 0 < len(allowed) < 6
    pruned = [t for t in study.trials if t.state == optuna.trial.TrialState.PRUNED]
    assert len(pruned) == 6 - len(allowed)
    reasons = " ".join(t.user_attrs["pruned_because"] for t in pruned)
    assert "fits in memory with" in reasons
    assert "ends within" in reasons
    kept = next(t for t in study.trials if t.state == optuna.trial.TrialState.COMPLETE)
    found = predict(JOB.replace(batch_size=kept.params["batch_size"]))
    assert kept.user_attrs["predicted_step_s"] == found.step.p50


def test_a_trial_that_cannot_be_predicted_runs(optuna: Any) -> None:
    from precision_time.integrations.optuna import predicted

    study = optuna.create_study()
    study.optimize(predicted(lambda trial: 1.0, lambda trial: JOB.replace(precision="bf16")), n_trials=1)
    (trial,) = study.trials
    assert trial.value == 1.0
    assert "no bf16 peak" in trial.user_attrs["not_predicted"]


def test_time_as_an_objective_beside_the_loss(optuna: Any) -> None:
    from precision_time.integrations.optuna import predicted_seconds

    study = optuna.create_study(
        directions=["minimize", "minimize"],
        sampler=optuna.samplers.GridSampler({"batch_size": [32, 128, 1024]}, seed=1),
    )

    def objective(trial: Any) -> tuple[float, float]:
        job = JOB.replace(batch_size=trial.suggest_categorical("batch_size", [32, 128, 1024]))
        return 1.0 / (job.batch_size or 1), predicted_seconds(trial, job)

    study.optimize(objective, n_trials=3)
    assert sorted(t.params["batch_size"] for t in study.best_trials) == [32, 128]
    with pytest.raises(PrecisionTimeError, match="needs a length"):
        predicted_seconds(study.ask(), Job("resnet50", batch_size=8))


def test_wrong_limits_are_refused(optuna: Any) -> None:
    from precision_time.integrations.optuna import predicted

    with pytest.raises(JobError, match="least_fit"):
        predicted(lambda trial: 1.0, job_of, least_fit=2.0)
    study = optuna.create_study()
    without = predicted(lambda trial: 1.0, lambda trial: Job("resnet50"), deadline_s=10.0)
    with pytest.raises(PrecisionTimeError, match="needs the length"):
        study.optimize(without, n_trials=1)


# --- Ray Tune, executors


def test_an_executor_runs_only_what_is_worth_running() -> None:
    """The example of docs/integrations.md; 1,024 images do not fit on 16 GB, and 32 take longer than the deadline."""
    from concurrent.futures import ThreadPoolExecutor

    from precision_time.integrations.trials import judged, worth_running

    configs = [{"batch_size": size, "lr": lr} for size in (32, 128, 256, 1024) for lr in (0.1, 0.01)]
    ran: list[dict[str, Any]] = []

    def job_of_config(config: dict[str, Any]) -> Job:
        return JOB.replace(batch_size=config["batch_size"], run={"samples": 1_000_000})

    limit_s = predict(job_of_config({"batch_size": 128})).goodput.wall.quantile(0.6)  # type: ignore[union-attr]
    chosen = worth_running(configs, job_of_config, deadline_s=limit_s)
    with ThreadPoolExecutor(2) as executor:
        list(executor.map(ran.append, chosen))
    runs = [predict(job_of_config(config)).run.p50 for config in chosen]  # type: ignore[union-attr]
    assert runs == sorted(runs)
    assert {config["batch_size"] for config in ran} == {128, 256}
    assert len(ran) == 4
    reasons = [judged(job_of_config({"batch_size": size}), deadline_s=limit_s).reason for size in (32, 1024)]
    assert reasons[0].startswith("ends within")
    assert reasons[1].startswith("fits in memory with")


def test_a_configuration_that_cannot_be_predicted_comes_last() -> None:
    from precision_time.integrations.trials import judged, worth_running

    assert worth_running(["bf16", "fp32"], lambda name: JOB.replace(precision=name, batch_size=32)) == ["fp32", "bf16"]
    verdict = judged(JOB.replace(precision="bf16"))
    assert verdict
    assert "bf16" in verdict.error
    assert verdict.estimate is None
    with pytest.raises(JobError, match="deadline_s"):
        judged(JOB, deadline_s=-1.0)
    with pytest.raises(JobError, match="needs the length"):
        judged(Job("resnet50"), deadline_s=10.0)


def test_a_trainable_of_ray_tune_ends_before_it_trains() -> None:
    """A real run of Ray Tune, where it is installed; it takes half a minute to start."""
    ray = pytest.importorskip("ray")
    tune = pytest.importorskip("ray.tune")
    from precision_time.integrations.trials import judged

    def train(config: dict[str, Any]) -> None:
        verdict = judged(JOB.replace(batch_size=config["batch_size"]))
        tune.report({"loss": 1.0 / config["batch_size"] if verdict else float("inf"), "reason": verdict.reason})

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        results = tune.Tuner(train, param_space={"batch_size": tune.grid_search([64, 2048])}).fit()
        losses = {result.config["batch_size"]: result.metrics["loss"] for result in results}
    finally:
        ray.shutdown()
    assert losses == {64: 1 / 64, 2048: float("inf")}


# --- SkyPilot


def resources(**accelerators: Any) -> SimpleNamespace:
    return SimpleNamespace(accelerators=accelerators or None)


def test_the_time_of_a_task() -> None:
    job = Job("resnet50", precision="amp-fp16", batch_size=256, gpus=8, run={"epochs": 90})
    seconds = time_estimator(job)
    for name, gpu in (("V100", "v100-16gb-sxm"), ("A100-80GB", "a100-80gb-sxm"), ("H100", "h100-80gb-sxm")):
        for count in (4, 8):
            placed = at_global_batch(job.replace(gpu=gpu, gpus=count), 2048)
            assert global_batch_of(placed) == 2048
            run = predict(placed).goodput
            assert run is not None
            assert seconds(resources(**{name: count})) == ceil(run.wall.quantile(0.5))
    assert time_estimator(job, nodes=2)(resources(A100=8)) < seconds(resources(A100=8))
    assert time_estimator(job, confidence=0.95)(resources(A100=8)) > seconds(resources(A100=8))


def test_resources_that_are_refused() -> None:
    seconds = time_estimator(JOB)
    for wrong in (resources(), resources(A100=8, V100=1), resources(A100=0.5)):
        with pytest.raises(JobError, match="resources"):
            seconds(wrong)
    with pytest.raises(CatalogError, match="nearest"):
        seconds(resources(Z100=8))
    with pytest.raises(JobError, match="needs the length"):
        time_estimator(Job("resnet50", batch_size=64))(resources(A100=8))
    with pytest.raises(JobError, match="confidence"):
        time_estimator(JOB, confidence=2.0)
