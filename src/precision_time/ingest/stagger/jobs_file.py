"""The file of co-located jobs (jobs.yaml): their commands, data and cache.

data: pictures
samples: 600
cache: {reset: {folder: cache}, capacity: 2GiB, policy: lru}
jobs:
  - {name: resnet, run: "python:train.py:train", arguments: {workers: 1}, epochs: 3}
  - {name: vit, run: "python train.py --skip {first} --limit {samples} --epochs {epochs}", epochs: 5}
"""

from __future__ import annotations

import dataclasses
import json
import re
import string
from collections import Counter
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

from precision_time.checks import known_fields, show, text, word
from precision_time.errors import DataError, JobError, PrecisionTimeError, nearest
from precision_time.field_types import (
    BATCH,
    SAMPLES,
    SHARE,
    SWITCH,
    apply_checks,
    choice,
    number,
    option,
    optional,
    structured,
    whole,
)
from precision_time.ingest.storage.pictures import INDEX
from precision_time.job.code import GIVEN, CodeRule, check_code, rule_of
from precision_time.reading import plain_values, read_mapping

POLICIES = ("lru", "no-eviction")
ORDERS = ("independent", "same")
GROUPS = ("samples", "batch", "more")
PLACEHOLDERS = ("samples", "first", "epochs")
PYTHON = "python:"
WINDOW = number(1e-3, 1e7, "seconds")
SIZE = number(1, 1e18, "bytes")
RESETS = ("page_cache", "folder", "command")

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(k|m|g|t|ki|mi|gi|ti)?b?\s*", re.IGNORECASE)
_FACTORS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12} | {
    f"{letter}i": 1024**power for power, letter in enumerate("kmgt", start=1)
}


def size_in_bytes(field_name: str, value: Any) -> float:
    """Bytes from "2GiB", "500 MB" or a number; raises JobError."""
    if isinstance(value, str) and (match := _SIZE.fullmatch(value)):
        value = float(match[1]) * _FACTORS[(match[2] or "").lower()]
    try:
        size: float = SIZE(field_name, value)
    except JobError:
        raise JobError(f"{field_name} {show(value)} is no size; give bytes or a unit, for example 2GiB") from None
    return size


def _parts(field_name: str, value: Any) -> Mapping[str, float]:
    """Shares of a job's samples by part of the data, from a name or a mapping."""
    if isinstance(value, str):
        return {text(field_name, value): 1.0}
    if not isinstance(value, Mapping) or not value:
        raise JobError(
            f"{field_name} must be a name, or names with shares, not {show(value)}; "
            f"for example {field_name}: {{common: 0.7, own: 0.3}}"
        )
    shares = {text(field_name, name): SHARE(f"{field_name}.{name}", share) for name, share in value.items()}
    if abs(sum(shares.values()) - 1.0) > 1e-6:
        raise JobError(f"{field_name} has shares that add up to {sum(shares.values()):g}; make them add up to 1")
    return shares


def _reset(field_name: str, value: Any) -> Mapping[str, str]:
    """How the cache is emptied: {"page_cache": ""}, {"folder": PATH} or {"command": TEXT}."""
    if isinstance(value, str):
        if value.strip() != "page_cache":
            raise JobError(
                f"{field_name} {show(value)} is unknown; nearest: {nearest(value, RESETS)}; write page_cache, "
                f"{{folder: PATH}} or {{command: TEXT}}"
            )
        return {"page_cache": ""}
    if not isinstance(value, Mapping) or len(value) != 1:
        raise JobError(f"{field_name} must be page_cache, {{folder: PATH}} or {{command: TEXT}}, not {show(value)}")
    fields = known_fields(value, RESETS[1:], field_name)
    return {name: text(f"{field_name}.{name}", found) for name, found in fields.items()}


def _warm(field_name: str, value: Any) -> str:
    if isinstance(value, Mapping):
        value = known_fields(value, ("command",), field_name).get("command")
    return text(field_name, value)


