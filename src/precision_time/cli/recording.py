"""The commands `record`, which keeps how jobs went, and `store`, which backs their store up."""

from __future__ import annotations

import hashlib
import sys
from argparse import Namespace
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from typing import Any

from precision_time.checks import show, small_number
from precision_time.cli.parser import UsageError
from precision_time.cli.progress import Progress
from precision_time.cli.streams import note
from precision_time.errors import DataError, ServeError, UnknownPredictionError
from precision_time.reading import decoded, read_text, to_json
from precision_time.serve.recording import Measured, Recorder, Run, open_recorder
from precision_time.serve.recording.outcome_file import measured_of, read_outcome_file, run_of_file
from precision_time.serve.recording.recorder import OF_ONE
from precision_time.serve.recording.runs import MEASURES, Recorded, reason
from precision_time.serve.store.rows import is_id

Result = tuple[dict[str, Any], str]
LARGEST_INPUT = 128 * 2**20
"""Bytes of what Slurm prints."""
_AT_ONCE = 100
_SHOWN = 10
"""Refused rows that are listed; all of them are in the JSON."""
_ACTIONS = "backup FILE, restore FILE, check FILE, or nothing"


def record(options: Namespace) -> Result:
    """For JSON, and as text. What can be recorded is, also where other rows cannot."""
    if (options.source is None) == (options.slurm is None):
        raise UsageError("give one source: the id of a prediction, an outcome file, a table, or --slurm FILE")
    if options.database is not None and options.server is not None:
        raise UsageError("--database and --server are two places; keep one of them")
    results = _recorded(options)
    content = {"recorded": [each.to_dict() for each in results]}
    return content, _text(results)


def _recorded(options: Namespace) -> list[Recorded]:
    source = options.source or ""
    is_file = source.lower().endswith((".json", ".csv"))
    _check_flags(options, source, is_file)
    if not is_file and options.slurm is None and not is_id(source):
        raise UsageError(f"{show(source)} is neither the id of a prediction nor a file that ends in .json or .csv")
    with closing(open_recorder(options.server or options.database, options.cluster_name)) as recorder:
        if options.slurm is not None:
            return _of_slurm(options.slurm, recorder)
        if source.lower().endswith(".json"):
            return _of_outcome_file(options, recorder)
        if is_file:
            return _of_table(options, recorder)
        return [_one(recorder, source, _measured(options))]


def _check_flags(options: Namespace, source: str, is_file: bool) -> None:
    given = [name for name in ("step_s", "run_s", "peak_bytes", "finished", "exit_code", "machine", "key")
             if getattr(options, name)]  # fmt: skip
    if given and (is_file or options.slurm is not None):
        flag = "--" + given[0].replace("_", "-")
        raise UsageError(f"{flag} goes with the id of a prediction; a file has its own values, so leave it out")
    if options.prediction is not None and not source.lower().endswith(".json"):
        raise UsageError("--prediction goes with an outcome file (.json); leave it out")


def _measured(options: Namespace) -> Measured:
    """The values of the flags."""
    given = {name: getattr(options, name) for name in MEASURES}
    if options.exit_code is not None:
        code = small_number(options.exit_code)
        if code is None:
            raise UsageError(
                f"--exit-code {show(options.exit_code)} is no exit code; give a whole number, 0 for success"
            )
        if given["finished"] is not None:
            raise UsageError("--finished and --exit-code say the same; keep one of them")
        given["finished"] = "yes" if code == 0 else "no"
    machine = dict(_pair(text) for text in options.machine or ())
    measured = Measured.of_texts("", given, machine)
    content = to_json(measured.fields(), sort_keys=True)
    key = options.key or f"flags-{hashlib.sha256(content.encode()).hexdigest()[:32]}"
    return Measured(key=key, **measured.fields())


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip() or not value.strip():
        raise UsageError(f"--machine {show(text)} has no value; write NAME=VALUE, for example host=node17")
    return name.strip(), value.strip()


def _one(recorder: Recorder, prediction: str, measured: Measured) -> Recorded:
    return Recorded(measured.key, prediction, recorder.record(prediction, measured))


def _each(recorder: Recorder, outcomes: Iterable[tuple[str, Measured]]) -> list[Recorded]:
    """Outcomes by prediction; one whose prediction is not kept there is refused alone."""
    results = []
    for prediction, measured in outcomes:
        try:
            results.append(_one(recorder, prediction, measured))
        except ServeError as error:
            if not isinstance(error, UnknownPredictionError) and error.http_status not in OF_ONE:
                raise
            results.append(Recorded(measured.key, prediction, refused=reason(error)))
    return results


