"""The questions that a worker process answers: from checked fields of a request to plain JSON values.

What the server has learned of a cluster is taught before (`teach`), and a question names the cluster whose outcomes
correct its answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from precision_time.capture.posted_graph import posted
from precision_time.comparison import compare as compare_jobs
from precision_time.comparison import crossed
from precision_time.errors import DataError, JobError
from precision_time.estimate.estimate import Estimate
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
from precision_time.serve.learning.cluster import Cluster
from precision_time.serve.learning.effects import shipped_variances

DEFAULT_PRECISIONS = ("torch-fp32", "tf32", "amp-fp16", "amp-bf16")
_AXES = {
    "gpus": "gpu", "counts": "gpus", "batch_sizes": "batch_size", "layouts": "layout", "precisions": "precision",
}  # fmt: skip
"""Fields of a comparison -> fields of a job; the last varies fastest."""


_TAUGHT: dict[str, Cluster] = {}
"""What is known of clusters; the server says what to forget."""


def teach(asked: Mapping[str, Any]) -> dict[str, Any]:
    for name in asked["forget"]:
        _TAUGHT.pop(name, None)
    name = asked["cluster"]
    _TAUGHT[name] = Cluster.from_dict(name, shipped_variances(), asked["state"])
    return {}


def predict(asked: Mapping[str, Any]) -> dict[str, Any]:
    return _predicted(asked)[1]


def walltime(asked: Mapping[str, Any]) -> dict[str, Any]:
    estimate, answer = _predicted(asked)
    return {**answer, "limit": limit_of(estimate, asked)}


def _predicted(asked: Mapping[str, Any]) -> tuple[Estimate, dict[str, Any]]:
    """The estimate of a job, corrected where a cluster is named, and an answer with its facets and with the step before
    the correction."""
    job, cluster = _job(asked), _cluster(asked)
    base = predict_job(job)
    estimate = base if cluster is None else predict_job(job, learned=cluster)
    predicted = [base.step.p10, base.step.p50, base.step.p90]
    return estimate, {"estimate": estimate.to_dict(), "facets": Facets.of(base).to_dict(), "predicted": predicted}


def _cluster(asked: Mapping[str, Any]) -> Cluster | None:
    return _TAUGHT[asked["cluster"]] if "cluster" in asked else None


def limit_of(estimate: Estimate, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The time limit that is asked for."""
    limit = time_limit(estimate, asked.get("confidence", 0.95), asked.get("format", "seconds"))
    return {**limit.to_dict(), "resumes": limit.resumes}


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
    cluster = _cluster(asked)
    comparison = compare_jobs(crossed([base], axes), lambda job: predict_job(job, learned=cluster))
    if comparison.baseline is None:
        raise JobError(comparison.rows[0].error or "nothing to compare")
    if "quantile" in asked:
        comparison = comparison.with_quantile(asked["quantile"])
    return comparison.to_dict()


def plan(asked: Mapping[str, Any]) -> dict[str, Any]:
    goal, space = Goal(**known_fields("goal", Goal, asked.get("goal", {}))), safe_space(asked.get("space", {}))
    found = plan_job(_job(asked), goal, space, learned=_cluster(asked))
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
    "teach": teach,
}
