"""One function per command: from parsed arguments to the text to print."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from precision_time.cli.arguments import DEFAULT_PRECISIONS
from precision_time.cli.flags import AXES, FLAGS, VERIFY_AXES
from precision_time.cli.outputs import check_outputs
from precision_time.cli.parser import UsageError, build_parser
from precision_time.cli.streams import note
from precision_time.errors import DataError, JobError
from precision_time.job import Job
from precision_time.job.code import ALLOWED, GIVEN, CodeRule
from precision_time.job.data import data_fields
from precision_time.reading import to_json

if TYPE_CHECKING:
    from precision_time.hardware import Price

_CHOSEN = ("gpu", "gpus", "precision", "layout")
"""Flags of `plan` that give several values to choose among, not fields of the job."""
_DECIDING = ("model", "gpus", "nodes", "layout", "batch_size", "grad_accum")
"""Flags that decide what else is taken from an imported file."""


def predict(options: Namespace) -> str:
    job = _one_job(options)
    check_outputs(options, [job])
    if options.predictor != "simulator":
        return _by_predictor(options, job)
    from precision_time.prediction import predict as predict_job

    estimate = predict_job(job)
    if options.largest_batch:
        from precision_time.largest_batch import with_largest_batch

        estimate = with_largest_batch(estimate)
    if options.trace:
        from precision_time.report.write import write_whole

        write_whole(options.trace, _json(estimate.trace_events(), indent=None))
        note(f"trace written to {options.trace} (open it in ui.perfetto.dev)")
    return _json(estimate.to_dict()) if options.json else str(estimate)


def _by_predictor(options: Namespace, job: Job) -> str:
    from precision_time.cli.training import predict_by

    for flag in ("trace", "largest_batch"):
        if getattr(options, flag):
            text = flag.replace("_", "-")
            raise UsageError(f"--{text} needs the timeline of predictor simulator; leave --predictor out")
    if job.data:
        raise UsageError(
            f"data is known to predictor simulator only, not to {options.predictor}; leave out data or --predictor"
        )
    text, content = predict_by(options.predictor, options.trained, job)
    return _json(content) if options.json else text


def compare(options: Namespace) -> str:
    from precision_time.cli.comparing import compared
    from precision_time.comparison import crossed
    from precision_time.field_types import BATCH
    from precision_time.global_batch import at_global_batch

    if options.plot:
        from precision_time.report.figure import image_kind, require_matplotlib

        image_kind(options.plot)
        require_matplotlib()
    fields = _job_flags(options)
    axes = {name: fields.pop(name) for name in AXES if name in fields}
    if "precision" not in axes and all(len(values) == 1 for values in axes.values()):
        axes["precision"] = DEFAULT_PRECISIONS.split(",")
    fields |= _cluster_fields(options, {**fields, **axes})
    first = {name: values[0] for name, values in axes.items()}  # so that a layout meets GPUs that are asked for
    bases = [
        job_of(source, {**fields, **first}, options.imported, options.allow_code) for source in options.source or [None]
    ]
    jobs = crossed(bases, axes)
    if options.global_batch_size is not None:
        batch = BATCH("global_batch_size", options.global_batch_size)
        jobs = [at_global_batch(job, batch) for job in jobs]
    check_outputs(options, bases)
    comparison = compared(options, jobs)
    return _json(comparison.to_dict()) if options.json else str(comparison)


def plan(options: Namespace) -> str:
    from precision_time.cli.planning import plan as run

    flags = _job_flags(options)
    for name in _CHOSEN:
        flags.pop(name, None)
    if options.layout not in (None, "auto"):
        flags["layout"] = options.layout
    chosen = [name for name in _CHOSEN if getattr(options, name) is not None]
    job = job_of(options.source, flags, options.imported, options.allow_code, chosen)
    check_outputs(options, [job])
    content, text = run(options, job)
    return _json(content) if options.json else text


def layouts(options: Namespace) -> str:
    from precision_time.cli.planning import layouts as run

    content, text = run(options, _one_job(options))
    return _json(content) if options.json else text


def walltime(options: Namespace) -> str:
    from precision_time.cli.planning import walltime as run

    content, text = run(options, _one_job(options))
    return _json(content) if options.json else text


def slurm(options: Namespace) -> str:
    return _limits(options, "slurm")


def kubernetes(options: Namespace) -> str:
    return _limits(options, "kubernetes")


def _limits(options: Namespace, kind: str) -> str:
    from precision_time.cli.planning import limits as run
    from precision_time.plan.time_limits import job_fields

    options.imported = [options.file, *(options.imported or [])]
    found = job_fields(kind, options.file)
    if options.gpu is None:
        options.gpu = found.get("gpu")
    content, text = run(options, kind, _one_job(options))
    return _json(content) if options.json else text


def evaluate(options: Namespace) -> str:
    from precision_time.cli.evaluation import evaluate as run

    evaluation, worst = run(options)
    return _json(evaluation.to_dict()) if options.json else evaluation.text(worst)


def stagger(options: Namespace) -> str:
    from precision_time.cli.staggering import stagger as run

    content, text = run(options)
    return _json(content) if options.json else text


def search(options: Namespace) -> str:
    from precision_time.cli.searching import names_job
    from precision_time.cli.searching import search as run

    job = job_of(options.source, {}, allow_code=options.allow_code) if names_job(options) else None
    check_outputs(options, [job] if job else [])
    content, text = run(options, _job_flags(options), job)
    return _json(content) if options.json else text


def calibrate(options: Namespace) -> str:
    from precision_time.cli.measuring import calibrate as run
    from precision_time.cli.measuring import calibrate_storage

    if options.storage is not None:
        probe, text = calibrate_storage(options)
        return _json(probe) if options.json else text
    jobs, axes = _to_measure(options)
    content, text = run(options, jobs, axes.get("precision", []))
    return _json(content) if options.json else text


def measure(options: Namespace) -> str:
    from precision_time.cli.measuring import measure as run

    jobs, axes = _to_measure(options)
    result = run(options, jobs, axes.get("precision", []))
    return _json(result.to_dict()) if options.json else str(result)


def verify(options: Namespace) -> str:
    from precision_time.cli.measuring import verify as run

    jobs, axes = _to_measure(options)
    counts = [Job("any", gpus=count).gpus for count in axes.get("gpus", [])]
    result = run(options, jobs, axes.get("precision", []), counts)
    return _json(result.to_dict()) if options.json else str(result)


def runs(options: Namespace) -> str:
    from precision_time.cli.measuring import runs as run

    result = run(options)
    return _json(result.to_dict()) if options.json else str(result)


def _to_measure(options: Namespace) -> tuple[list[Job], dict[str, list[Any]]]:
    """The jobs that are named, and the precisions and counts to cross them with."""
    fields = _job_flags(options)
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


def train(options: Namespace) -> str:
    from precision_time.cli.training import train as run

    return run(options)


def reproduce(options: Namespace) -> str:
    from precision_time.cli.training import reproduce as moved

    return moved(options)


def fit(options: Namespace) -> str:
    from precision_time.cli.fitting import fit as run

    text = run(options)
    return _json({"report": text}) if options.json else text


def skeleton(options: Namespace) -> str:
    from precision_time.capture.skeleton import skeleton as run

    text = run(options.file)
    return _json({"text": text}) if options.json else text.rstrip("\n")


def zoo(options: Namespace) -> str:
    from precision_time.report.table import Table
    from precision_time.zoo.catalog import ENTRIES
    from precision_time.zoo.names import find, nearest_models

    text = options.filter or ""
    entries = [ENTRIES[name] for name in sorted(ENTRIES) if text.lower() in name]
    if not entries:
        entry = find(text)
        if entry is None:
            raise _no_match("model", text, nearest_models(text))
        entries = [entry]
    if options.json:
        names = ("name", "family", "dataset", "optimizer", "batch_size", "parameters", "parameters_source")
        return _json(
            [
                {**{name: getattr(e, name) for name in names}, "input": dict(e.input), "model_config": dict(e.config)}
                for e in entries
            ]
        )
    rows = [
        [
            e.name,
            e.family,
            _joined(e.input),
            e.dataset,
            e.optimizer,
            str(e.batch_size),
            _millions(e.parameters),
        ]
        for e in entries
    ]
    return Table(["model", "family", "input", "dataset", "optimizer", "batch", "parameters"], rows, left=5).text()


def gpus(options: Namespace) -> str:
    from precision_time.hardware import default_catalog, load_device_file
    from precision_time.report.table import Table

    catalog = load_device_file(options.device) if options.device else default_catalog()
    if options.prices:
        return _prices(list(catalog.prices.values()), options.filter or "", options.json)
    devices = catalog.gpus_like(options.filter or "")
    if options.json:
        return _json(
            [
                {
                    "name": gpu.name,
                    "vendor": gpu.vendor,
                    "arch": gpu.arch,
                    "memory_bytes": gpu.memory_bytes,
                    "memory_bytes_per_s": gpu.memory_bytes_per_s,
                    "peaks_flop_per_s": dict(gpu.peaks),
                    "sources": gpu.sources,
                }
                for gpu in devices
            ]
        )
    kinds = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8")
    rows = [
        [
            gpu.name,
            gpu.arch,
            f"{gpu.memory_bytes / 2**30:.0f}",
            f"{gpu.memory_bytes_per_s / 1e9:,.0f}",
            *(f"{gpu.peaks[kind] / 1e12:,.1f}" if kind in gpu.peaks else "-" for kind in kinds),
        ]
        for gpu in devices
    ]
    table = Table(["gpu", "arch", "GiB", "GB/s", *kinds], rows, left=2).text()
    return f"{table}\n\nfp64 to fp8: dense peaks in TFLOP/s"


def _prices(known: list[Price], text: str, as_json: bool) -> str:
    """Cloud instances whose name, provider or GPU contains the text, the cheapest GPU hour of each GPU first."""
    from dataclasses import asdict

    from precision_time.errors import nearest
    from precision_time.report.table import Table

    prices = [p for p in known if any(text.lower() in column.lower() for column in (p.instance, p.provider, p.gpu))]
    if not prices:
        raise _no_match("price", text, nearest(text, {c for p in known for c in (p.instance, p.provider, p.gpu)}))
    prices.sort(key=lambda p: (p.gpu, p.usd_per_gpu_hour))
    if as_json:
        return _json([asdict(p) for p in prices])
    heads = ["gpu", "provider", "instance", "region", "as of", "trust", "GPUs", "$/hour", "$/GPU-hour"]
    rows = [
        [
            p.gpu,
            p.provider,
            p.instance,
            p.region,
            p.as_of,
            p.trust,
            str(p.gpus),
            f"{p.usd_per_hour:,.2f}",
            f"{p.usd_per_gpu_hour:,.2f}",
        ]
        for p in prices
    ]
    return f"{Table(heads, rows, left=6).text()}\n\non-demand list prices; they change. Sources: --json"


def completion(shell: str) -> str:
    """The completion script of a shell."""
    import shtab

    if shell not in shtab.SUPPORTED_SHELLS:
        raise UsageError(f"the installed shtab has no {shell} completion; run pip install -U shtab")
    return str(shtab.complete(build_parser(for_completion=True), shell))


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


def _one_job(options: Namespace) -> Job:
    """The job of a command that takes one."""
    flags = _job_flags(options)
    return job_of(options.source, {**_cluster_fields(options, flags), **flags}, options.imported, options.allow_code)


def _import(paths: list[str], fields: dict[str, Any], flags: dict[str, Any], chosen: Iterable[str]) -> dict[str, Any]:
    """The fields of other programs' files, overridden by `fields`; lists on stderr the settings not taken."""
    from precision_time.job.importers import merged, read_imports

    files = read_imports(paths)
    for path, imported in files:
        for text in imported.notes():
            note(f"note: {path} ({imported.kind}), not taken: {text}")
    deciding = {name: flags[name] for name in _DECIDING if name in flags}
    together = merged(files)
    try:
        found = together.job_fields({**fields, **deciding}, {*flags, *chosen})
    except JobError as error:
        raise DataError(f"file {_files(paths)}: {error}") from error
    if "gpus" not in {*together.fields, *fields, *flags, *chosen}:
        note(f"note: no file says how many GPUs; {found['gpus']} taken, give --gpus")
    return {name: value for name, value in found.items() if name not in deciding or name in fields}


def _files(paths: list[str]) -> str:
    return " and ".join(map(repr, paths))


def _job_flags(options: Namespace) -> dict[str, Any]:
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


def _cluster_fields(options: Namespace, flags: dict[str, Any]) -> dict[str, Any]:
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


def _json(value: Any, indent: int | None = 2) -> str:
    return to_json(value, indent, ensure_ascii=False)


def _no_match(kind: str, text: str, nearest: str) -> UsageError:
    return UsageError(f"no {kind} name contains {text!r}; nearest: {nearest}; leave it out for all")


def _joined(values: Any) -> str:
    return " ".join(f"{k}={'x'.join(map(str, v)) if isinstance(v, tuple) else v}" for k, v in values.items())


def _millions(count: int) -> str:
    return f"{count / 1e6:,.1f} M" if count else "-"
