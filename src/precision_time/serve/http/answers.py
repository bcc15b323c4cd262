"""The questions that a worker process answers: from checked fields of a request to plain JSON values.

Corrections come with the question (`learned`, one for each job), since what is learned lives in the process of the
server; answers have the facets that corrections are chosen by.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from precision_time.capture.posted_graph import posted
from precision_time.comparison import compare as compare_jobs
from precision_time.comparison import crossed
from precision_time.errors import DataError, JobError
from precision_time.estimate.estimate import Estimate
from precision_time.estimate.learned import Learned
from precision_time.job.importers import merged
from precision_time.job.importers.recognise import import_text
from precision_time.job.job import Job
from precision_time.plan import Goal
from precision_time.plan import plan as plan_job
from precision_time.plan.walltime import time_limit
from precision_time.prediction import predict as predict_job
from precision_time.serve.http.job_file import job_in
from precision_time.serve.http.limits import MOST_ROWS
from precision_time.serve.http.safe_job import known_fields, safe_job, safe_space
from precision_time.serve.learning import Facets

DEFAULT_PRECISIONS = ("torch-fp32", "tf32", "amp-fp16", "amp-bf16")
_AXES = {
    "gpus": "gpu", "counts": "gpus", "batch_sizes": "batch_size", "layouts": "layout", "precisions": "precision",
}  # fmt: skip
"""Fields of a comparison -> fields of a job; the last varies fastest."""


def predict(asked: Mapping[str, Any]) -> dict[str, Any]:
    estimate = _estimate(asked)
    return {"estimate": estimate.to_dict(), "facets": Facets.of(estimate).to_dict()}


def walltime(asked: Mapping[str, Any]) -> dict[str, Any]:
    estimate = _estimate(asked)
    limit = limit_of(estimate, asked)
    return {"estimate": estimate.to_dict(), "facets": Facets.of(estimate).to_dict(), "limit": limit}


def limit_of(estimate: Estimate, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The time limit that is asked for."""
    limit = time_limit(estimate, asked.get("confidence", 0.95), asked.get("format", "seconds"))
    return {**limit.to_dict(), "resumes": limit.resumes}


def _estimate(asked: Mapping[str, Any]) -> Estimate:
    return predict_job(_job(asked), learned=_learned(asked.get("learned", [None])[0]))


def _learned(given: Mapping[str, Any] | None) -> Learned | None:
    return None if given is None else Learned.from_dict(given)


def _job(asked: Mapping[str, Any]) -> Job:
    if "graph" not in asked:
        return safe_job(asked["job"])
    digest, graph = posted(asked["graph"])
    fields = {name: value for name, value in asked["job"].items() if name != "model" and value is not None}
    traced = {"batch_size": graph.batch_size, **({"input": graph.sizes} if graph.sizes else {})}
    return safe_job({**traced, **fields}, digest)


def compare(asked: Mapping[str, Any]) -> dict[str, Any]:
    axes = {field: asked[name] for name, field in _AXES.items() if name in asked}
    if not axes:
        axes = {"precision": DEFAULT_PRECISIONS}
    count = 1
    for name, values in axes.items():
        count *= len(values)
        if count > MOST_ROWS:
            raise JobError(f"{name} and the other lists make {count:,} jobs; give at most {MOST_ROWS} at once")
    first = {name: values[0] for name, values in axes.items()}
    base = safe_job({**asked["job"], **first})
    jobs = crossed([base], axes)
    learned = dict(zip(map(repr, jobs), map(_learned, asked.get("learned", [])), strict=False))
    comparison = compare_jobs(jobs, lambda job: predict_job(job, learned=learned.get(repr(job))))
    if comparison.baseline is None:
        raise JobError(comparison.rows[0].error or "nothing to compare")
    if "quantile" in asked:
        comparison = comparison.with_quantile(asked["quantile"])
    facets = [None if row.estimate is None else Facets.of(row.estimate).to_dict() for row in comparison.rows]
    return {**comparison.to_dict(), "facets": facets}


def plan(asked: Mapping[str, Any]) -> dict[str, Any]:
    goal, space = Goal(**known_fields("goal", Goal, asked.get("goal", {}))), safe_space(asked.get("space", {}))
    found = plan_job(_job(asked), goal, space)
    if "quantile" in asked:
        found = found.with_quantile(asked["quantile"])
    return {**found.to_dict(), "text": str(found)}


def import_file(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The job in a file: a job file as it is written, or the settings of another program."""
    name = asked.get("name", "")
    if (job := job_in(asked["text"], name)) is not None:
        return {"kind": "job file", "job": {**job, **asked.get("job", {})}, "notes": []}
    imported = merged([(name or "the file", import_text(asked["text"], name))])
    try:
        fields = imported.job_fields(asked.get("job", {}), ())
    except JobError as error:
        raise DataError(f"{name or 'the file'}: {error}") from error
    return {"kind": imported.kind, "job": Job.from_dict(fields).to_dict() if "model" in fields else fields,
            "notes": imported.notes()}  # fmt: skip


ANSWERS: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "predict": predict,
    "walltime": walltime,
    "compare": compare,
    "plan": plan,
    "import_file": import_file,
}
