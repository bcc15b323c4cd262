"""Where outcomes go: into a local store, or to a server."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import precision_time
from precision_time.client import Client
from precision_time.errors import JobError, PrecisionTimeError, ServeError
from precision_time.estimate.estimate import Estimate
from precision_time.job.code import MODULE
from precision_time.job.job import Job
from precision_time.serve.learning.facets import Facets
from precision_time.serve.recording.runs import Measured, Recorded, Run, reason
from precision_time.serve.records import Outcome, Prediction
from precision_time.serve.store import SqlStore, new_id, open_store

DEFAULT_CLUSTER = "default"
TIMEOUT_S = 15.0
"""Longest wait for an answer of a server: a training script waits for it at its end."""
OF_ONE = (404, 409, 413, 422)
"""Statuses with which a server refuses one job or outcome; with others the next would be refused, too."""
_TOGETHER = 100
"""Runs that a store keeps in one transaction."""


class Recorder(Protocol):
    """Keeps outcomes. Raises `ServeError` where the store or the server fails; what is recorded twice is kept once."""

    def record(self, prediction: str, measured: Measured) -> bool:
        """Keep the outcome of a prediction that is known there; False where it was known, too."""

    def record_runs(self, runs: Sequence[Run]) -> list[Recorded]:
        """Keep predictions and outcomes. A job that cannot be predicted there is refused, with the reason."""

    def close(self) -> None: ...


def open_recorder(target: str | Path | None = None, cluster: str | None = None, token: str | None = None) -> Recorder:
    """The recorder of a server (http:// or https://), or of a store (see `open_store`; None: the usual one)."""
    if isinstance(target, str) and target.startswith(("http://", "https://")):
        return ServerRecorder(Client(target, token, cluster=cluster, timeout_s=TIMEOUT_S))
    return StoreRecorder(open_store(target), cluster or DEFAULT_CLUSTER)


class StoreRecorder:
    """Into a store, which it closes in the end."""

    def __init__(self, store: SqlStore, cluster: str = DEFAULT_CLUSTER) -> None:
        self._store, self._cluster = store, cluster

    def record(self, prediction: str, measured: Measured) -> bool:
        return self._store.add_outcome(_outcome(prediction, measured))

    def record_runs(self, runs: Sequence[Run]) -> list[Recorded]:
        results: list[Recorded] = []
        for first in range(0, len(runs), _TOGETHER):
            results += self._together(runs[first : first + _TOGETHER])
        return results

    def _together(self, runs: Sequence[Run]) -> list[Recorded]:
        made: list[Prediction | str] = [self._prediction(run) for run in runs]
        kept = self._store.add_together([each for each in made if isinstance(each, Prediction)]).renamed
        results = []
        for run, each in zip(runs, made, strict=True):
            if isinstance(each, str):
                results.append(Recorded(run.measured.key, refused=each))
                continue
            identifier = kept.get(each.id, each.id)
            new = self._store.add_outcome(_outcome(identifier, run.measured))
            results.append(Recorded(run.measured.key, identifier, new))
        return results

    def _prediction(self, run: Run) -> Prediction | str:
        """The prediction of a run, or why there is none."""
        try:
            estimate = run.predicted()
        except PrecisionTimeError as error:
            return reason(error)
        return Prediction(
            id=new_id(),
            made_at=time.time() if run.made_at is None else run.made_at,
            cluster=self._cluster,
            job=run.job.to_dict(),
            estimate=estimate.to_dict(),
            facets=facets_of(run.job, estimate, run.framework),
            predicted=(estimate.step.p10, estimate.step.p50, estimate.step.p90),
            versions={"precision_time": precision_time.__version__},
            key=run.key,
        )

    def close(self) -> None:
        self._store.close()


class ServerRecorder:
    """To a server, which predicts the jobs of runs itself; what they were predicted here is not sent."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def record(self, prediction: str, measured: Measured) -> bool:
        return self._client.record(prediction, key=measured.key, **measured.fields())

    def record_runs(self, runs: Sequence[Run]) -> list[Recorded]:
        results = []
        for run in runs:
            try:
                estimate = self._client.predict(run.job, key=run.key)
                new = self._client.record(estimate, key=run.measured.key, **run.measured.fields())
            except PrecisionTimeError as error:
                if isinstance(error, ServeError) and error.http_status not in OF_ONE:
                    raise
                results.append(Recorded(run.measured.key, refused=reason(error)))
                continue
            results.append(Recorded(run.measured.key, estimate.prediction, new))
        return results

    def close(self) -> None:
        self._client.close()


def facets_of(job: Job, estimate: Estimate, framework: str | None = None) -> dict[str, str]:
    """The facets of a job. The name of a module of a program, module:NAME-1, says nothing of its sizes and counts the
    modules of the process, so that parameters and operations tell modules of one class apart."""
    launch = estimate.bound_shares.get("launch", 0.0)
    facets = Facets.of_job(job, launch, framework).to_dict()
    if job.model.startswith(MODULE):
        family = re.sub(r"-[0-9]+$", "", facets["family"])
        sizes = f"{family} {estimate.parameters} {sorted(estimate.flops_per_step.items())} "
        fields = Facets.of_job(job.replace(model="any"), 0.0, framework).job
        digest = hashlib.sha256(f"{sizes}{fields}".encode()).hexdigest()[:16]
        facets |= {"family": family, "model": f"{family}-{estimate.parameters}", "job": digest}
    return facets


def _outcome(prediction: str, measured: Measured) -> Outcome:
    if " " in measured.key:
        raise JobError(f"key {measured.key!r} has a space; write it without")
    return Outcome(
        measured.key, prediction, time.time(), measured.step_s, measured.steps_s, measured.run_s, measured.peak_bytes,
        measured.finished, dict(measured.machine),
    )  # fmt: skip
