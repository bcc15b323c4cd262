"""The jobs that a command line names: model or job file, imported files, description of a cluster, flags."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Iterable
from typing import Any

from precision_time.cli.flags import FLAGS, VERIFY_AXES
from precision_time.cli.outputs import check_outputs
from precision_time.cli.parser import UsageError
from precision_time.cli.streams import note
from precision_time.errors import DataError, JobError
from precision_time.job import Job
from precision_time.job.code import ALLOWED, GIVEN, CodeRule
from precision_time.job.data import data_fields

_DECIDING = ("model", "gpus", "nodes", "layout", "batch_size", "grad_accum")
"""Flags that decide what else is taken from an imported file."""


def job_of(
    source: str | None,
    flags: dict[str, Any],
    imported: list[str] | None = None,
    allow_code: bool = False,
    chosen: Iterable[str] = (),
) -> Job:
    """The job of a model name or a job file: it overrides imported files, and `flags` override both.

    An imported file may leave the fields of `chosen` open: the command gives them values later.

    A model that is a Python file runs where the command line names it, or with `allow_code`.
    """
    from precision_time.reading import SUFFIXES, read_mapping

    if source is None and imported is None:
        if "model" not in flags:
            raise UsageError("no model is given; name one, for example precision-time predict resnet50")
        return Job.from_fields(flags, ALLOWED if allow_code else GIVEN)
    from_file = source is not None and source.lower().endswith(SUFFIXES) and not source.startswith("hf:")
    if source is not None and not from_file and "model" in flags:
        raise UsageError(f"the model is given twice, as {source!r} and by --model; keep one of them")
    fields: dict[str, Any] = {}
    if source is not None:
        fields = read_mapping(source) if from_file else {"model": source}
    if imported is not None:
        fields = _import(imported, fields, flags, chosen)
        if "model" not in fields and "model" not in flags:
            raise UsageError(f"file {_files(imported)} names no model; name one before --import")
    if not from_file and imported is None:
        return Job.from_fields({**fields, **flags}, ALLOWED if allow_code else GIVEN)
    if "gpus" in flags and "gpus" not in fields:  # a layout without GPUs is checked against those of the flag
        fields["gpus"] = Job("any", gpus=flags["gpus"]).gpus
    place = f"job file {source!r}" if from_file or imported is None else f"job file {_files(imported)}"
    given = "model" not in flags and source is not None and not from_file
    rule = ALLOWED if allow_code else GIVEN if given else CodeRule(place)
    try:
        job = Job.from_fields({"model": flags.get("model"), **fields}, rule)
    except JobError as error:
        raise DataError(f"{place}: {error}") from error
    for name in ("input", "model_config"):  # single keys override single keys
        if name in flags:
            flags = {**flags, name: {**getattr(job, name), **getattr(Job("any", **{name: flags[name]}), name)}}
    if "data" in flags:
        flags = {**flags, "data": job.data.updated(data_fields("data", flags["data"]))}
    return job.replace(**flags)


def one_job(options: Namespace, chosen: Iterable[str] = ()) -> Job:
    """The job of a command that takes one; `chosen` as in `job_of`."""
    flags = job_flags(options)
    fields = {**cluster_fields(options, flags), **flags}
    return job_of(options.source, fields, options.imported, options.allow_code, chosen)


def one_job_at_batch(options: Namespace) -> Job:
    """The same with the samples of a step that --global-batch-size asks for, by accumulation."""
    given, options.global_batch_size = options.global_batch_size, None  # it is answered here, also for a server
    if given is None:
        return one_job(options)
    from precision_time.field_types import BATCH
    from precision_time.global_batch import at_global_batch

    if options.grad_accum is not None:
        raise UsageError("--global-batch-size finds grad_accum, and --grad-accum gives it; leave one of them out")
    batch = BATCH("global_batch_size", given)
    return at_global_batch(one_job(options, ("grad_accum", "global_batch")), batch)


def _import(paths: list[str], fields: dict[str, Any], flags: dict[str, Any], chosen: Iterable[str]) -> dict[str, Any]:
    """The fields of other programs' files, overridden by `fields`; lists on stderr the settings not taken."""
    from precision_time.job.importers import merged, read_imports

    files = read_imports(paths)
    for path, imported in files:
        for text in imported.notes():
            if _answered(text, flags):
                continue
            note(f"note: {path} ({imported.kind}), not taken: {text}")
    deciding = {name: flags[name] for name in _DECIDING if name in flags}
    together = merged(files)
    try:
        found = together.job_fields({**fields, **deciding}, {*flags, *chosen})
    except JobError as error:
        raise DataError(f"file {_files(paths)}: {error}") from error
    if "gpus" not in {*together.fields, *fields, *flags, *chosen}:
        note(f"note: no file says how many GPUs; {found['gpus']} taken, give --gpus")
    if not {"precision", "schedule"} & {*found, *flags, *chosen}:
        note(f"note: no file says a precision; {Job('any').precision} taken, give --precision")
    return {name: value for name, value in found.items() if name not in deciding or name in fields}


