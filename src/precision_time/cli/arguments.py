"""The flags and arguments of every command."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from precision_time.cli.flags import AXES, FLAGS
from precision_time.cli.job_arguments import (
    SEVERAL,
    SOURCE,
    Parser,
    add_job_flags,
    add_job_sources,
    add_quantile_flag,
    add_server_flag,
    add_workers_flags,
)
from precision_time.cli.measuring_arguments import (
    add_calibrate,
    add_fit,
    add_measure,
    add_runs,
    add_train,
    add_verify,
)
from precision_time.cli.recording_arguments import add_record, add_store
from precision_time.cli.serving_arguments import add_serve

PREDICTORS = ("simulator", "boosting", "boosting-residual", "additive", "predictddl", "ernest")
"""As in predictors/registry.py, which is not imported for a list of names."""
DEFAULT_PRECISIONS = "torch-fp32,tf32,amp-fp16,amp-bf16"
FILE_FLAGS = frozenset(
    """
    source device trace plot table html csv output save tables measured imported trained real_runs jobs folder cluster
    empty_cache state file tokens database slurm
    """.split()
)
"""Flags and arguments whose value is a file or folder, for completion."""
_ALLOW_CODE = frozenset(
    """
    predict compare plan layouts walltime slurm kubernetes evaluate stagger search calibrate measure verify train
    capture record
    """.split()
)
"""Commands that read jobs from files."""
ROW_FILTERS = ("trust", "precision", "gpu", "model", "framework")
"""Columns that choose rows of a table of measured jobs."""


def _predict(parser: Parser, complete: bool) -> None:
    parser.add_argument("source", nargs="?", metavar="MODEL|FILE", help=SOURCE)
    parser.add_argument("--trace", metavar="FILE", help="write the step's timeline for Perfetto or chrome://tracing")
    parser.add_argument("--plot", metavar="FILE", help="write step, run and memory as bars: .png, .svg or .html")
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
    _add_global_batch(parser)
    add_quantile_flag(parser)
    add_server_flag(parser)
    add_job_flags(parser, complete)
    add_job_sources(parser)


def _compare(parser: Parser, complete: bool) -> None:
    parser.add_argument("source", nargs="*", metavar="MODEL|FILE", help=SOURCE + "; may be several")
    keys = ("throughput", "step", "cost", "memory")
    parser.add_argument(
        "--sort", metavar="KEY", choices=keys if complete else None, help=f"best rows first by {', '.join(keys)}"
    )
    parser.add_argument("--best", metavar="N", help="show the N best rows (by throughput, or as --sort says)")
    parser.add_argument("--global-batch-size", metavar="N", help="samples of a step in every row, by accumulation")
    parser.add_argument("--largest-batch", action="store_true", help="every row at its largest batch_size that fits")
    add_quantile_flag(parser)
    parser.add_argument("--plot", metavar="FILE", help="write the picture: .png, .svg or .html")
    add_workers_flags(parser)
    add_server_flag(parser)
    add_job_flags(parser, complete, AXES, precisions=f"default, if nothing else is crossed: {DEFAULT_PRECISIONS}")
    add_job_sources(parser)


def _plan(parser: Parser, complete: bool) -> None:
    objectives = ("cost", "time", "energy", "co2")
    parser.add_argument("source", nargs="?", metavar="MODEL|FILE", help=SOURCE)
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
        help=f"clouds, any (default), a SkyPilot catalog (.csv), a cluster of your own (.yaml); {SEVERAL}",
    )
    space.add_argument(
        "--gpu", metavar="NAME", action="append", help=f"GPU types (default: all that are offered); {SEVERAL}"
    )
    space.add_argument("--gpus", metavar="COUNTS", help="8..256 (doubling) or 8,12,16 (default 1..64)")
    space.add_argument(
        "--precision", metavar="NAME", action="append", help=f"precisions (default: the job's); {SEVERAL}"
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
    add_quantile_flag(parser, "instead of P90 ")
    _add_search_flags(parser)
    add_server_flag(parser)
    chosen = ("gpu", "gpus", "precision", "layout", "node", "nodes", "system", "price", "price_per_gpu_hour")
    add_job_flags(parser, complete, (), chosen)
    add_job_sources(parser, cluster=False)


def _layouts(parser: Parser, complete: bool) -> None:
    parser.add_argument("source", nargs="?", metavar="MODEL|FILE", help=SOURCE)
    parser.add_argument("--top", "--best", metavar="N", default="20", help="show this many (default 20)")
    parser.add_argument(
        "--largest-batch", action="store_true", help="each layout and recomputation at its largest batch_size that fits"
    )
    add_quantile_flag(parser)
    _add_search_flags(parser)
    add_job_flags(parser, complete, (), ("layout", "recompute_layers"))
    add_job_sources(parser)


def _walltime(parser: Parser, complete: bool) -> None:
    formats = ("seconds", "slurm", "kueue", "trainjob", "job")
    parser.add_argument("source", nargs="?", metavar="MODEL|FILE", help=SOURCE)
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
    _add_global_batch(parser)
    add_server_flag(parser)
    add_job_flags(parser, complete)
    add_job_sources(parser)


def _limits(parser: Parser, complete: bool) -> None:
    parser.add_argument("file", metavar="FILE", help="the script or manifest")
    parser.add_argument("source", nargs="?", metavar="MODEL|FILE", help=SOURCE + ", where the file names no model")
    parser.add_argument(
        "--confidence", metavar="P", default="0.95", help="probability of ending in time (default 0.95)"
    )
    parser.add_argument("--rewrite", action="store_true", help="write the time limit that is needed into the file")
    _add_global_batch(parser)
    add_job_flags(parser, complete)
    add_job_sources(parser)


def _add_global_batch(parser: Parser) -> None:
    parser.add_argument("--global-batch-size", metavar="N", help="samples of a step, by accumulation")


def _add_search_flags(parser: Parser) -> None:
    parser.add_argument("--global-batch-size", metavar="N", help="samples of a step, equal in all (default: the job's)")
    add_workers_flags(parser)


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
    add_workers_flags(parser)
    parser.add_argument("--worst", metavar="N", default="10", help="show this many of the worst rows (default 10)")
    for column in ROW_FILTERS:
        parser.add_argument(
            f"--{column}", metavar="VALUE", action="append", help=f"only rows with this {column}; {SEVERAL}"
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
        "--run", metavar="COMMAND", help="run and time what is asked for, {id} being the configuration; needs --state"
    )
    parser.add_argument("--most-runs", metavar="N", help="with --run: end after so many runs (default: when it stops)")
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
    add_job_flags(parser, complete, kept, others)


def _skeleton(parser: Parser, complete: bool) -> None:
    parser.add_argument("file", metavar="SCRIPT.py", help="the training script; it is read, not run")


def _capture(parser: Parser, complete: bool) -> None:
    parser.add_argument("source", nargs="?", metavar="FILE.py:FUNCTION", help="the model, or a job file that names it")
    parser.add_argument("-o", "--output", metavar="FILE", help="file to write: .json")
    kept = ("model", "input", "precision", "batch_size", "memory_format", "attention")
    add_job_flags(parser, complete, ("precision",), tuple(flag.field for flag in FLAGS if flag.field not in kept))


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
    "calibrate": add_calibrate,
    "measure": add_measure,
    "runs": add_runs,
    "verify": add_verify,
    "train": add_train,
    "fit": add_fit,
    "capture": _capture,
    "skeleton": _skeleton,
    "record": add_record,
    "store": add_store,
    "serve": add_serve,
    "zoo": _zoo,
    "gpus": _gpus,
}
"""Command -> the function that adds its arguments; True as second argument also states choices, for completion."""
