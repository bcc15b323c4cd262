"""What a correction is learned by: the facets of a job that share errors, and the job itself."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from precision_time.anchors.anchor import family_of
from precision_time.errors import DataError
from precision_time.job.job import Job
from precision_time.placement import catalog_of
from precision_time.zoo.names import find, zoo_name

if TYPE_CHECKING:
    from precision_time.estimate.estimate import Estimate

DIGITS = 16
"""Hex digits of a job's key."""
LONGEST = 200
"""Characters of a facet; longer names are cut."""
_NOT_OF_THE_STEP = ("run", "anchors")
"""Fields of a job that do not change the step which is learned."""
_LIBRARY_MODEL = re.compile(r"(timm|torchvision):(?:(?:tf|gluon|ig|swsl|ssl)_)?([a-z]+)")
"""A model of a library: the family of "timm:tf_efficientnet_b0" is "timm:efficientnet"."""


@dataclass(frozen=True, slots=True)
class Facets:
    """The facets of a job.

    gpu         catalog name
    framework   that launches the kernels
    precision   label; of a schedule, that of its last part, whose step is predicted
    family      of a named model, or of one of a library by the letters that its name begins with; else the name itself
    model       name, whatever its sizes
    setting     memory format, attention and execution, which decide the kernels
    job         digest of all fields that decide the step: two jobs with one digest are the same job
    launch      share of the kernels' time that is limited by launching, from 0 to 1
    release     of the software that ran it; of a job that has not run yet, what its cluster has (`Cluster`)
    """

    gpu: str
    framework: str
    precision: str
    family: str
    model: str
    setting: str
    job: str
    launch: float = 0.0
    release: str = ""

    @classmethod
    def of(cls, estimate: Estimate) -> Facets:
        """The facets of the job that was estimated."""
        return cls.of_job(estimate.job, estimate.bound_shares.get("launch", 0.0))

    @classmethod
    def of_job(cls, job: Job, launch: float, framework: str | None = None, precision: str | None = None) -> Facets:
        """The facets of a job. `framework`: that it ran in, where another one stands for it in the job. `precision`: of
        a part of its schedule, where that is not the last one."""
        ran_in = framework or job.framework
        precision = precision or (job.schedule[-1].precision if job.schedule else job.precision_spec.label)
        return cls(
            gpu=catalog_of(job).gpu(job.gpu).name[:LONGEST],
            framework=ran_in[:LONGEST],
            precision=precision[:LONGEST],
            family=_family(job)[:LONGEST],
            model=zoo_name(job.model)[:LONGEST],
            setting=f"{job.memory_format} {job.attention} {job.execution}",
            job=_digest(job, ran_in, precision),
            launch=round(launch, 4),
        )

    @classmethod
    def from_dict(cls, given: Mapping[str, str]) -> Facets:
        """Facets as a `Prediction` keeps them. Raises `DataError` where one is absent or no text."""
        if missing := [name for name in _KEPT if not isinstance(given.get(name), str)]:
            raise DataError(f"facets have no text {missing[0]!r}; they are written by Facets.to_dict()")
        values: dict[str, Any] = {name: given[name][:LONGEST] for name in _KEPT}
        try:
            values["launch"] = min(max(float(values["launch"]), 0.0), 1.0)
        except ValueError:
            raise DataError(f"facet launch {values['launch']!r} is no number; write a share from 0 to 1") from None
        return cls(**values)

    def to_dict(self) -> dict[str, str]:
        """As texts; `from_dict` reads them back."""
        return {name: f"{getattr(self, name)}" for name in _KEPT}


_KEPT = tuple(item.name for item in fields(Facets) if item.name != "release")
"""What a prediction keeps: the release is known when the job has run."""


def _family(job: Job) -> str:
    named = _LIBRARY_MODEL.match(job.model.lower())
    return f"{named[1]}:{named[2]}" if named else family_of(job)


def _digest(job: Job, framework: str, precision: str) -> str:
    values = {name: value for name, value in job.to_dict().items() if name not in _NOT_OF_THE_STEP}
    entry = find(job.model)
    values |= {"model": zoo_name(job.model), "framework": framework, "precision": precision}
    values["gpu"] = catalog_of(job).gpu(job.gpu).name  # which a job may name by an alias
    if job.batch_size is None and entry is not None:
        values["batch_size"] = entry.batch_size
    text = json.dumps(values, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]
