"""The outcome file that callbacks of training frameworks write (`integrations.outcome`), as a run to record."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from precision_time.errors import DataError, PrecisionTimeError
from precision_time.estimate.estimate import Estimate
from precision_time.job.job import Job
from precision_time.reading import named, read_json, to_json
from precision_time.serve.recording.recorder import open_recorder
from precision_time.serve.recording.runs import Measured, Run

_LARGEST = 16 * 2**20
_MACHINE = {
    "host": "hostname", "device_type": "device_type", "device": "device", "system": "host", "torch": "torch",
    "cuda": "cuda",
}  # fmt: skip
"""What an outcome says of its machine -> the key of the file."""


def read_outcome_file(path: str | Path) -> dict[str, Any]:
    """The content of an outcome file. Raises `DataError` where it is none."""
    content = read_json(path, "outcome file", _LARGEST)
    if not isinstance(content, dict) or not isinstance(content.get("measured"), dict):
        raise DataError(
            f"{named('outcome file', path)} has no measured values; name a precision_time_outcome.json that a callback "
            "wrote"
        )
    return content


def measured_of(content: Mapping[str, Any]) -> Measured:
    """What was measured. Raises `DataError` for values of another kind.

    The key has the run's id, and the number of steps where the run had not ended when the file was written: its end is
    another outcome. Files of earlier versions have no id: a digest of their content stands for it.
    """
    given = content["measured"]
    try:
        every = int(given.get("one_step_in") or 1)
        warm = -(-int(given.get("warmup_steps") or 0) // every)
        steps = tuple(float(value) for value in given.get("steps_s") or ())[warm:]
        peak = (given.get("peak_memory") or {}).get("bytes") if given.get("device_type") == "cuda" else None
        machine = {name: given.get(key) for name, key in _MACHINE.items()}
        ran_in = content.get("framework") or {}
        machine["framework"] = " ".join(str(ran_in[name]) for name in ("name", "version") if ran_in.get(name))
        return Measured(
            key=_key(content),
            step_s=None if given.get("step_s") is None else float(given["step_s"]),
            steps_s=steps,
            run_s=None if given.get("run_s") is None else float(given["run_s"]),
            peak_bytes=None if peak is None else int(peak),
            finished=bool(content.get("finished")),
            machine={name: value for name, value in machine.items() if value},
        )
    except (TypeError, ValueError, AttributeError) as error:
        raise DataError(f"the outcome file has a value of another kind ({error}); record it by flags") from None


def run_of_file(content: Mapping[str, Any], job: Job | None = None, estimate: Estimate | None = None) -> Run:
    """The run of an outcome file; `job` and `estimate` where they are at hand.

    Raises `DataError` where nothing was predicted, or the prediction was for another device than the one that trained:
    an outcome must not be held against it.
    """
    if content.get("job") is None or content.get("prediction") is None:
        raise DataError(
            "nothing was predicted for this run; record the outcome file with --prediction, the id that a server gave"
        )
    if content.get("predicted_for_this_device") is not True:
        raise DataError(
            f"the prediction is for {content['job'].get('gpu')!r}, and another device trained; record the outcome file "
            "with --prediction, the id of one for that device"
        )
    measured = measured_of(content)
    if job is None or estimate is None:
        try:
            job = Job.from_dict(content["job"])
            estimate = Estimate.from_dict(content["prediction"])
        except PrecisionTimeError as error:
            raise DataError(f"the job of the outcome file cannot be read: {error}") from None
    began = content.get("began_at")
    made_at = float(began) if isinstance(began, (int, float)) and not isinstance(began, bool) else None
    return Run(_base(content), job, measured, estimate, made_at)


def record_run(
    content: Mapping[str, Any], target: str | Path, cluster: str | None = None, estimate: Estimate | None = None
) -> str:
    """Record the content of an outcome file in a store or at a server; returns the id of the prediction.

    Raises a `PrecisionTimeError` where it cannot be recorded.
    """
    run = run_of_file(content, estimate.job if estimate else None, estimate)
    recorder = open_recorder(target, cluster)
    try:
        (recorded,) = recorder.record_runs([run])
    finally:
        recorder.close()
    if recorded.prediction is None:
        raise DataError(recorded.refused)
    return recorded.prediction


def _base(content: Mapping[str, Any]) -> str:
    run = content.get("run")
    if isinstance(run, str) and run:
        return f"run-{run}"[:150]
    return f"file-{hashlib.sha256(to_json(content, sort_keys=True).encode()).hexdigest()[:32]}"


def _key(content: Mapping[str, Any]) -> str:
    if content.get("ended") is None:
        return f"{_base(content)}-at-{(content.get('steps') or {}).get('done')}"
    return _base(content)
