"""One function per command: from parsed arguments to the text to print."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from precision_time.cli.flags import AXES, FLAGS, VERIFY_AXES
from precision_time.cli.outputs import check_file
from precision_time.cli.parser import DEFAULT_PRECISIONS, UsageError, build_parser
from precision_time.errors import DataError, JobError
from precision_time.job import Job
from precision_time.job.data import data_words

if TYPE_CHECKING:
    from precision_time.hardware import Price

_DECIDING = ("model", "gpus", "nodes", "layout", "batch_size", "grad_accum")
"""Flags that decide what else is taken from an imported file."""


def predict(given: Namespace) -> str:
    job = job_of(given.source, _said(given), given.imported)
    if given.predictor != "line":
        return _by_predictor(given, job)
    from precision_time.prediction import predict as whole_line

    estimate = whole_line(job)
    if given.largest_batch:
        from precision_time.largest_batch import with_largest_batch

        estimate = with_largest_batch(estimate)
    if given.trace:
        from precision_time.job.file import write_whole

        write_whole(given.trace, _json(estimate.trace_events(), indent=None).encode())
        print(f"trace written to {given.trace} (open it in ui.perfetto.dev)", file=sys.stderr)
    return _json(estimate.to_dict()) if given.json else str(estimate)


def _by_predictor(given: Namespace, job: Job) -> str:
    from precision_time.cli.reproducing import by_predictor

    for flag in ("trace", "largest_batch"):
        if getattr(given, flag):
            raise UsageError(f"--{flag.replace('_', '-')} needs the timeline of predictor line; leave --predictor out")
    if job.data:
        raise UsageError(
            f"data is known to predictor line only, not to {given.predictor}; leave out data or --predictor"
        )
    text, content = by_predictor(given.predictor, given.trained, job)
    return _json(content) if given.json else text


def compare(given: Namespace) -> str:
    from precision_time.cli.progress import Progress
    from precision_time.comparison import compare as run
    from precision_time.comparison import cross, distinct

    if given.plot:
        from precision_time.comparison_plot import check_picture

        check_picture(given.plot)
        check_file("--plot", given.plot)
    said = _said(given)
    axes = {word: said.pop(word) for word in AXES if word in said}
    if "precision" not in axes and all(len(values) == 1 for values in axes.values()):
        axes["precision"] = DEFAULT_PRECISIONS.split(",")
    first = {word: values[0] for word, values in axes.items()}  # so that a layout meets GPUs that are asked for
    bases = [job_of(source, {**said, **first}, given.imported) for source in given.source or [None]]
    jobs = distinct(job for base in bases for job in cross(base, **axes))
    with Progress("jobs") as progress:
        comparison = run(jobs, progress=progress, workers=None)
    if comparison.baseline is None:
        raise UsageError(comparison.rows[0].error or "nothing to compare")
    if given.plot:
        comparison.plot(given.plot)
        print(f"picture written to {given.plot}", file=sys.stderr)
    return _json(comparison.to_dict()) if given.json else str(comparison)


def evaluate(given: Namespace) -> str:
    from precision_time.cli.evaluation import evaluate as whole

    evaluation, worst = whole(given)
    return _json(evaluation.to_dict()) if given.json else evaluation.text(worst)


def stagger(given: Namespace) -> str:
    from precision_time.cli.staggering import stagger as whole

    content, text = whole(given)
    return _json(content) if given.json else text


def calibrate(given: Namespace) -> str:
    from precision_time.cli.measuring import calibrate as whole
    from precision_time.cli.measuring import calibrate_storage

    if given.storage is not None:
        probe, text = calibrate_storage(given)
        return _json(probe) if given.json else text
    jobs, said = _to_measure(given)
    content, text = whole(given, jobs, said.get("precision", []))
    return _json(content) if given.json else text


def measure(given: Namespace) -> str:
    from precision_time.cli.measuring import measure as whole

    jobs, said = _to_measure(given)
    found = whole(given, jobs, said.get("precision", []))
    return _json(found.to_dict()) if given.json else str(found)


def verify(given: Namespace) -> str:
    from precision_time.cli.measuring import verify as whole

    jobs, said = _to_measure(given)
    counts = [Job("any", gpus=count).gpus for count in said.get("gpus", [])]
    result = whole(given, jobs, said.get("precision", []), counts)
    return _json(result.to_dict()) if given.json else str(result)


def runs(given: Namespace) -> str:
    from precision_time.cli.measuring import runs as whole

    found = whole(given)
    return _json(found.to_dict()) if given.json else str(found)


def _to_measure(given: Namespace) -> tuple[list[Job], dict[str, list[Any]]]:
    """The jobs that are named, and the precisions and counts to cross them with."""
    said = _said(given)
    said.pop("device", None)  # the machine itself, not part of the jobs
    axes = {word: said.pop(word) for word in VERIFY_AXES if word in said}
    jobs = [job_of(source, said) for source in given.source]
    for job in jobs:
        if job.layout != "dp" or job.recompute != "none":
            what = f"layout {job.layout}" if job.layout != "dp" else f"recompute {job.recompute}"
            raise UsageError(f"{what} cannot be trained here, only layout dp without recomputation; leave it out")
    if said and not jobs:
        raise UsageError(f"flag --{next(iter(said)).replace('_', '-')} needs a model; name one, or leave the flag out")
    return jobs, axes


def train(given: Namespace) -> str:
    from precision_time.cli.reproducing import train as whole

    return whole(given)


def reproduce(given: Namespace) -> str:
    from precision_time.cli.reproducing import reproduce as whole

    report = whole(given)
    return _json(report.to_dict()) if given.json else str(report)


def fit(given: Namespace) -> str:
    from precision_time.cli.fitting import fit as whole

    text = whole(given)
    return _json({"said": text}) if given.json else text


def zoo(given: Namespace) -> str:
    from precision_time.text_table import format_table
    from precision_time.zoo.catalog import ENTRIES

    found = [ENTRIES[name] for name in sorted(ENTRIES) if (given.filter or "").lower() in name]
    if not found:
        raise _nothing("model", given.filter, ENTRIES)
    if given.json:
        words = ("name", "family", "dataset", "optimizer", "batch_size", "parameters")
        return _json([
            {**{w: getattr(e, w) for w in words}, "input": dict(e.input), "model_config": dict(e.config)}
            for e in found
        ])  # fmt: skip
    rows = [
        [
            e.name,
            e.family,
            _words(e.input),
            e.dataset,
            e.optimizer,
            str(e.batch_size),
            _millions(e.parameters),
        ]
        for e in found
    ]
    return format_table(["model", "family", "input", "dataset", "optimizer", "batch", "parameters"], rows, left=5)


def gpus(given: Namespace) -> str:
    from precision_time.hardware import default_catalog, load_device_file
    from precision_time.text_table import format_table

    catalog = load_device_file(given.device) if given.device else default_catalog()
    if given.prices:
        return _prices(list(catalog.prices.values()), given.filter or "", given.json)
    found = [gpu for name, gpu in catalog.gpus.items() if (given.filter or "").lower() in name.lower()]
    if not found:
        raise _nothing("gpu", given.filter, catalog.gpus)
    if given.json:
        return _json([
            {
                "name": gpu.name,
                "vendor": gpu.vendor,
                "arch": gpu.arch,
                "memory_bytes": gpu.memory_bytes,
                "memory_bytes_per_s": gpu.memory_bytes_per_s,
                "peaks_flop_per_s": dict(gpu.peaks),
                "sources": gpu.sources,
            }
            for gpu in found
        ])  # fmt: skip
    kinds = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8")
    rows = [
        [
            gpu.name,
            gpu.arch,
            f"{gpu.memory_bytes / 2**30:.0f}",
            f"{gpu.memory_bytes_per_s / 1e9:,.0f}",
            *(f"{gpu.peaks[kind] / 1e12:,.1f}" if kind in gpu.peaks else "-" for kind in kinds),
        ]
        for gpu in found
    ]
    table = format_table(["gpu", "arch", "GiB", "GB/s", *kinds], rows, left=2)
    return f"{table}\n\nfp64 to fp8: dense peaks in TFLOP/s"


def _prices(known: list[Price], text: str, as_json: bool) -> str:
    """Cloud instances whose name, provider or GPU contains the text, the cheapest GPU hour of each GPU first."""
    from dataclasses import asdict

    from precision_time.text_table import format_table

    found = [p for p in known if any(text.lower() in word.lower() for word in (p.instance, p.provider, p.gpu))]
    if not found:
        raise _nothing("price", text, {word for p in known for word in (p.instance, p.provider, p.gpu)})
    found.sort(key=lambda p: (p.gpu, p.usd_per_gpu_hour))
    if as_json:
        return _json([asdict(p) for p in found])
    heads = ["gpu", "provider", "instance", "region", "as of", "trust", "GPUs", "$/hour", "$/GPU-hour"]
    rows = [
        [
            p.gpu, p.provider, p.instance, p.region, p.as_of, p.trust,
            str(p.gpus), f"{p.usd_per_hour:,.2f}", f"{p.usd_per_gpu_hour:,.2f}",
        ]
        for p in found
    ]  # fmt: skip
    return f"{format_table(heads, rows, left=6)}\n\non-demand list prices; they change. Sources: --json"


def completion(shell: str) -> str:
    """The completion script of a shell."""
    import shtab

    if shell not in shtab.SUPPORTED_SHELLS:
        raise UsageError(f"the installed shtab has no {shell} completion; run pip install -U shtab")
    return str(shtab.complete(build_parser(for_completion=True), shell))


def job_of(source: str | None, said: dict[str, Any], imported: str | None = None) -> Job:
    """The job of a model name or a job file, over that of an imported file, with the flags that were said on top."""
    from precision_time.job.file import SUFFIXES, read_mapping

    if source is None and imported is None:
        if "model" not in said:
            raise UsageError("no model is given; name one, for example precision-time predict resnet50")
        return Job.from_dict(said)
    from_file = source is not None and source.lower().endswith(SUFFIXES) and not source.startswith("hf:")
    if source is not None and not from_file and "model" in said:
        raise UsageError(f"the model is given twice, as {source!r} and by --model; keep one of them")
    words: dict[str, Any] = {}
    if source is not None:
        words = read_mapping(source) if from_file else {"model": source}
    if imported is not None:
        words = _import(imported, words, said)
        if "model" not in words and "model" not in said:
            raise UsageError(f"file {imported!r} names no model; name one before --import")
    if not from_file and imported is None:
        return Job.from_dict({**words, **said})
    if "gpus" in said and "gpus" not in words:  # a layout without GPUs is checked against those of the flag
        words["gpus"] = Job("any", gpus=said["gpus"]).gpus
    try:
        job = Job.from_dict({"model": said.get("model"), **words})
    except JobError as error:
        raise DataError(f"job file {(source if from_file else imported)!r}: {error}") from error
    for word in ("input", "model_config"):  # single keys override single keys
        if word in said:
            said = {**said, word: {**getattr(job, word), **getattr(Job("any", **{word: said[word]}), word)}}
    if "data" in said:
        said = {**said, "data": job.data.updated(data_words("data", said["data"]))}
    return job.replace(**said)


def _import(path: str, words: dict[str, Any], said: dict[str, Any]) -> dict[str, Any]:
    """The words of another program's file under those of the job file; says on stderr what was not taken."""
    from precision_time.job.importers import read_import

    found = read_import(path)
    for note in found.notes():
        print(f"note: {path} ({found.kind}), not taken: {note}", file=sys.stderr)
    flags = {word: said[word] for word in _DECIDING if word in said}
    merged = found.job_words({**words, **flags})
    return {word: value for word, value in merged.items() if word not in flags or word in words}