def _arguments(field_name: str, value: Any) -> Mapping[str, Any]:
    fields = {} if value is None else value
    if not isinstance(fields, Mapping) or not all(isinstance(key, str) for key in fields):
        raise JobError(
            f"{field_name} must be a mapping of names to values, not {show(value)}; for example {{batch_size: 32}}"
        )
    for name, argument in fields.items():
        try:
            json.dumps(argument, sort_keys=True)
        except (TypeError, ValueError) as error:
            raise JobError(
                f"{field_name}.{name} {show(argument)} cannot be passed on: {error}; write text (in quotes), numbers, "
                "lists, or mappings of names"
            ) from None
    return dict(fields)


def _file_name(field_name: str, value: Any) -> str:
    """A name that can be part of a log's file name."""
    name = text(field_name, value)
    if "/" in name or name.startswith("."):
        raise JobError(
            f"{field_name} {show(name)} cannot be part of a file's name; leave out slashes and a dot in front"
        )
    return name


def _pattern(field_name: str, value: Any) -> str:
    try:
        pattern = re.compile(text(field_name, value))
    except re.error as error:
        raise JobError(f"{field_name} {show(value)} is no regular expression: {error}; correct it") from None
    if len(named := [name for name in GROUPS if name in pattern.groupindex]) != 1:
        raise JobError(
            f"{field_name} {show(value)} names {len(named)} of the groups {', '.join(GROUPS)}; name one, for example "
            r"'samples=(?P<samples>\d+)'"
        )
    return pattern.pattern


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """`cache:` of the file. `reset` empties it, `warm` fills it; capacity in bytes."""

    _: KW_ONLY
    reset: Mapping[str, str] = option(
        "page_cache", structured("mapping", _reset), "how the cache is emptied before a cold window"
    )
    capacity: float | None = option(
        None, optional(structured("size", size_in_bytes)), "bytes it holds; without it, all data fit"
    )
    policy: str = option("lru", choice(POLICIES), "what it does when full")
    warm: str | None = option(None, optional(structured("text", _warm)), "a command that loads all data into it")
    coalesces: bool | None = option(
        None,
        optional(SWITCH),
        "whether jobs that miss one sample at once share one read (default: only the page cache)",
    )

    def __post_init__(self) -> None:
        apply_checks(self)


