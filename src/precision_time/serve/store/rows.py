"""`Prediction` and `Outcome` as rows of tables, checked before they are written.

Numbers are columns; mappings and lists are JSON text, the same in both databases.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from precision_time.checks import show
from precision_time.errors import JobError, StoreError
from precision_time.field_types import SECONDS, FieldType
from precision_time.field_types import number as number_type
from precision_time.reading import to_json
from precision_time.serve.records import Outcome, Prediction

LONGEST_KEY = 200
MOST_STEPS = 10_000
LARGEST_JSON = 4 * 2**20
"""Characters of the JSON of one column."""
PREDICTION_COLUMNS = ("id", "made_at", "cluster", "key", "job", "estimate", "facets", "p10", "p50", "p90", "versions")
OUTCOME_COLUMNS = (
    "prediction", "key", "recorded_at", "step_s", "steps_s", "run_s", "peak_bytes", "finished", "machine",
)  # fmt: skip
_CLUSTER = re.compile(r"[A-Za-z0-9._-]{1,100}")
_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_MOMENT = number_type(0, 1e12, "seconds since 1970")
_BYTES = FieldType("whole", 0, 2**60, "bytes")
_DAMAGES = (ValueError, TypeError, OverflowError, RecursionError, JobError)
"""What reading a damaged row raises."""


def checked_key(key: Any) -> str:
    """A key: 1 to 200 printable characters."""
    if not isinstance(key, str) or not 1 <= len(key) <= LONGEST_KEY or not key.isprintable():
        raise JobError(f"key {show(key)} must be 1 to {LONGEST_KEY} printable characters; shorten it, or leave it out")
    return key


def checked_cluster(cluster: Any) -> str:
    """The name of a cluster."""
    if not isinstance(cluster, str) or not _CLUSTER.fullmatch(cluster):
        raise JobError(
            f"cluster {show(cluster)} must be 1 to 100 letters, digits, dots, hyphens and underscores; for example "
            "cluster: a100-pool"
        )
    return cluster


def is_id(text: str) -> bool:
    """Whether a text has the form of a prediction's id."""
    return _ID.fullmatch(text) is not None


def prediction_row(prediction: Prediction) -> tuple[Any, ...]:
    """Values of `PREDICTION_COLUMNS`. Raises `JobError` for one that cannot be kept."""
    if not is_id(prediction.id):
        raise JobError(f"id {show(prediction.id)} is no id of a prediction; make one with serve.store.new_id")
    p10, p50, p90 = (SECONDS("predicted", value) for value in prediction.predicted)
    return (
        prediction.id,
        _MOMENT("made_at", prediction.made_at),
        checked_cluster(prediction.cluster),
        None if prediction.key is None else checked_key(prediction.key),
        _json("job", prediction.job),
        _json("estimate", prediction.estimate),
        _json("facets", prediction.facets),
        *(p10, p50, p90),
        _json("versions", prediction.versions),
    )


def prediction_of(row: Sequence[Any]) -> Prediction:
    """The prediction of a row of `PREDICTION_COLUMNS`. Raises `StoreError` for a row that nobody wrote so."""
    identifier, made_at, cluster, key, job, estimate, facets, *predicted, versions = row
    try:
        _MOMENT("made_at", made_at)
        checked_cluster(cluster)
        p10, p50, p90 = (SECONDS("predicted", value) for value in predicted)
        mappings = [_mapping(text) for text in (job, estimate, facets, versions)]
    except _DAMAGES as error:
        raise _damaged("prediction", identifier, error) from None
    job, estimate, facets, versions = mappings
    return Prediction(identifier, made_at, cluster, job, estimate, facets, (p10, p50, p90), versions, key)


def checked_outcome(outcome: Outcome) -> Outcome:
    """The outcome with its values checked. Raises `JobError` where it measures nothing, or a value is wrong."""
    if len(outcome.steps_s) > MOST_STEPS:
        raise JobError(f"steps_s has {len(outcome.steps_s):,} entries; give at most {MOST_STEPS:,}, every n-th step")
    checked = replace(
        outcome,
        key=checked_key(outcome.key),
        recorded_at=_MOMENT("recorded_at", outcome.recorded_at),
        step_s=None if outcome.step_s is None else SECONDS("step_s", outcome.step_s),
        steps_s=tuple(SECONDS("steps_s", value) for value in outcome.steps_s),
        run_s=None if outcome.run_s is None else SECONDS("run_s", outcome.run_s),
        peak_bytes=None if outcome.peak_bytes is None else _BYTES("peak_bytes", outcome.peak_bytes),
    )
    measured = (checked.step_s, checked.run_s, checked.peak_bytes, checked.finished)
    if not checked.steps_s and all(value is None for value in measured):
        raise JobError("the outcome measures nothing; give step_s, steps_s, run_s, peak_bytes or finished")
    return checked


def outcome_row(outcome: Outcome) -> tuple[Any, ...]:
    """Values of `OUTCOME_COLUMNS` of a checked outcome."""
    return (
        outcome.prediction,
        outcome.key,
        outcome.recorded_at,
        outcome.step_s,
        _json("steps_s", list(outcome.steps_s)),
        outcome.run_s,
        outcome.peak_bytes,
        None if outcome.finished is None else int(outcome.finished),
        _json("machine", outcome.machine),
    )


def outcome_of(row: Sequence[Any]) -> Outcome:
    """The outcome of a row of `OUTCOME_COLUMNS`. Raises `StoreError` for a row that nobody wrote so."""
    prediction, key, recorded_at, step_s, steps_s, run_s, peak_bytes, finished, machine = row
    try:
        steps = tuple(map(float, json.loads(steps_s)))
        if steps and not (min(steps) > 0 and sum(steps) < math.inf):
            raise ValueError("steps_s holds values that are no durations")
        finished = None if finished is None else bool(finished)
        one = steps[:1]  # all are checked above, a hundred times as fast
        outcome = Outcome(key, prediction, recorded_at, step_s, one, run_s, peak_bytes, finished, _mapping(machine))
        return replace(checked_outcome(outcome), steps_s=steps)
    except _DAMAGES as error:
        raise _damaged("outcome", prediction, error) from None


def _mapping(text: str) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("text where a mapping was")
    return found


def _damaged(kind: str, identifier: Any, error: Exception) -> StoreError:
    whose = "the prediction" if kind == "prediction" else "an outcome of prediction"
    return StoreError(
        f"{whose} {show(identifier)} is damaged in the database ({error}); restore a backup into a new one"
    )


def _json(column: str, value: Any) -> str:
    try:
        text = to_json(value, separators=(",", ":"))
    except TypeError as error:
        raise JobError(f"{column} {show(value)} cannot be written as JSON ({error}); give plain values") from None
    if len(text) > LARGEST_JSON:
        raise JobError(f"{column} has {len(text):,} characters as JSON; give at most {LARGEST_JSON:,}")
    return text
