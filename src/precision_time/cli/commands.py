"""One function per command: from parsed arguments to the text to print."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precision_time.cli.arguments import DEFAULT_PRECISIONS
from precision_time.cli.flags import AXES
from precision_time.cli.jobs import cluster_fields, job_flags, job_of, jobs_to_measure, one_job, one_job_at_batch
from precision_time.cli.outputs import check_outputs
from precision_time.cli.parser import UsageError
from precision_time.cli.streams import note
from precision_time.job import Job
from precision_time.reading import to_json

if TYPE_CHECKING:
    from precision_time.estimate.estimate import Estimate

_CHOSEN = ("gpu", "gpus", "precision", "layout")
"""Flags of `plan` that give several values to choose among, not fields of the job."""
_OF_SIMULATOR = {"trace": "timeline", "plot": "breakdown", "largest_batch": "memory", "quantile": "distribution"}
"""Flags of `predict` -> what they need of the simulator's estimate."""


def predict(options: Namespace) -> str:
    if (script := _script(options)) is not None:
        return script
    job = one_job_at_batch(options)
    check_outputs(options, [job])
    if options.plot:
        _check_picture(options.plot)
    if options.server is not None:
        from precision_time.cli.remote import predict as ask

        return _shown(options, ask(options, job))
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
    return _shown(options, estimate)


def _script(options: Namespace) -> str | None:
    """What `skeleton` prints, where the model is a training script without a make_job; None for anything else."""
    source = options.source
    if source is None or not source.endswith(".py") or options.json or options.imported is not None:
        return None
    from precision_time.capture.defined_names import defined_names
    from precision_time.capture.skeleton import skeleton as run

    known = defined_names(source) if Path(source).is_file() else None
    if known is None or "make_job" in known:
        return None
    text = run(source).rstrip("\n")
    note(
        f"note: {source} has no make_job, so nothing is predicted and it was not run; this is what its text says, and "
        "flags belong to the command line in it"
    )
    return text


def _shown(options: Namespace, estimate: Estimate) -> str:
    """An estimate with the quantile and the picture that the flags ask for."""
    if options.quantile is not None:
        estimate = estimate.with_quantile(options.quantile)
    if options.plot:
        estimate.plot(options.plot)
        note(f"picture written to {options.plot}")
    return _json(estimate.to_dict()) if options.json else str(estimate)


def _check_picture(path: str) -> None:
    """Raises before the work where the picture cannot be drawn."""
    from precision_time.report.figure import image_kind, require_matplotlib

    image_kind(path)
    require_matplotlib()


def _by_predictor(options: Namespace, job: Job) -> str:
    from precision_time.cli.training import predict_by

    for flag, needed in _OF_SIMULATOR.items():
        if getattr(options, flag):
            text = flag.replace("_", "-")
            raise UsageError(f"--{text} needs the {needed} of predictor simulator; leave --predictor out")
    if job.data:
        raise UsageError(
            f"data is known to predictor simulator only, not to {options.predictor}; leave out data or --predictor"
        )
    text, content = predict_by(options.predictor, options.trained, job)
    return _printed(content, text, options)


def compare(options: Namespace) -> str:
    from precision_time.cli.comparing import compared
    from precision_time.comparison import crossed

    if options.plot:
        _check_picture(options.plot)
    fields = job_flags(options)
    axes = {name: fields.pop(name) for name in AXES if name in fields}
    if "precision" not in axes and all(len(values) == 1 for values in axes.values()):
        axes["precision"] = DEFAULT_PRECISIONS.split(",")
    fields |= cluster_fields(options, {**fields, **axes})
    first = {name: values[0] for name, values in axes.items()}  # so that a layout meets GPUs that are asked for
    bases = [
        job_of(source, {**fields, **first}, options.imported, options.allow_code) for source in options.source or [None]
    ]
    if options.largest_batch and "batch_size" in axes:
        raise UsageError("--largest-batch finds batch_size, and --batch-size gives it; leave one of them out")
    if options.server is not None:
        from precision_time.cli.remote import compare as ask

        comparison = ask(options, bases, axes)
        return _json(comparison.to_dict()) if options.json else str(comparison)
    jobs = crossed(bases, axes)
    check_outputs(options, bases)
    comparison = compared(options, jobs)
    return _json(comparison.to_dict()) if options.json else str(comparison)


def plan(options: Namespace) -> str:
    from precision_time.cli.planning import plan as run

    flags = job_flags(options)
    for name in _CHOSEN:
        flags.pop(name, None)
    if options.layout not in (None, "auto"):
        flags["layout"] = options.layout
    chosen = [name for name in _CHOSEN if getattr(options, name) is not None]
    job = job_of(options.source, flags, options.imported, options.allow_code, chosen)
    check_outputs(options, [job])
    if options.server is not None:
        from precision_time.cli.remote import plan as ask

        content, text = ask(options, job)
    else:
        content, text = run(options, job)
    return _printed(content, text, options)


