"""The argument parser, built from the table of flags. Its errors are sentences with the nearest choices."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from typing import NoReturn

from precision_time.cli.flags import AXES, FLAGS, VERIFY_AXES
from precision_time.errors import PrecisionTimeError, nearest

PREDICTORS = ("simulator", "boosting", "boosting-residual", "additive", "predictddl", "ernest")
"""As in predictors/registry.py, which is not loaded for a list of names."""

SHELLS = ("bash", "zsh", "tcsh", "fish")
DEFAULT_PRECISIONS = "fp32,tf32,amp-fp16,amp-bf16"
VERIFY_PRECISIONS = "fp32,amp-bf16"

_FILE_FLAGS = (
    "device", "trace", "plot", "table", "html", "csv", "output", "save", "tables", "measured", "imported",
    "trained",
    "real_runs", "jobs", "folder",
    "cluster",
)  # fmt: skip

_NOT_FOR_VERIFY = (
    "anchors",
    "data",
    "gpu",
    "node",
    "nodes",
    "system",
    *(flag.field for flag in FLAGS if flag.group == "run"),
)
"""Job words that this machine decides, or that say how long a run is."""

ROW_FILTERS = ("trust", "precision", "gpu", "model", "framework")
"""Columns that choose rows of a table of measured jobs."""


class UsageError(PrecisionTimeError):
    """The command line itself is wrong."""


class Parser(argparse.ArgumentParser):
    """An argparse parser that raises instead of printing usage and exiting."""

    def error(self, message: str) -> NoReturn:
        if match := re.search(r"argument (\S+): expected (?:one|at least one) argument", message):
            raise UsageError(f"flag {match[1]} needs a value; see {self.prog} --help")
        if match := re.search(r"argument (\S+): invalid choice: (?:u?'(.*?)'|\"(.*?)\")", message):
            subject, value = match[1], match[2] or match[3] or ""
            choices = COMMANDS if subject == "COMMAND" else SHELLS
            subject = "command" if subject == "COMMAND" else f"flag {subject}"
            raise UsageError(
                f"{subject} {value!r} is unknown; nearest: {nearest(value, choices, 1)}; "
                f"use one of {', '.join(choices)}"
            )
        raise UsageError(f"{' '.join(message.split())}; see {self.prog} --help")


COMMANDS = {
    "predict": "predict one job",
    "compare": "compare a job across precisions, GPUs, counts and batch sizes",
    "evaluate": "predict a table of measured jobs and judge the predictions",
    "stagger": "when to start co-located jobs that read the same data; --run launches them so",
    "calibrate": "measure this machine, or a storage, and write the file to predict with",
    "measure": "measure this machine at length: operators, updates, whole steps; resumable",
    "runs": "really train small networks here, pass by pass, into a table; resumable",
    "verify": "really train here for some steps and compare with the prediction",
    "train": "train the published predictors on measured jobs, for predict --predictor",
    "reproduce": "moved: run `make reproduce` in a checkout of the repository",
    "fit": "fit the shipped parameters to tables of measurements, and judge them held out",
    "zoo": "list the named workloads",
    "gpus": "list the GPU catalog, or with --prices the cloud instances",
}

_USAGE = {
    "predict": "MODEL|FILE [--flag VALUE ...]",
    "compare": "MODEL|FILE ... [--flag VALUE,VALUE ...]",
    "evaluate": "TABLE.csv [--html FILE] [--csv FILE] [--blind PRECISION] [--trust A,B] ...",
    "stagger": "JOBS.yaml [--run] [--order both] [--offset SECONDS] [--folder FOLDER] [--plot FILE] ...",
    "calibrate": "[MODEL|FILE ...] [--output FILE.json] [--budget 180s] [--on cpu|cuda] [--ranks N] [--threads N]"
    "\n       precision-time calibrate --storage PATH|URL [--output FILE.yaml] [--budget 20s]",
    "measure": "[MODEL|FILE ...] [--output FOLDER] [--budget 10min] [--only KIND,KIND] [--on cpu|cuda] ...",
    "runs": "[--output FOLDER] [--budget 35min] [--only NETWORK,NETWORK] [--quick] [--on cpu|cuda] ...",
    "verify": "[MODEL|FILE ...] [--precision X,Y] [--gpus 1,2] [--device FILE] [--flag VALUE ...]",
    "train": "[PREDICTOR ...] [--tables DIR] [--real-runs FOLDER] [--output FOLDER]",
    "reproduce": "(moved: run `make reproduce` in a checkout of the repository)",
    "fit": "[STAGE ...] [--tables DIR] [--measured FOLDER] [--report]",
    "zoo": "[TEXT] [--json]",
    "gpus": "[TEXT] [--prices] [--device FILE] [--json]",
}

_SOURCE_HELP = "a model (name, torchvision:NAME, timm:NAME, hf:FILE, FILE.py:FUNCTION) or a job file (.yaml, .json)"


def build_parser(for_completion: bool = False) -> Parser:
    """The whole parser. `for_completion` also states the usual values, which shells then offer."""
    parser = Parser(
        prog="precision-time",
        description="How long a training job will take, what it costs and whether it fits, in any precision.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="print the version and stop")
    parser.add_argument(
        "--completion",
        metavar="SHELL",
        choices=SHELLS,
        help=f"print a completion script: {', '.join(SHELLS)}",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    made = {
        name: commands.add_parser(
            name,
            help=text,
            description=text,
            usage=f"precision-time {name} {_USAGE[name]}",
            allow_abbrev=False,
        )
        for name, text in COMMANDS.items()
    }

    predict = made["predict"]
    predict.add_argument("source", nargs="?", metavar="MODEL|FILE", help=_SOURCE_HELP)
    predict.add_argument("--trace", metavar="FILE", help="write the step's timeline for Perfetto or chrome://tracing")
    names = f"which predictor: {', '.join(PREDICTORS)} (default simulator)"
    choices = PREDICTORS if for_completion else None
    predict.add_argument("--predictor", metavar="NAME", default="simulator", choices=choices, help=names)
    predict.add_argument("--trained", metavar="FOLDER", help="where `train` has put the predictors")
    predict.add_argument("--largest-batch", action="store_true", help="also find the largest batch_size that fits")
    _add_job_flags(predict, (), for_completion)

    for command in (predict, made["compare"]):
        command.add_argument(
            "--anchor",
            metavar="WORDS",
            action="append",
            default=[],
            help="a measured step of this or a similar job: gpus=1,precision=fp32,step_time_s=0.31; may be repeated",
        )
        command.add_argument(
            "--import",
            dest="imported",
            metavar="FILE",
            help="take the job from another program's file: a Megatron script or arguments, a DeepSpeed JSON or a "
            "torchtitan TOML; the job file and flags override it",
        )
        command.add_argument(
            "--cluster",
            metavar="FILE",
            help="take gpu, gpus and nodes from the output of `scontrol show node` or `kubectl get node -o json`; "
            "flags override it",
        )
    compare = made["compare"]
    compare.add_argument("source", nargs="*", metavar="MODEL|FILE", help=_SOURCE_HELP + "; may be several")
    compare.add_argument("--plot", metavar="FILE", help="write the picture: .png, .svg or .html")
    _add_job_flags(compare, AXES, for_completion, crossed=f"where nothing else is crossed: {DEFAULT_PRECISIONS}")

    _add_evaluate_flags(made["evaluate"])
    _add_stagger_flags(made["stagger"], for_completion)
    calibrate, verify = made["calibrate"], made["verify"]
    calibrate.add_argument("--output", metavar="FILE", help="file to write (default this-machine.json, of a "
                           "storage this-storage.yaml)")  # fmt: skip
    calibrate.add_argument("--storage", metavar="PATH|URL", help="measure what training data is read from instead: a "
                           "folder with files, http://HOST/PATH of one with index.json, s3://...")  # fmt: skip
    calibrate.add_argument("source", nargs="*", metavar="MODEL|FILE", help=_SOURCE_HELP + "; their operators are "
                           "measured too, in their own shapes")  # fmt: skip
    calibrate.add_argument("--fresh", action="store_true", help="measure all points anew, not only those that lack")
    measure = made["measure"]
    measure.add_argument("source", nargs="*", metavar="MODEL|FILE", help=_SOURCE_HELP + "; their operators come first")
    measure.add_argument("--output", metavar="FOLDER", help="folder to begin or to continue (default measurements)")
    measure.add_argument("--only", metavar="KIND", action="append", help="operators, updates, steps, host, ranks; "
                         "several with commas or by repeating the flag (default: all)")  # fmt: skip
    verify.add_argument("source", nargs="*", metavar="MODEL|FILE", help=_SOURCE_HELP + " (default: a small CNN and "
                        "a small transformer)")  # fmt: skip
    verify.add_argument("--save", metavar="FILE", help="keep the calibration as a device file: .json")
    verify.add_argument("--runs", metavar="N", default="3", help="train every job so many times (default 3)")
    verify.add_argument("--steps", metavar="N", dest="measured_steps", default="60", help="measured steps of a run, at "
                        "most (default 60)")  # fmt: skip
    runs = made["runs"]
    runs.add_argument("--output", metavar="FOLDER", help="folder to begin or to continue (default small-networks)")
    runs.add_argument("--only", metavar="NETWORK", action="append", help="only these small networks; several with "
                      "commas or by repeating the flag (default: all)")  # fmt: skip
    runs.add_argument("--quick", action="store_true", help="try out: smallest parts in fp32, once, no device file")
    for command, budget in ((calibrate, None), (verify, "180s"), (measure, "10min"), (runs, "35min")):
        command.add_argument("--budget", metavar="TIME", default=budget, help="time to measure (default "
                             f"{budget or '180s, of a storage 20s'})")  # fmt: skip
        command.add_argument("--on", metavar="KIND", help="cpu or cuda (default: the GPU where there is one)")
        command.add_argument("--ranks", metavar="N", help="processes that share this machine (default: 2, or its GPUs)")
        command.add_argument("--threads", metavar="N", help="threads of each process (default: the cores shared out)")
    crossed = f"default: {VERIFY_PRECISIONS}"
    _add_job_flags(verify, VERIFY_AXES, for_completion, _NOT_FOR_VERIFY, crossed)
    for command in (calibrate, measure):
        _add_job_flags(command, ("precision",), for_completion, (*_NOT_FOR_VERIFY, "gpus", "device"), crossed)
    fit = made["fit"]
    fit.add_argument("stage", nargs="*", metavar="STAGE", help="kernels, collectives, steps, anchors, layouts "
                     "(default: all)")  # fmt: skip
    _add_tables_flag(fit)
    fit.add_argument("--measured", metavar="FOLDER", action="append", help="folder that `measure` filled on a catalog "
                     "GPU, for stage kernels; may be repeated")  # fmt: skip
    fit.add_argument("--report", action="store_true", help="only judge held out, write nothing (steps, anchors, "
                     "layouts)")  # fmt: skip
    train = made["train"]
    train.add_argument("name", nargs="*", metavar="PREDICTOR", help="default: all")
    _add_tables_flag(train)
    own_runs = "real runs that `runs` has made (default: data/small_networks of the repository)"
    train.add_argument("--real-runs", metavar="FOLDER", help=own_runs)
    train.add_argument("--output", metavar="FOLDER", help="folder to write (default trained)")
    made["reproduce"].add_argument("former", nargs="*", help=argparse.SUPPRESS)
    made["zoo"].add_argument("filter", nargs="?", metavar="TEXT", help="only names that contain this")
    made["gpus"].add_argument("filter", nargs="?", metavar="TEXT", help="only names that contain this")
    made["gpus"].add_argument("--device", metavar="FILE", help="YAML file that adds a GPU, node, fabric or price")
    made["gpus"].add_argument("--prices", action="store_true", help="list what clouds ask for instances with them")
    for command in made.values():
        command.add_argument("--json", action="store_true", help="print JSON")
    if for_completion:
        _offer_files(made.values())
    return parser


_SEVERAL = "; several with commas or by repeating the flag"


def _add_job_flags(
    parser: argparse.ArgumentParser,
    several: Sequence[str],
    for_completion: bool,
    without: Sequence[str] = (),
    crossed: str = "",
) -> None:
    """`several` may be given more than once; `crossed` says which precisions stand in where none is."""
    groups = {
        "job": parser.add_argument_group("job (the words of the job file; flags override the file)"),
        "run": parser.add_argument_group("run"),
    }
    for flag in FLAGS:
        if flag.field in without:
            continue
        many = flag.field in several
        text = flag.help + (f": {', '.join(flag.choices)}" if flag.choices and flag.field != "layout" else "")
        if many:
            text += "; several by repeating the flag" if flag.field == "layout" else _SEVERAL
            text += f" ({crossed})" if flag.field == "precision" else ""
        groups[flag.group].add_argument(
            flag.text,
            dest=flag.field,
            metavar="VALUE",
            action="append" if many else "store",
            choices=flag.choices or None if for_completion else None,
            help=text.replace("%", "%%"),
        )


class _OldName(argparse.Action):
    """A flag under its former name: sets the same value and prints a note."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: object, option: str | None = None
    ) -> None:
        setattr(namespace, self.dest, values)
        print(f"note: {option} is now --{self.dest}", file=sys.stderr)