def _said(given: Namespace) -> dict[str, Any]:
    """The job words on the command line; the values of a flag that takes several become one list."""
    said: dict[str, Any] = {}
    for flag in FLAGS:
        value = getattr(given, flag.word, None)
        if isinstance(value, list):
            value = [part.strip() for text in value for part in _values(flag.word, text) if part.strip()]
        if value in ("", []):
            raise UsageError(f"flag {flag.text} is empty; give it a value or leave it out")
        if value is not None:
            said[flag.word] = value
    if given_anchors := getattr(given, "anchor", []):
        said["anchors"] = [*filter(None, [said.get("anchors")]), *given_anchors]
    return said


def _values(word: str, text: str) -> list[str]:
    """The values of a flag that takes several; a layout of degrees is one, commas and all."""
    return [text] if word == "layout" and "=" in text else text.split(",")


def _json(value: Any, indent: int | None = 2) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=False)


def _nothing(kind: str, given: str, names: Iterable[str]) -> UsageError:
    from precision_time.errors import nearest

    return UsageError(f"no {kind} name contains {given!r}; nearest: {nearest(given, names)}; leave it out for all")


def _words(values: Any) -> str:
    return " ".join(f"{k}={'x'.join(map(str, v)) if isinstance(v, tuple) else v}" for k, v in values.items())


def _millions(count: int) -> str:
    return f"{count / 1e6:,.1f} M" if count else "-"