def layouts(options: Namespace) -> str:
    from precision_time.cli.planning import layouts as run

    content, text = run(options, one_job(options))
    return _printed(content, text, options)


def walltime(options: Namespace) -> str:
    from precision_time.cli.planning import walltime as here
    from precision_time.cli.remote import walltime as there

    content, text = (here if options.server is None else there)(options, one_job_at_batch(options))
    return _printed(content, text, options)


def slurm(options: Namespace) -> str:
    return _limits(options, "slurm")


def kubernetes(options: Namespace) -> str:
    return _limits(options, "kubernetes")


def _limits(options: Namespace, kind: str) -> str:
    from precision_time.cli.planning import limits as run
    from precision_time.plan.time_limits import gpu_of

    options.imported = [options.file, *(options.imported or [])]
    options.gpu = gpu_of(kind, options.file, options.gpu)
    content, text = run(options, kind, one_job_at_batch(options))
    return _printed(content, text, options)


def evaluate(options: Namespace) -> str:
    from precision_time.cli.evaluation import evaluate as run

    evaluation, worst = run(options)
    return _json(evaluation.to_dict()) if options.json else evaluation.text(worst)


def stagger(options: Namespace) -> str:
    from precision_time.cli.staggering import stagger as run

    return _printed(*run(options), options)


def search(options: Namespace) -> str:
    from precision_time.cli.searching import names_job
    from precision_time.cli.searching import search as run

    job = job_of(options.source, {}, allow_code=options.allow_code) if names_job(options) else None
    check_outputs(options, [job] if job else [])
    content, text = run(options, job_flags(options), job)
    return _printed(content, text, options)


def calibrate(options: Namespace) -> str:
    from precision_time.cli.measuring import calibrate as run
    from precision_time.cli.measuring import calibrate_storage

    if options.storage is not None:
        probe, text = calibrate_storage(options)
        return _json(probe) if options.json else text
    jobs, axes = jobs_to_measure(options)
    content, text = run(options, jobs, axes.get("precision", []))
    return _printed(content, text, options)


def measure(options: Namespace) -> str:
    from precision_time.cli.measuring import measure as run

    jobs, axes = jobs_to_measure(options)
    result = run(options, jobs, axes.get("precision", []))
    return _json(result.to_dict()) if options.json else str(result)


def verify(options: Namespace) -> str:
    from precision_time.cli.measuring import verify as run

    jobs, axes = jobs_to_measure(options)
    counts = [Job("any", gpus=count).gpus for count in axes.get("gpus", [])]
    result = run(options, jobs, axes.get("precision", []), counts)
    return _json(result.to_dict()) if options.json else str(result)


def runs(options: Namespace) -> str:
    from precision_time.cli.measuring import runs as run

    result = run(options)
    return _json(result.to_dict()) if options.json else str(result)


def train(options: Namespace) -> str:
    from precision_time.cli.training import train as run

    return run(options)


def fit(options: Namespace) -> str:
    from precision_time.cli.fitting import fit as run

    text = run(options)
    return _printed({"report": text}, text, options)


def capture(options: Namespace) -> str:
    from precision_time.cli.capturing import capture as run

    return _printed(*run(options), options)


def skeleton(options: Namespace) -> str:
    from precision_time.capture.skeleton import skeleton as run

    text = run(options.file)
    return _printed({"text": text}, text.rstrip("\n"), options)


def record(options: Namespace) -> str:
    from precision_time.cli.recording import record as run

    return _printed(*run(options), options)


def store(options: Namespace) -> str:
    from precision_time.cli.recording import store as run

    return _printed(*run(options), options)


def serve(options: Namespace) -> str:
    from precision_time.cli.serving import serve as run

    return _printed(*run(options), options)


def zoo(options: Namespace) -> str:
    from precision_time.cli.listing import zoo as run

    return _printed(*run(options), options)


def gpus(options: Namespace) -> str:
    from precision_time.cli.listing import gpus as run

    return _printed(*run(options), options)


def completion(shell: str) -> str:
    from precision_time.cli.completion import completion as script

    return script(shell)


def _printed(content: Any, text: str, options: Namespace) -> str:
    """The content of a command's result as JSON, or its text."""
    return _json(content) if options.json else text


def _json(value: Any, indent: int | None = 2) -> str:
    return to_json(value, indent, ensure_ascii=False)