def _add_tables_flag(command: argparse.ArgumentParser) -> None:
    command.add_argument("--tables", metavar="DIR", help="folder with published/, kernels/ and cloud-configurations/ "
                         "(default: data/ of the repository)")  # fmt: skip
    command.add_argument("--shared", dest="tables", action=_OldName, help=argparse.SUPPRESS)


def _add_evaluate_flags(parser: argparse.ArgumentParser) -> None:
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
    parser.add_argument("--worst", metavar="N", default="10", help="show so many of the worst rows (default 10)")
    for column in ROW_FILTERS:
        parser.add_argument(
            f"--{column}",
            metavar="VALUE",
            action="append",
            help=f"only rows with this {column}; several with commas or by repeating the flag",
        )


def _add_stagger_flags(parser: argparse.ArgumentParser, for_completion: bool) -> None:
    orders = ("both", "given", "reversed")
    parser.add_argument("jobs", nargs="?", metavar="JOBS.yaml", help="co-located jobs (fields: docs/staggering.md)")
    parser.add_argument("--run", action="store_true", help="launch the jobs as advised; measured against predicted")
    parser.add_argument("--order", metavar="WHICH", default="both", choices=orders if for_completion else None,
                        help=f"who may start first: {', '.join(orders)} (default both)")  # fmt: skip
    parser.add_argument(
        "--offset", metavar="SECONDS", help="ask about, and launch with, this offset instead of the best"
    )
    parser.add_argument("--folder", metavar="FOLDER", default="out/stagger", help="keeps what was measured; it is not "
                        "measured again (default out/stagger)")  # fmt: skip
    parser.add_argument("--fresh", action="store_true", help="measure again what is there")
    parser.add_argument("--plot", metavar="FILE", help="write the curves as a picture: .png or .svg")
    parser.add_argument("--points", metavar="N", default="100", help="points of a curve (default 100)")


def _offer_files(commands: object) -> None:
    """Tell shtab which arguments are file names."""
    import shtab

    for command in commands:  # type: ignore[attr-defined]
        for action in command._actions:
            if action.dest in _FILE_FLAGS or action.dest == "source":
                action.complete = shtab.FILE


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The parsed command line; anything left over is a sentence with the nearest flag."""
    parser = build_parser()
    known, extra = parser.parse_known_args(argv)
    if not extra or known.command == "reproduce":  # moved out of the package: its former flags mean nothing here
        return known
    flags = [extra_word.split("=")[0] for extra_word in extra if extra_word.startswith("-")]
    command = f"{parser.prog} {known.command}" if known.command else parser.prog
    if not flags:
        raise UsageError(f"argument {extra[0]!r} is one too many; see {command} --help")
    raise UsageError(
        f"flag {flags[0]!r} is unknown; nearest: {nearest(flags[0], flags_of(parser, known.command))}; "
        f"see {command} --help"
    )


def flags_of(parser: argparse.ArgumentParser, command: str | None) -> list[str]:
    """The long flags of a command, or of the whole program."""
    chosen = parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction) and command in action.choices:
            chosen = action.choices[command]
    return [text for action in chosen._actions for text in action.option_strings if text.startswith("--")]