@dataclass(frozen=True, slots=True)
class CalibrationSpec:
    """`calibration:` of the file: how long windows are."""

    _: KW_ONLY
    samples: int | None = option(
        None,
        optional(SAMPLES),
        "samples of a window (default: a tenth of an epoch, but no longer than half of window_s)",
    )
    window_s: float = option(8.0, WINDOW, "seconds of a window of a job that cannot read a subset")
    repeats: int = option(1, whole(1, 10**4, "measurements"), "least number of measurements of each window")
    patience_s: float = option(120.0, WINDOW, "seconds without any progress after which a job counts as hung")

    def __post_init__(self) -> None:
        apply_checks(self)


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One of `jobs:`. `run` is a shell command or python:FILE:FUNCTION, relative to the folder of the file."""

    _: KW_ONLY
    name: str = option("", structured("text", _file_name), "name, also of its logs")
    run: str = option("", structured("text", text), "a command, or python:FILE:FUNCTION")
    arguments: Mapping[str, Any] = option(
        None, structured("mapping", _arguments), "arguments of the function, beside the subset it reads"
    )
    epochs: int = option(1, whole(1, 10**6, "epochs"), "passes over its data")
    samples: int | None = option(None, optional(SAMPLES), "samples of an epoch, when they differ from the other jobs'")
    data: Mapping[str, float] | None = option(
        None, optional(structured("mapping", _parts)), "parts of the data it reads, when they differ"
    )
    progress: str | None = option(
        None, optional(structured("text", _pattern)), "pattern of the log lines with its progress"
    )
    batch_size: int | None = option(None, optional(BATCH), "samples of a batch, for a pattern that counts batches")
    bytes_per_sample: float | None = option(None, optional(structured("size", size_in_bytes)), "mean size of a sample")

    def __post_init__(self) -> None:
        apply_checks(self)
        if self.is_python:
            if self.run.count(":") < 2 or not all(self.python_function):
                raise JobError(f"run {show(self.run)} has no file and function; write python:train.py:train")
            if clash := sorted({*PLACEHOLDERS, "progress"} & set(self.arguments)):
                raise JobError(f"arguments has {clash[0]!r}, which stagger itself gives; leave it out")
        else:
            if self.arguments:
                raise JobError("arguments go with run: python:FILE:FUNCTION; write those of a command into the command")
            for name in self.placeholders:
                if name not in PLACEHOLDERS:
                    raise JobError(
                        f"run has the placeholder {{{name}}}; nearest: {nearest(name, PLACEHOLDERS)}; "
                        "use these, and {{ }} for braces"
                    )
            try:
                self.run.format(**dict.fromkeys(PLACEHOLDERS, 1))
            except ValueError as error:
                raise JobError(f"run {show(self.run)} asks for no number: {error}; write {{samples}}, say") from None
        if self.progress and "batch" in re.compile(self.progress).groupindex and self.batch_size is None:
            raise JobError("progress counts batches but batch_size is missing; add batch_size: 32, say")

    @property
    def is_python(self) -> bool:
        return self.run.startswith(PYTHON)

    @property
    def python_function(self) -> tuple[str, str]:
        """File and function of python:FILE:FUNCTION."""
        file, _, function = self.run.removeprefix(PYTHON).rpartition(":")
        return file, function

    @property
    def placeholders(self) -> frozenset[str]:
        try:
            return frozenset(name for _, name, _, _ in string.Formatter().parse(self.run) if name is not None)
        except ValueError as error:
            raise JobError(f"run {show(self.run)} has an unpaired brace: {error}; write {{{{ }}}} for braces") from None

    @property
    def takes_subsets(self) -> bool:
        """Whether it can run any number of epochs of any subset of its data."""
        return self.is_python or self.placeholders >= set(PLACEHOLDERS)


@dataclass(frozen=True, slots=True)
class JobsFile:
    """The whole file. Paths and commands are relative to `folder`, the folder of the file.

    `code` says whether its commands may run, `emptied` is the cache folder that may be emptied whoever made it.
    """

    jobs: tuple[JobSpec, ...]
    cache: CacheSpec
    calibration: CalibrationSpec
    order: str
    folder: Path
    code: CodeRule = GIVEN
    emptied: Path | None = None

    def check_code(self, field: str, command: str) -> None:
        """Raise `JobError` where the file was read without leave to run its commands."""
        check_code(self.code, command, field, "launch the jobs with --run")

    def samples_of(self, job: JobSpec) -> int:
        assert job.samples is not None  # filled in when the file is read
        return job.samples

    def parts_of(self, job: JobSpec) -> Mapping[str, float]:
        assert job.data is not None  # filled in when the file is read
        return job.data

    @property
    def takes_subsets(self) -> bool:
        return all(job.takes_subsets for job in self.jobs)

    @property
    def coalesces(self) -> bool:
        """Whether jobs that miss one sample at once share one read. The page cache does: the kernel locks pages it
        reads."""
        stated = self.cache.coalesces
        return "page_cache" in self.cache.reset if stated is None else stated

    @property
    def same_order(self) -> bool:
        return self.order == "same"


_TOP = ("data", "samples", "bytes_per_sample", "cache", "jobs", "calibration", "order")
_JOB = ("name", "run", "arguments", "epochs", "samples", "data", "progress", "batch_size", "bytes_per_sample")


def read_jobs(path: str | Path, *, allow_code: bool = False, empty_cache: str | Path | None = None) -> JobsFile:
    """The checked content of a YAML or JSON file. Raises DataError with file, field and fix.

    Its commands run only with `allow_code`. `empty_cache` names the folder of `cache.reset`, where it holds files that
    staggering did not put there and may be emptied all the same.
    """
    content = read_mapping(path, "jobs file", "samples: 600")
    try:
        file = jobs_of(content, Path(path).absolute().parent)
        emptied = None if empty_cache is None else Path(empty_cache).absolute()
        return dataclasses.replace(file, code=rule_of(f"jobs file {str(path)!r}", allow_code), emptied=emptied)
    except DataError:
        raise
    except PrecisionTimeError as error:
        raise DataError(f"jobs file {str(path)!r}: {error}") from None


def jobs_of(content: Mapping[str, Any], folder: Path) -> JobsFile:
    """The checked content of a mapping. Raises JobError with field and fix."""
    fields = known_fields(plain_values("the file", content), _TOP, "the file")
    listed = fields.get("jobs")
    if not isinstance(listed, list) or not listed:
        raise JobError("jobs must be a list of at least one job; for example jobs: [{name: a, run: python train.py}]")
    defaults = {
        "data": _parts("data", fields.get("data", "data")),
        "samples": optional(SAMPLES)("samples", fields.get("samples")),
        "bytes_per_sample": optional(structured("size", size_in_bytes))(
            "bytes_per_sample", fields.get("bytes_per_sample")
        ),
    }
    jobs = tuple(_job(index, spec, defaults, folder) for index, spec in enumerate(listed))
    names = [job.name for job in jobs]
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        raise JobError(f"two jobs are called {twice[0]!r}; give them different names")
    cache_words = _section(fields, "cache", ("reset", "capacity", "policy", "warm", "coalesces"))
    calibration = _section(fields, "calibration", ("samples", "window_s", "repeats", "patience_s"))
    cache = _named("cache", CacheSpec, {"reset": "page_cache", **cache_words})
    if cache.capacity is not None and "folder" not in cache.reset:
        unknown = [job.name for job in jobs if job.bytes_per_sample is None]
        if unknown:
            raise JobError(
                f"cache.capacity needs bytes_per_sample of job {unknown[0]}, because only a folder can be weighed; "
                "add it, for example bytes_per_sample: 110kB"
            )
    if "folder" in cache.reset:
        _spared((folder / cache.reset["folder"]).resolve(), jobs, folder)
    return JobsFile(
        jobs,
        cache,
        _named("calibration", CalibrationSpec, calibration),
        word(ORDERS)("order", fields.get("order", "independent")),
        folder,
    )


def _job(index: int, spec: Any, defaults: Mapping[str, Any], folder: Path) -> JobSpec:
    where = f"jobs[{index}]"
    if not isinstance(spec, Mapping):
        raise JobError(f"{where} must be a mapping, not {show(spec)}; for example {{name: a, run: python train.py}}")
    fields = {**{k: v for k, v in defaults.items() if v is not None}, **known_fields(spec, _JOB, where)}
    fields.setdefault("name", f"job-{index + 1}")
    for needed in ("run", "samples"):
        if needed not in fields:
            raise JobError(f"{where} has no {needed}; add {needed}: {'600' if needed == 'samples' else 'COMMAND'}")
    job: JobSpec = _named(where, JobSpec, fields)
    if job.is_python and not (folder / job.python_function[0]).is_file():
        raise JobError(f"{where}.run names the file {job.python_function[0]!r}, which is not there; check the path")
    return job


def _spared(cache: Path, jobs: tuple[JobSpec, ...], folder: Path) -> None:
    """Raise JobError if emptying the cache folder would delete a data set or a job's file."""
    if cache.exists() and not cache.is_dir():
        raise JobError(f"cache.reset.folder {str(cache)!r} is a file; name the folder of the cache")
    if (cache / INDEX).exists():
        raise JobError(
            f"cache.reset.folder {str(cache)!r} is a data set, for it has an {INDEX}, and would be emptied; "
            "name the folder of the cache"
        )
    for job in jobs:
        file = (folder / job.python_function[0]).resolve()
        if job.is_python and file.is_relative_to(cache):
            raise JobError(
                f"cache.reset.folder {str(cache)!r} holds {file.name} of job {job.name!r}, and would be emptied; "
                "name the cache's own folder"
            )


def _section(fields: Mapping[str, Any], name: str, known: tuple[str, ...]) -> dict[str, Any]:
    spec = fields.get(name, {})
    if not isinstance(spec, Mapping):
        raise JobError(f"{name} must be a mapping of {', '.join(known)}, not {show(spec)}")
    return known_fields(spec, known, name)


def _named(where: str, noun: Any, spec: Mapping[str, Any]) -> Any:
    """The dataclass `noun` of these fields; its errors name the section."""
    try:
        return noun(**spec)
    except JobError as error:
        field = re.match(r"\w*", str(error))
        begins = field is not None and field[0] in {item.name for item in dataclasses.fields(noun)}
        raise JobError(f"{where}{'.' if begins else ': '}{error}") from None