def _of_slurm(name: str, recorder: Recorder) -> list[Recorded]:
    from precision_time.serve.recording.slurm import ended_jobs

    if name == "-":
        content = sys.stdin.buffer.read(LARGEST_INPUT + 1)
        if len(content) > LARGEST_INPUT:
            raise DataError("standard input is too large; print fewer jobs, for example those of one day")
        label, text = "standard input", decoded(content, "standard input")
    else:
        label, text = f"file {name!r}", read_text(name, "file", LARGEST_INPUT)
    return _each(recorder, ((job.prediction, job.measured) for job in ended_jobs(text, label)))


def _of_outcome_file(options: Namespace, recorder: Recorder) -> list[Recorded]:
    content = read_outcome_file(options.source)
    if options.prediction is not None:
        return [_one(recorder, options.prediction, measured_of(content))]
    (result,) = recorder.record_runs([run_of_file(content)])
    if result.refused:
        raise DataError(result.refused)
    return [result]


def _of_table(options: Namespace, recorder: Recorder) -> list[Recorded]:
    from precision_time.serve.recording.tables import has_predictions, outcomes_of, runs_of

    if has_predictions(options.source):
        return _each(recorder, list(outcomes_of(options.source)))
    runs, refused = runs_of(options.source, options.allow_code)
    results = [Recorded("", refused=text) for text in refused]
    with Progress("measured jobs") as progress:
        for first in range(0, len(runs), _AT_ONCE):
            some = runs[first : first + _AT_ONCE]
            results += map(_named, some, recorder.record_runs(some))
            progress(min(first + _AT_ONCE, len(runs)), len(runs))
    return results


def _named(run: Run, result: Recorded) -> Recorded:
    """With the row that was refused in its reason."""
    name = run.measured.machine.get("row")
    return replace(result, refused=f"row {name!r}: {result.refused}") if name and result.refused else result


def _text(results: list[Recorded]) -> str:
    new = [each for each in results if each.new]
    known = [each for each in results if each.prediction and not each.new and not each.refused]
    refused = [each for each in results if each.refused]
    for each in refused[:_SHOWN]:
        note(f"precision-time: not recorded: {each.refused}")
    if len(refused) > _SHOWN:
        note(f"precision-time: and {len(refused) - _SHOWN:,} more are not recorded; --json lists them")
    parts = [f"{len(new):,} recorded"]
    if len(new) == 1:
        parts[0] += f" (prediction {new[0].prediction})"
    parts += [f"{len(known):,} known already"] if known else []
    parts += [f"{len(refused):,} not recorded"] if refused else []
    return ", ".join(parts)


def store(options: Namespace) -> Result:
    """For JSON, and as text."""
    from precision_time.report.write import check_file
    from precision_time.serve.store import back_up, check_backup, open_store, restore

    action = options.action
    if action[:1] == ["check"] and len(action) == 2:
        found = check_backup(action[1])
        return _counts("checked", action[1], found.predictions, found.outcomes, "is whole")
    if action and (action[0] not in ("backup", "restore") or len(action) != 2):
        wrong = "names no single file" if action[0] in ("backup", "restore", "check") else "is unknown"
        raise UsageError(f"store {show(' '.join(action))} {wrong}; use {_ACTIONS}")
    if action[:1] == ["backup"]:
        check_file("file", action[1])  # before the database, which is made where there is none
    # restore reads the whole backup before the database, which is made where there is none
    with closing(open_store(options.database, check=action[:1] != ["restore"])) as opened:
        if not action:
            clusters = opened.clusters()
            lines = [f"{name}: {predictions:,} predictions, {outcomes:,} outcomes"
                     for name, (predictions, outcomes) in clusters.items()]  # fmt: skip
            content = {name: {"predictions": p, "outcomes": o} for name, (p, o) in clusters.items()}
            return {"store": opened.name, "clusters": content}, "\n".join([opened.name, *lines])
        if action[0] == "backup":
            found = back_up(opened, action[1])
            return _counts("backup", action[1], found.predictions, found.outcomes, "written")
        found = restore(opened, action[1])
        return _counts("restored", action[1], found.predictions, found.outcomes, f"restored into {opened.name}; new")


def _counts(name: str, path: str, predictions: int, outcomes: int, told: str) -> Result:
    content = {name: path, "predictions": predictions, "outcomes": outcomes}
    return content, f"{path} {told}: {predictions:,} predictions, {outcomes:,} outcomes"
