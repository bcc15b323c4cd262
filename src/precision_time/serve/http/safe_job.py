"""A job of a request: it names entries of the catalogs, and no file, no code and no module of the server.

Making a `Job` opens nothing; predicting one opens what its fields name. So the job is made first, which settles its
words (aliases, text and mappings, spaces, hyphens), and every field that may name a file is checked on the result.
The job's `CodeRule` refuses code a second time, and workers have no torch (`worker`), so that nothing can be traced.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from precision_time.checks import show
from precision_time.errors import JobError, nearest
from precision_time.job.anchors import NONE, PUBLISHED, anchor_fields
from precision_time.job.code import POSTED, CodeRule, is_code
from precision_time.job.job import Job
from precision_time.plan import Goal, Space
from precision_time.plan.spot import PUBLISHED as PUBLISHED_SPOT
from precision_time.reading import SUFFIXES, plain_mapping
from precision_time.serve.http.problems import ProblemError

RULE = CodeRule("a request")
_FILES = (*SUFFIXES, ".csv", ".toml", ".py")
_POST = "or capture yours where it is (precision-time capture) and post its graph"


def safe_job(fields: Any, graph: str | None = None) -> Job:
    """The job of the fields of a request; `graph`: the digest of the posted graph that is its model.

    Raises `ProblemError` for a field that names a file or code, and `JobError` as `Job` does.
    """
    given = plain_mapping("job", fields)
    if graph is not None:
        if any(key.strip() == "model" and value is not None for key, value in given.items()):
            raise ProblemError(
                422, "model is given beside a graph, which replaces it; leave one of them out", field="model"
            )
        given = {**{key: value for key, value in given.items() if key.strip() != "model"}, "model": POSTED + graph}
    job = Job.from_fields(given, RULE)
    for field, read in _PLACES.items():
        if graph is None or field != "model":
            _CHECKS[field](field, read(job))
    for line in job.anchors:
        _check_anchor(line)
    return job


def _refuse(field: str, value: Any, what: str, fix: str) -> NoReturn:
    raise ProblemError(
        422,
        f"{field} {show(value)} is {what}, and a request opens no file and runs no code; {fix}",
        field=field,
        value=str(value)[:200],
        fix=fix,
    )


def _check_model(field: str, value: str | None) -> None:
    if value is not None and (":" in value or is_code(value) or value.lower().endswith(_FILES)):
        _refuse(field, value, "a file, or a model that has to be traced", f"name a model of the zoo, {_POST}")


def _check_device(field: str, value: str | None) -> None:
    if value is not None:
        _refuse(field, value, "a device file", "name a GPU of the catalog (/v1/gpus)")


def _check_storage(field: str, value: str | None) -> None:
    if value is not None and (value.lower().endswith(_FILES) or "/" in value or "\\" in value):
        _refuse(field, value, "a storage file", "name a storage of the catalog, or give its bandwidth_gb_per_s")


def _check_anchor(line: str) -> None:
    if line in (PUBLISHED, NONE):
        return
    if line.lower().endswith(".csv"):
        _refuse("anchors", line, "a file", "write measured jobs as key=value,...,step_time_s=SECONDS")
    _check_model("anchors.model", anchor_fields(line).get("model"))


_PLACES: Mapping[str, Callable[[Job], str | None]] = {
    "model": lambda job: job.model,
    "device": lambda job: job.device,
    "data.storage": lambda job: job.data.storage,
    "run.checkpoint_storage": lambda job: job.run.checkpoint_storage,
}
"""Fields that name a file elsewhere (besides `anchors`), and how to read them of a job."""
_CHECKS: Mapping[str, Callable[[str, str | None], None]] = {
    "model": _check_model,
    "device": _check_device,
    "data.storage": _check_storage,
    "run.checkpoint_storage": _check_storage,
}


def known_fields(section: str, noun: type[Goal] | type[Space], fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields, all of which the noun has; `JobError` names one that it has not."""
    known = [item.name for item in dataclasses.fields(noun)]
    for name in fields:
        if name not in known:
            raise JobError(f"{section} has no field {show(name)}; nearest: {nearest(name, known)}")
    return fields


def safe_space(fields: Mapping[str, Any]) -> Space:
    """The space of a plan, which names no price file, cluster file or trace."""
    space = Space(**known_fields("space", Space, fields))
    for name in space.providers:
        if name.lower().endswith(_FILES) or "/" in name or "\\" in name:
            _refuse("space.providers", name, "a file", "name a cloud of the price list, or any")
    if space.spot is not None and space.spot != PUBLISHED_SPOT:
        _refuse("space.spot", space.spot, "a trace file", f"give {PUBLISHED_SPOT}")
    return space
