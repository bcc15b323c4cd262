"""The flags and arguments of every command."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence

from precision_time.cli.flags import AXES, FLAGS, VERIFY_AXES

PREDICTORS = ("simulator", "boosting", "boosting-residual", "additive", "predictddl", "ernest")
"""As in predictors/registry.py, which is not imported for a list of names."""
DEFAULT_PRECISIONS = "torch-fp32,tf32,amp-fp16,amp-bf16"
VERIFY_PRECISIONS = "fp32,amp-bf16"
FILE_FLAGS = frozenset(
    """
    source device trace plot table html csv output save tables measured imported trained real_runs jobs folder cluster
    empty_cache state file
    """.split()
)
"""Flags and arguments whose value is a file or folder, for completion."""
_ALLOW_CODE = frozenset(
    """
    predict compare plan layouts walltime slurm kubernetes evaluate stagger search calibrate measure verify train
    """.split()
)
"""Commands that read jobs from files."""
ROW_FILTERS = ("trust", "precision", "gpu", "model", "framework")
"""Columns that choose rows of a table of measured jobs."""

_NOT_MEASURED = ("anchors", "data", "gpu", "node", "nodes", "system", *(f.field for f in FLAGS if f.group == "run"))
"""Fields of a job that do not apply to measuring on this machine."""
_SOURCE = "a model (name, torchvision:NAME, timm:NAME, hf:FILE, FILE.py:FUNCTION) or a job file (.yaml, .json)"
_SEVERAL = "several with commas or by repeating the flag"

Parser = argparse.ArgumentParser


def _predict(parser: Parser, complete: bool) -> None:
    parser.add_argument("source", nargs="?", metavar="MODEL|FILE", help=_SOURCE)
    parser.add_argument("--trace", metavar="FILE", help="write the step's timeline for Perfetto or chrome://tracing")
    parser.add_argument(
        "--predictor",
        metavar="NAME",
        default="simulator",
        choices=PREDICTORS if complete else None,
        help=f"which predictor: {', '.join(PREDICTORS)} (default simulator)",
    )
    parser.add_argument(
        "--trained", metavar="FOLDER", help="folder that `train` has written (default: those that ship)"
    )
    parser.add_argument("--largest-batch", action="store_true", help="also find the largest batch_size that fits")
    _add_job_flags(parser, complete)
    _add_job_sources(parser)


def _compare(parser: Parser, complete: bool) -> None:
    parser.add_argument("source", nargs="*", metavar="MODEL|FILE", help=_SOURCE + "; may be several")
    keys = ("throughput", "step", "cost", "memory")
    parser.add_argument(
        "--sort", metavar="KEY", choices=keys if complete else None, help=f"best rows first by {', '.join(keys)}"
    )
    parser.add_argument("--best", metavar="N", help="show the N best rows (by throughput, or as --sort says)")
    parser.add_argument("--global-batch-size", metavar="N", help="samples of a step in every row, by accumulation")
    parser.add_argument("--plot", metavar="FILE", help="write the picture: .png, .svg or .html")
    _add_workers_flags(parser)
    _add_job_flags(parser, complete, AXES, precisions=f"default, if nothing else is crossed: {DEFAULT_PRECISIONS}")
    _add_job_sources(parser)


def _plan(parser: Parser, complete: bool) -> None:
    objectives = ("cost", "time", "energy", "co2")
    parser.add_argument("source", nargs="?", metavar="MODEL|FILE", help=_SOURCE)
    goal = parser.add_argument_group("goal")
    goal.add_argument("--deadline", metavar="MOMENT", help='"2026-12-04 18:00", or a span from now: 36h, 3d')
    goal.add_argument("--budget", metavar="DOLLARS", help="US dollars that the run may cost")
    goal.add_argument("--confidence", metavar="P", help="probability of fitting, in time, within budget (default 0.9)")
    goal.add_argument(
        "--objective",
        metavar="WHICH",
        choices=objectives if complete else None,
        help=f"what is to be least: {', '.join(objectives)} (default cost)",
    )
    space = parser.add_argument_group("what to choose among")
    space.add_argument(
        "--provider",
        metavar="NAME",
        action="append",
        help=f"clouds, any (default), a SkyPilot catalog (.csv), a cluster of your own (.yaml); {_SEVERAL}",
    )
    space.add_argument(
        "--gpu", metavar="NAME", action="append", help=f"GPU types (default: all that are offered); {_SEVERAL}"
    )
    space.add_argument("--gpus", metavar="COUNTS", help="8..256 (doubling) or 8,12,16 (default 1..64)")
    space.add_argument(
        "--precision", metavar="NAME", action="append", help=f"precisions (default: the job's); {_SEVERAL}"
    )
    space.add_argument(
        "--schedule", metavar="A:N%..B", help="precision A for the first N %% of the steps, then B; N: every tenth"
    )
    space.add_argument("--layout", metavar="LAYOUT", help="auto: all valid ones; or one layout (default: the job's)")
    space.add_argument(
        "--spot", metavar="WHICH", help="also spot instances: published, or a trace of SkyPilot (.json); needs prices"
    )
    space.add_argument("--reserved", action="store_true", help="also prices of reservations, where they are known")
    space.add_argument("--pue", metavar="FACTOR", help="energy of the building over that of the GPUs (default 1)")
    space.add_argument("--grid", metavar="COUNTRY", help="country, or grams of CO2 per kWh, for CO2")
    parser.add_argument("--plot", metavar="FILE", help="write the picture: .png, .svg or .html")
    _add_search_flags(parser)
    chosen = ("gpu", "gpus", "precision", "layout", "node", "nodes", "system", "price", "price_per_gpu_hour")
    _add_job_flags(parser, complete, (), chosen)
    _add_job_sources(parser, cluster=False)


def _layouts(parser: Parser, complete: bool) -> None:
    parser.add_argument("source", nargs="?", metavar="MODEL|FILE", help=_SOURCE)
    parser.add_argument("--top", metavar="N", default="20", help="show this many (default 20)")
    _add_search_flags(parser)
    _add_job_flags(parser, complete, (), ("layout", "recompute_layers"))
    _add_job_sources(parser)


def _walltime(parser: Parser, complete: bool) -> None:
    formats = ("seconds", "slurm", "kueue", "trainjob", "job")
    parser.add_argument("source", nargs="?", metavar="MODEL|FILE", help=_SOURCE)
    parser.add_argument(
        "--confidence", metavar="P", default="0.95", help="probability of ending in time (default 0.95)"
    )
    parser.add_argument(
        "--format",
        metavar="NAME",
        default="seconds",
        choices=formats if complete else None,
        help=f"whose clock: {', '.join(formats)} (default seconds)",
    )
    _add_job_flags(parser, complete)
    _add_job_sources(parser)


def _limits(parser: Parser, complete: bool) -> None:
    parser.add_argument("file", metavar="FILE", help="the script or manifest")
    parser.add_argument("source", nargs="?", metavar="MODEL|FILE", help=_SOURCE + ", where the file names no model")
    parser.add_argument(
        "--confidence", metavar="P", default="0.95", help="probability of ending in time (default 0.95)"
    )
    parser.add_argument("--rewrite", action="store_true", help="write the time limit that is needed into the file")
    _add_job_flags(parser, complete)
    _add_job_sources(parser)


def _add_search_flags(parser: Parser) -> None:
    parser.add_argument("--global-batch-size", metavar="N", help="samples of a step, equal in all (default: the job's)")
    _add_workers_flags(parser)


def _add_workers_flags(parser: Parser) -> None:
    parser.add_argument("--workers", metavar="N", help="processes (default: as many as are worth starting)")
    parser.add_argument("--dask", metavar="ADDRESS", help="scheduler of a Dask cluster: tcp://host:8786")


def _add_job_sources(parser: Parser, cluster: bool = True) -> None:
    """Flags that take parts of the job from elsewhere."""
    parser.add_argument(
        "--anchor",
        metavar="FIELDS",
        action="append",
        default=[],
        help="a measured step of this or a similar job: gpus=1,precision=fp32,step_time_s=0.31; may be repeated",
    )
    parser.add_argument(
        "--import",
        dest="imported",
        metavar="FILE",
        action="append",
        help="take the job from another program's file: TrainingArguments, accelerate, Lightning, DeepSpeed, Megatron, "
        "NeMo, torchtitan, llm-foundry, Axolotl or sbatch; may be repeated; the job file and flags override it",
    )
    if not cluster:
        return
    parser.add_argument(
        "--cluster",
        metavar="FILE",
        help="take gpu, gpus and nodes from the output of `scontrol show node` or `kubectl get node -o json`; "
        "flags override it",
    )


def _evaluate(parser: Parser, complete: bool) -> None:
    parser.add_argument("table", nargs="?", metavar="TABLE.csv", help="measured jobs (columns: docs/evaluate.md)")
    parser.add_argument("--html", metavar="FILE", help="write the report with pictures: .html")
    parser.add_argument("--csv", metavar="FILE", help="write every row with its prediction: .csv")
    parser.add_argument(
        "--anchors",
        metavar="WHICH",
        default="all",
        help="measured jobs that correct predictions: all but those of the same job (default), other-families, none",
    )
    parser.add_argument("--blind", metavar="PRECISION", help="predict every job as if it ran in this precision")
    _add_workers_flags(parser)
    parser.add_argument("--worst", metavar="N", default="10", help="show this many of the worst rows (default 10)")
    for column in ROW_FILTERS:
        parser.add_argument(
            f"--{column}", metavar="VALUE", action="append", help=f"only rows with this {column}; {_SEVERAL}"
        )


def _stagger(parser: Parser, complete: bool) -> None:
    orders = ("both", "given", "reversed")
    parser.add_argument("jobs", nargs="?", metavar="JOBS.yaml", help="co-located jobs (fields: docs/staggering.md)")
    parser.add_argument("--run", action="store_true", help="launch the jobs as advised and compare with the prediction")
    parser.add_argument(
        "--order",
        metavar="WHICH",
        default="both",
        choices=orders if complete else None,
        help=f"which job may start first: {', '.join(orders)} (default both)",
    )
    parser.add_argument("--offset", metavar="SECONDS", help="predict, and launch with, this offset instead of the best")
    parser.add_argument(
        "--folder",
        metavar="FOLDER",
        default="out/stagger",
        help="keeps measurements, which are not repeated (default out/stagger)",
    )
    parser.add_argument("--fresh", action="store_true", help="repeat the measurements in the folder")
    parser.add_argument(
        "--empty-cache",
        metavar="FOLDER",
        help="the folder of cache.reset may be emptied although stagger did not make it; name it again here",
    )
    parser.add_argument("--plot", metavar="FILE", help="write the curves as a picture: .png or .svg")
    parser.add_argument("--points", metavar="N", default="100", help="points of a curve (default 100)")


def _search(parser: Parser, complete: bool) -> None:
    objectives, settings = ("cost", "time"), ("improved", "published", "authors")
    parser.add_argument(
        "source",
        nargs="?",
        metavar="TABLE.csv|JOB.yaml",
        help="configurations (columns: docs/cherrypick.md), or a job file, for its grid of GPUs and batches",
    )
    parser.add_argument("--state", metavar="FILE", help="keep the results in this file, and go on with those in it")
    parser.add_argument(
        "--result",
        metavar="ID=SECONDS",
        action="append",
        default=[],
        help="the time of a run, or ID=failed; may be repeated",
    )
    parser.add_argument(
        "--objective",
        metavar="WHICH",
        choices=objectives if complete else None,
        help="what is to be low: cost (default) or time",
    )
    parser.add_argument("--deadline", metavar="SECONDS", help="longest time that a run may take (default: any)")
    parser.add_argument(
        "--setting",
        metavar="NAME",
        choices=settings if complete else None,
        help="improved (default), published (as in the paper) or authors (as in their code)",
    )
    parser.add_argument("--seed", metavar="N", help="seed of the first runs and of the samples (default 0)")
    kept = ("gpu", "gpus", "precision", "batch_size")
    others = tuple(flag.field for flag in FLAGS if flag.field not in (*kept, "price"))
    _add_job_flags(parser, complete, kept, others)


def _calibrate(parser: Parser, complete: bool) -> None:
    parser.add_argument(
        "source", nargs="*", metavar="MODEL|FILE", help=_SOURCE + "; their operators are measured too, in their shapes"
    )
    parser.add_argument(
        "--output", metavar="FILE", help="file to write (default this-machine.json; of a storage this-storage.yaml)"
    )
    parser.add_argument(
        "--storage",
        metavar="PATH|URL",
        help="measure a storage instead: a folder with files, http://HOST/PATH of one with index.json, s3://...",
    )
    parser.add_argument("--fresh", action="store_true", help="measure all points again, not only missing ones")
    _add_machine_flags(parser, None)
    _add_measured_job_flags(parser, complete)


def _measure(parser: Parser, complete: bool) -> None:
    parser.add_argument("source", nargs="*", metavar="MODEL|FILE", help=_SOURCE + "; their operators come first")
    parser.add_argument("--output", metavar="FOLDER", help="folder to create or to continue (default measurements)")
    parser.add_argument(
        "--only",
        metavar="KIND",
        action="append",
        help=f"operators, updates, steps, host, ranks; {_SEVERAL} (default: all)",
    )
    _add_machine_flags(parser, "10min")
    _add_measured_job_flags(parser, complete)


def _verify(parser: Parser, complete: bool) -> None:
    parser.add_argument(
        "source", nargs="*", metavar="MODEL|FILE", help=_SOURCE + " (default: a small CNN and a small transformer)"
    )
    parser.add_argument("--save", metavar="FILE", help="keep the calibration as a device file: .json")
    parser.add_argument("--runs", metavar="N", default="3", help="number of times that each job is trained (default 3)")
    parser.add_argument(
        "--steps", metavar="N", dest="measured_steps", default="60", help="maximum measured steps of a run (default 60)"
    )
    _add_machine_flags(parser, "180s")
    _add_job_flags(parser, complete, VERIFY_AXES, _NOT_MEASURED, f"default: {VERIFY_PRECISIONS}")


def _runs(parser: Parser, complete: bool) -> None:
    parser.add_argument("--output", metavar="FOLDER", help="folder to create or to continue (default small-networks)")
    parser.add_argument(
        "--only", metavar="NETWORK", action="append", help=f"only these small networks; {_SEVERAL} (default: all)"
    )
    parser.add_argument("--quick", action="store_true", help="a trial: smallest parts in fp32, once, no device file")
    _add_machine_flags(parser, "35min")


def _add_machine_flags(parser: Parser, budget: str | None) -> None:
    """Flags of the commands that measure on this machine."""
    default = budget or "180s, of a storage 20s"
    parser.add_argument("--budget", metavar="TIME", default=budget, help=f"time to measure (default {default})")
    parser.add_argument("--on", metavar="KIND", help="cpu or cuda (default: the GPU if there is one)")
    parser.add_argument("--ranks", metavar="N", help="processes that share this machine (default: 2, or its GPUs)")
    parser.add_argument("--threads", metavar="N", help="threads of each process (default: an equal share of the cores)")


def _add_measured_job_flags(parser: Parser, complete: bool) -> None:
    without = (*_NOT_MEASURED, "gpus", "device")
    _add_job_flags(parser, complete, ("precision",), without, f"default: {VERIFY_PRECISIONS}")


def _train(parser: Parser, complete: bool) -> None:
    parser.add_argument("name", nargs="*", metavar="PREDICTOR", help="default: all")
    _add_tables_flag(parser)
    parser.add_argument(
        "--real-runs",
        metavar="FOLDER",
        help="train on real runs that `runs` has made, instead of the published steps",
    )
    parser.add_argument(
        "--rows",
        metavar="FILE.csv",
        action="append",
        help="train on measured steps of your own (columns as for evaluate); may be given again",
    )
    parser.add_argument("--output", metavar="FOLDER", help="folder to write (default trained)")


def _reproduce(parser: Parser, complete: bool) -> None:
    parser.add_argument("former", nargs="*", help=argparse.SUPPRESS)


def _fit(parser: Parser, complete: bool) -> None:
    parser.add_argument(
        "stage", nargs="*", metavar="STAGE", help="kernels, collectives, steps, anchors, layouts (default: all)"
    )
    _add_tables_flag(parser)
    parser.add_argument(
        "--measured",
        metavar="FOLDER",
        action="append",
        help="folder that `measure` filled on a catalog GPU, for stage kernels; may be repeated",
    )
    parser.add_argument(
        "--report", action="store_true", help="only judge held-out rows, write nothing (steps, anchors, layouts)"
    )


def _add_tables_flag(parser: Parser) -> None:
    parser.add_argument(
        "--tables",
        metavar="DIR",
        help="folder with published/, kernels/ and cloud-configurations/ (default: data/ of the repository)",
    )


def _skeleton(parser: Parser, complete: bool) -> None:
    parser.add_argument("file", metavar="SCRIPT.py", help="the training script; it is read, not run")


def _zoo(parser: Parser, complete: bool) -> None:
    parser.add_argument("filter", nargs="?", metavar="TEXT", help="only names that contain this")


def _gpus(parser: Parser, complete: bool) -> None:
    parser.add_argument("filter", nargs="?", metavar="TEXT", help="only names that contain this")
    parser.add_argument("--device", metavar="FILE", help="device file that adds a GPU, node, fabric or price")
    parser.add_argument("--prices", action="store_true", help="list prices of cloud instances with these GPUs")


def add_common_arguments(command: str, parser: Parser) -> None:
    """The flags that many commands have."""
    if command in _ALLOW_CODE:
        parser.add_argument(
            "--allow-code", action="store_true", help="run Python files and commands that job files and tables name"
        )
    parser.add_argument("--json", action="store_true", help="print JSON")


ADD_ARGUMENTS: Mapping[str, Callable[[Parser, bool], None]] = {
    "predict": _predict,
    "compare": _compare,
    "plan": _plan,
    "layouts": _layouts,
    "walltime": _walltime,
    "slurm": _limits,
    "kubernetes": _limits,
    "evaluate": _evaluate,
    "stagger": _stagger,
    "search": _search,
    "calibrate": _calibrate,
    "measure": _measure,
    "runs": _runs,
    "verify": _verify,
    "train": _train,
    "reproduce": _reproduce,
    "fit": _fit,
    "skeleton": _skeleton,
    "zoo": _zoo,
    "gpus": _gpus,
}
"""Command -> the function that adds its arguments; True as second argument also states choices, for completion."""


def _add_job_flags(
    parser: Parser, complete: bool, several: Sequence[str] = (), without: Sequence[str] = (), precisions: str = ""
) -> None:
    """The fields of the job and its run as flags.

    `several` may have several values, `without` are left out, and `precisions` describes the default of --precision.
    """
    groups = {
        "job": parser.add_argument_group("job (the fields of the job file; flags override the file)"),
        "run": parser.add_argument_group("run"),
    }
    for flag in FLAGS:
        if flag.field in without:
            continue
        text = flag.help + (f": {', '.join(flag.choices)}" if flag.choices and flag.field != "layout" else "")
        if flag.field in several:
            text += "; several by repeating the flag" if flag.field == "layout" else f"; {_SEVERAL}"
            text += f" ({precisions})" if flag.field == "precision" else ""
        groups[flag.group].add_argument(
            flag.text,
            dest=flag.field,
            metavar="VALUE",
            action="append" if flag.field in several else "store",
            choices=flag.choices or None if complete else None,
            help=text.replace("%", "%%"),
        )
