"""Jobs that have ended, as Slurm prints them: elapsed time and exit code of those whose comment names a prediction.

Two texts are read: the table of `sacct --parsable2` (or `--parsable`) with its header, and the lines of `scontrol show
job --oneliner`. A job names its prediction in its comment, `--comment=precision-time:ID`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from precision_time.checks import show
from precision_time.errors import DataError
from precision_time.serve.recording.runs import Measured

MOST_LINES = 1_000_000
_NAMED = re.compile(r"precision-time[:=]([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")
_ELAPSED = re.compile(
    r"(?:(?P<days>[0-9]{1,5})-)?(?:(?P<hours>[0-9]{1,5}):)?(?P<minutes>[0-9]{1,5}):(?P<seconds>[0-9]{2})(?:\.[0-9]+)?"
)
_PAIR = re.compile(r"(?:^| )([A-Za-z][A-Za-z:/]*)=")
_GOES_ON = frozenset({"PENDING", "RUNNING", "SUSPENDED", "CONFIGURING", "REQUEUED", "RESIZING", "STOPPED", "SIGNALING"})
"""States in which a job has not ended; all others are ends (sacct's manual page, JOB STATE CODES)."""
_ENDING = "COMPLETING"
"""The state while an epilog runs: the exit code and the reason say how the job went."""


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """A job that has ended, and the prediction that it names."""

    prediction: str
    measured: Measured


def ended_jobs(text: str, name: str) -> Iterator[SlurmJob]:
    """The jobs in the text that name a prediction and have ended. Raises `DataError` for text of another form.

    Steps of jobs (4711.batch) are passed over. The key has the job's id and its start, since a job that is queued again
    keeps its id.
    """
    for line, fields in _lines(text, name):
        # The comment, or any other field of the user's, such as AdminComment or WCKey.
        match = next((found for value in fields.values() if (found := _NAMED.search(value))), None)
        number = fields.get("JobIDRaw") or fields.get("JobID") or fields.get("JobId") or ""
        if match is None or "." in number:
            continue
        if not number:
            raise DataError(f"{name} has no JobID in line {line}; print it, too")
        state = fields.get("State") or fields.get("JobState") or ""
        if state.split(" ")[0] in _GOES_ON:
            continue
        elapsed = fields.get("ElapsedRaw") or fields.get("Elapsed") or fields.get("RunTime") or ""
        start = fields.get("Start") or fields.get("StartTime") or ""
        measured = Measured(
            key=f"slurm-{number}" + (f"-{start}" if re.fullmatch(r"[0-9T:-]{10,25}", start) else ""),
            run_s=_seconds(elapsed, f"{name} line {line}"),
            finished=_finished(state, fields.get("ExitCode", ""), fields.get("Reason", "")),
            machine=_machine(fields, number, state),
        )
        yield SlurmJob(match[1], measured)


def _lines(text: str, name: str) -> Iterator[tuple[int, Mapping[str, str]]]:
    lines = text.splitlines()
    if len(lines) > MOST_LINES:
        raise DataError(f"{name} has {len(lines):,} lines; give at most {MOST_LINES:,}, for example of one day")
    header: list[str] | None = None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if line.startswith("JobId="):
            yield number, _pairs(line)
            continue
        cells = line.removesuffix("|").split("|")
        if header is None:
            header = [cell.strip() for cell in cells]
            if not {"JobID", "JobIDRaw"} & set(header):
                raise DataError(
                    f"{name} is neither what `sacct --parsable2` nor what `scontrol show job --oneliner` prints; line "
                    f"{number} is {show(line)}"
                )
            continue
        if len(cells) > len(header) and "Comment" in header:  # which may have bars
            at, more = header.index("Comment"), len(cells) - len(header)
            cells[at : at + more + 1] = ["|".join(cells[at : at + more + 1])]
        yield number, dict(zip(header, (cell.strip() for cell in cells), strict=False))


def _pairs(line: str) -> dict[str, str]:
    """The fields of a line of scontrol; values may have spaces."""
    found = list(_PAIR.finditer(line))
    ends = [each.start() for each in found[1:]] + [len(line)]
    return {each[1]: line[each.end() : end].strip() for each, end in zip(found, ends, strict=True)}


def _seconds(text: str, name: str) -> float:
    """Seconds of an elapsed time, [[D-]H:]M:S or whole seconds."""
    if text.isascii() and text.isdigit() and len(text) < 12:
        return float(text)
    match = _ELAPSED.fullmatch(text)
    if match is None:
        raise DataError(f"{name} has the elapsed time {show(text)}; print Elapsed or ElapsedRaw, as in 1-02:03:04")
    days, hours, minutes, seconds = (int(match[part] or 0) for part in ("days", "hours", "minutes", "seconds"))
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _finished(state: str, exit_code: str, reason: str) -> bool | None:
    """Whether the job did all of its work: it completed, and its exit code is zero."""
    code = exit_code.split(":")
    failed = bool(exit_code) and any(part.strip("0") for part in code)
    if state.startswith(_ENDING):
        return not failed and reason in ("", "None")
    if state:
        return state.startswith("COMPLETED") and not failed
    return not failed if exit_code else None


def _machine(fields: Mapping[str, str], number: str, state: str) -> dict[str, str]:
    found = {
        "slurm_job": number, "slurm_state": state, "slurm_exit_code": fields.get("ExitCode", ""),
        "hosts": fields.get("NodeList", ""), "partition": fields.get("Partition", ""),
        "slurm_cluster": fields.get("Cluster", ""),
    }  # fmt: skip
    return {name: value[:1000] for name, value in found.items() if value and value != "None assigned"}
