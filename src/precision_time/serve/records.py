"""What the server keeps: a `Prediction` and its `Outcome`s. Both are written once and never changed.

Times of the clock are seconds since 1970-01-01 in UTC; durations are seconds, sizes bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Prediction:
    """A job and what was predicted for it.

    id         made by the server, in the order of time; what an outcome names
    made_at    when it was predicted, in seconds since 1970
    cluster    the machines that the job is meant for: corrections are learned for each cluster
    job        fields of the job, as in the job file
    estimate   `Estimate.to_dict()`, after the correction
    facets     what the correction is learned by: gpu, framework, precision, family, job (`learning.Facets`)
    predicted  P10, P50 and P90 of the step in seconds before the correction
    versions   of precision-time and of the shipped parameters
    key        given by the client: the same key twice is one prediction; None: every request is its own
    """

    id: str
    made_at: float
    cluster: str
    job: Mapping[str, Any]
    estimate: Mapping[str, Any]
    facets: Mapping[str, str]
    predicted: tuple[float, float, float]
    versions: Mapping[str, str]
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a predicted job went. Fields that were not measured are None.

    key           given by the client or made from the content: the same key twice is one outcome of the prediction
    prediction    id of the prediction
    recorded_at   when it was recorded, in seconds since 1970
    step_s        median seconds of a step
    steps_s       seconds of single steps, at most 10,000
    run_s         seconds from launch to end
    peak_bytes    highest memory of the fullest GPU
    finished      whether all steps were done; None: not known
    machine       what ran it: gpu, gpus, hosts, driver, torch, framework ... as text or numbers
    """

    key: str
    prediction: str
    recorded_at: float
    step_s: float | None = None
    steps_s: tuple[float, ...] = ()
    run_s: float | None = None
    peak_bytes: int | None = None
    finished: bool | None = None
    machine: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Recorded:
    """An outcome with its prediction, and its number in the order in which outcomes were acknowledged."""

    number: int
    prediction: Prediction
    outcome: Outcome


class Store(Protocol):
    """Keeps predictions and outcomes; what it has returned from `add_*` survives `kill -9` and power loss.

    Every method raises `StoreError` where the database cannot be reached, read or written; the next call tries again.
    `name`: which database it is, without a password.
    """

    name: str

    def add_prediction(self, prediction: Prediction) -> Prediction:
        """Keep it; returns the one that is kept, which is an earlier one where its key is known."""

    def add_outcome(self, outcome: Outcome) -> bool:
        """Keep it; False where the prediction has an outcome of this key. Raises `UnknownPredictionError`."""

    def prediction(self, id: str) -> Prediction | None: ...

    def outcomes(self, prediction: str) -> tuple[Outcome, ...]: ...

    def predictions(
        self, cluster: str | None = None, before: str | None = None, limit: int = 50
    ) -> tuple[Prediction, ...]:
        """The latest first; `before` is the id of the last one that the caller has seen."""

    def recorded(self, after: int = 0) -> Iterator[Recorded]:
        """All outcomes above this number, in the order of their numbers."""

    def clusters(self) -> Mapping[str, tuple[int, int]]:
        """Numbers of predictions and of outcomes by cluster, in the order of the alphabet."""

    def check(self) -> None:
        """Raises `StoreError` where the database does not answer."""

    def close(self) -> None: ...
