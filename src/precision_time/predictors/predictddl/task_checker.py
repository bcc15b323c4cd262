"""The task checker: can this request be answered at all, and if not, what is missing?"""

from __future__ import annotations

from collections.abc import Mapping

from precision_time.errors import PredictorError, nearest
from precision_time.job.job import Job
from precision_time.predictors.predictddl.facts import Facts, facts_of
from precision_time.predictors.predictddl.trainer import Trained


def check(job: Job, trained: Mapping[str, Trained]) -> tuple[Facts, Trained]:
    """The facts of a job and who answers for it.

    Asked in this order: is anything trained; can the network be traced and is the layout data parallel (`facts_of`);
    is its dataset type known; is its device. Raises a `PredictorError`, or the error of the part that failed.
    """
    if not trained:
        raise PredictorError("predictddl is not trained; fit it to measured jobs, or load a folder that was saved")
    facts = facts_of(job)
    found = trained.get(facts.dataset)
    if found is None:
        raise PredictorError(
            f"dataset type {facts.dataset or 'unknown'!r} has no trained predictor; nearest: "
            f"{nearest(facts.dataset, trained)}; measure runs of some networks on it and fit them, or set run.dataset"
        )
    if job.gpu not in found.gpus and (facts.cluster is None or len(found.gpus) < 2):
        raise PredictorError(
            f"gpu {job.gpu!r} is not among those trained on for dataset type {found.dataset!r}; "
            f"nearest: {nearest(job.gpu, found.gpus)}; measure runs on it and fit them too"
        )
    if found.peaks and facts.cluster is None:
        raise PredictorError(
            f"gpu {job.gpu!r} had a device file when it was trained on, and the job names none; "
            "give device, the file that `precision-time calibrate` or `runs` wrote"
        )
    return facts, found
