"""What a correction is learned by: the facets of a job that share errors, and the job itself."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from precision_time.anchors.anchor import family_of
from precision_time.errors import DataError
from precision_time.job.job import Job
from precision_time.zoo.names import find, zoo_name

DIGITS = 16
"""Hex digits of a job's key."""
LONGEST = 200
"""Characters of a facet; model names may be longer and are cut."""
_NOT_OF_THE_STEP = ("run", "anchors")
"""Fields of a job that do not change the step which is learned."""


@dataclass(frozen=True, slots=True)
class Facets:
    """The facets of a job, as texts.

    gpu         catalog name
    framework   that launches the kernels
    precision   label; of a schedule, that of its last part, whose step is predicted
    family      of a named model; the name itself for any other
    model       name, whatever its sizes
    job         digest of all fields that decide the step: two jobs with one digest are the same job
    """

    gpu: str
    framework: str
    precision: str
    family: str
    model: str
    job: str

    @classmethod
    def of(cls, job: Job, framework: str | None = None) -> Facets:
        """The facets of a job. `framework`: that it ran in, where another one stands for it in the job."""
        ran_in = framework or job.framework
        precision = job.schedule[-1].precision if job.schedule else job.precision_spec.label
        return cls(
            gpu=job.gpu[:LONGEST],
            framework=ran_in[:LONGEST],
            precision=precision[:LONGEST],
            family=family_of(job)[:LONGEST],
            model=zoo_name(job.model)[:LONGEST],
            job=_digest(job, ran_in, precision),
        )

    @classmethod
    def from_dict(cls, given: Mapping[str, str]) -> Facets:
        """Facets as a `Prediction` keeps them. Raises `DataError` where one is absent."""
        if missing := [item.name for item in fields(cls) if not isinstance(given.get(item.name), str)]:
            raise DataError(f"facets have no {missing[0]!r}; they are written by Facets.to_dict()")
        return cls(**{item.name: given[item.name][:LONGEST] for item in fields(cls)})

    def to_dict(self) -> dict[str, str]:
        return asdict(self)


def _digest(job: Job, framework: str, precision: str) -> str:
    values = {name: value for name, value in job.to_dict().items() if name not in _NOT_OF_THE_STEP}
    entry = find(job.model)
    values |= {"model": zoo_name(job.model), "framework": framework, "precision": precision}
    if job.batch_size is None and entry is not None:
        values["batch_size"] = entry.batch_size
    text = json.dumps(values, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]
