"""Checks whether a job can be predicted, with errors that name what is missing."""

from __future__ import annotations

from collections.abc import Mapping

from precision_time.errors import PredictorError, nearest
from precision_time.job.job import Job
from precision_time.predictors.predictddl.facts import Facts, facts_of
from precision_time.predictors.predictddl.law import LEAST_NETWORKS
from precision_time.predictors.predictddl.trainer import Trained


def how_to_train(gpu: str) -> str:
    """A sentence on the runs to measure, their table, and the command that trains on it."""
    return (
        f"measure runs of at least {LEAST_NETWORKS} networks on it, with gpu {gpu}, as rows of a FOLDER/runs.csv "
        "(columns: docs/predictors.md; precision-time runs writes such a table), and train with precision-time train "
        "predictddl --real-runs FOLDER"
    )


def check(job: Job, trained: Mapping[str, Trained]) -> tuple[Facts, Trained]:
    """The facts of a job and what was trained for its dataset type.

    Checked in this order: anything trained; network and layout (`facts_of`); dataset type; device. Raises a
    `PredictorError`, or the error of the network or cluster.
    """
    if not trained:
        raise PredictorError("predictddl is not trained; fit it to measured jobs, or load a folder that was saved")
    facts = facts_of(job)
    known = trained.get(facts.dataset)
    if known is None:
        raise PredictorError(
            f"dataset type {facts.dataset or 'unknown'!r} has no trained predictor, only {', '.join(sorted(trained))}; "
            f"{how_to_train(job.gpu)}; or set run.dataset, or take predictor simulator"
        )
    if facts.gpu not in known.gpus and (facts.cluster is None or len(known.gpus) < 2):
        raise PredictorError(
            f"gpu {job.gpu!r} is not among those trained on for dataset type {known.dataset!r}; nearest: "
            f"{nearest(job.gpu, known.gpus)}; {how_to_train(job.gpu)}; or take predictor simulator"
        )
    if known.peaks and facts.cluster is None:
        raise PredictorError(
            f"gpu {job.gpu!r} had a device file when it was trained on, and the job names none; "
            "give device, the file that `precision-time calibrate` or `runs` wrote"
        )
    return facts, known