def _answered(text: str, flags: dict[str, Any]) -> bool:
    """Whether all flags that a note asks for are given."""
    asked = re.findall(r"--([a-z][a-z-]+)", text.rpartition("; give ")[2]) if "; give --" in text else []
    return bool(asked) and all(name.replace("-", "_") in flags for name in asked)


def _files(paths: list[str]) -> str:
    return " and ".join(map(repr, paths))


def job_flags(options: Namespace) -> dict[str, Any]:
    """The job fields given as flags; the values of a flag that takes several become one list."""
    fields: dict[str, Any] = {}
    for flag in FLAGS:
        value = getattr(options, flag.field, None)
        if isinstance(value, list):
            value = [part.strip() for text in value for part in _values(flag.field, text) if part.strip()]
        if value in ("", []):
            raise UsageError(f"flag {flag.text} is empty; give it a value or leave it out")
        if value is not None:
            fields[flag.field] = value
    if given_anchors := getattr(options, "anchor", []):
        fields["anchors"] = [*filter(None, [fields.get("anchors")]), *given_anchors]
    return fields


def cluster_fields(options: Namespace, flags: dict[str, Any]) -> dict[str, Any]:
    """gpu, gpus and nodes of the file of `--cluster`, but those that flags decide."""
    if options.cluster is None:
        return {}
    from precision_time.hardware import default_catalog, load_device_file
    from precision_time.hardware.cluster_nodes import job_fields, read_nodes

    catalog = load_device_file(flags["device"]) if "device" in flags else default_catalog()
    fields = job_fields(read_nodes(options.cluster), catalog)
    decided = {*flags, *(("nodes",) if "gpus" in flags else ())}
    return {name: value for name, value in fields.items() if name not in decided}


def _values(field: str, text: str) -> list[str]:
    """The values of a flag that takes several; a layout of degrees is one, commas and all."""
    return [text] if field == "layout" and "=" in text else text.split(",")


def jobs_to_measure(options: Namespace) -> tuple[list[Job], dict[str, list[Any]]]:
    """The jobs that are named, and the precisions and counts to cross them with."""
    fields = job_flags(options)
    fields.pop("device", None)  # the machine itself, not part of the jobs
    axes = {name: fields.pop(name) for name in VERIFY_AXES if name in fields}
    jobs = [job_of(source, fields, allow_code=options.allow_code) for source in options.source]
    check_outputs(options, jobs)
    for job in jobs:
        if job.layout != "dp" or job.recompute != "none":
            setting = f"layout {job.layout}" if job.layout != "dp" else f"recompute {job.recompute}"
            raise UsageError(f"{setting} cannot be trained here, only layout dp without recomputation; leave it out")
    if fields and not jobs:
        flag = "--" + next(iter(fields)).replace("_", "-")
        raise UsageError(f"flag {flag} needs a model; name one, or leave the flag out")
    return jobs, axes
