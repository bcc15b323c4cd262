"""The argument parser. Its errors are sentences with the nearest choices."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from typing import NoReturn

from precision_time.cli.arguments import ADD_ARGUMENTS, add_common_arguments
from precision_time.cli.old_names import with_present_names
from precision_time.errors import PrecisionTimeError, nearest
from precision_time.job import other_words

SHELLS = ("bash", "zsh", "tcsh", "fish")

COMMANDS = {
    "predict": "predict one job",
    "compare": "compare a job across precisions, GPUs, counts and batch sizes",
    "plan": "what to launch for a deadline or a budget: GPUs, counts, precisions, layouts, prices",
    "layouts": "rank the valid parallel layouts of a job",
    "walltime": "the time limit to ask a scheduler for",
    "slurm": "whether the --time of an sbatch script is long enough; --rewrite sets it",
    "kubernetes": "the same for a Job, JobSet, PyTorchJob or TrainJob",
    "evaluate": "predict a table of measured jobs and report the errors",
    "stagger": "when to start co-located jobs that read the same data; --run launches them",
    "search": "which cloud configuration to try next for the lowest cost or time; resumable",
    "calibrate": "measure this machine, or a storage, and write the file to predict with",
    "measure": "measure this machine at length: operators, updates, whole steps; resumable",
    "runs": "train small networks here, pass by pass, into a table; resumable",
    "verify": "train here for some steps and compare with the prediction",
    "train": "train the published predictors on measured jobs, for predict --predictor",
    "fit": "fit the shipped parameters to tables of measurements, and judge them held out",
    "capture": "trace a model of your own into a file that a server predicts",
    "skeleton": "a make_job for a training script, filled in with what its text says",
    "record": "keep how jobs went: from flags, outcome files, tables or Slurm, in a store or at a server",
    "store": "what the store of predictions and outcomes has; back it up and restore it",
    "serve": "answer predictions over HTTP, with a page; `serve token` makes and removes tokens",
    "zoo": "list the named models",
    "gpus": "list the GPU catalog, or with --prices the cloud instances",
}

_USAGE = {
    "predict": "MODEL|FILE [--flag VALUE ...]",
    "compare": "MODEL|FILE ... [--flag VALUE,VALUE ...]",
    "plan": "MODEL|FILE [--deadline MOMENT] [--budget DOLLARS] [--provider X,Y] [--gpus 8..64] [--layout auto] ...",
    "layouts": "MODEL|FILE [--gpus N] [--global-batch-size N] [--top N] [--flag VALUE ...]",
    "slurm": "SCRIPT [MODEL] [--confidence 0.95] [--rewrite] [--flag VALUE ...]",
    "kubernetes": "MANIFEST [MODEL] [--confidence 0.95] [--rewrite] [--flag VALUE ...]",
    "walltime": "MODEL|FILE [--confidence 0.95] [--format slurm] [--flag VALUE ...]",
    "evaluate": "TABLE.csv [--html FILE] [--csv FILE] [--blind PRECISION] [--trust A,B] ...",
    "stagger": "JOBS.yaml [--run] [--order both] [--offset SECONDS] [--folder FOLDER] [--plot FILE] ...",
    "search": "TABLE.csv|JOB.yaml [--state FILE] [--result ID=SECONDS] [--run COMMAND] [--deadline SECONDS] ...",
    "calibrate": "[MODEL|FILE ...] [--output FILE.json] [--budget 180s] [--on cpu|cuda] [--ranks N] [--threads N]"
    "\n       precision-time calibrate --storage PATH|URL [--output FILE.yaml] [--budget 20s]",
    "measure": "[MODEL|FILE ...] [--output FOLDER] [--budget 10min] [--only KIND,KIND] [--on cpu|cuda] ...",
    "runs": "[--output FOLDER] [--budget 35min] [--only NETWORK,NETWORK] [--quick] [--on cpu|cuda] ...",
    "verify": "[MODEL|FILE ...] [--precision X,Y] [--gpus 1,2] [--device FILE] [--flag VALUE ...]",
    "train": "[PREDICTOR ...] [--tables DIR | --rows FILE.csv | --real-runs FOLDER] [--output FOLDER]",
    "fit": "[STAGE ...] [--tables DIR] [--measured FOLDER] [--report]",
    "capture": "FILE.py:FUNCTION --output FILE.json [--precision X,Y] [--flag VALUE ...]",
    "skeleton": "SCRIPT.py [--json]",
    "record": "PREDICTION|FILE.json|FILE.csv [--step-s SECONDS] [--run-s SECONDS] [--server URL] ..."
    "\n       precision-time record --slurm FILE|- [--server URL]",
    "store": "[backup FILE | restore FILE | check FILE] [--database FILE|URL]",
    "serve": "[--host HOST] [--port N] [--workers N] [--database FILE|URL] [--tokens FILE] ..."
    "\n       precision-time serve token add NAME [--role ROLE ...] | token list | token remove NAME",
    "zoo": "[TEXT] [--json]",
    "gpus": "[TEXT] [--prices] [--device FILE] [--json]",
}


class UsageError(PrecisionTimeError):
    """The command line itself is wrong."""


class Parser(argparse.ArgumentParser):
    """An argparse parser that raises `UsageError` instead of printing usage and exiting."""

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


def build_parser(for_completion: bool = False) -> Parser:
    """The parser of all commands; `for_completion` adds the choices that shells offer."""
    parser = Parser(
        prog="precision-time",
        description="How long a training job will take, what it costs and whether it fits, in any precision.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="print the version and stop")
    parser.add_argument(
        "--completion", metavar="SHELL", choices=SHELLS, help=f"print a completion script: {', '.join(SHELLS)}"
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    for name, text in COMMANDS.items():
        usage = f"precision-time {name} {_USAGE[name]}"
        command = commands.add_parser(name, help=text, description=text, usage=usage, allow_abbrev=False)
        ADD_ARGUMENTS[name](command, for_completion)
        add_common_arguments(name, command)
    return parser


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The parsed command line. Raises `UsageError` with the nearest flag for anything unknown."""
    parser = build_parser()
    options, extra = parser.parse_known_args(with_present_names(sys.argv[1:] if arguments is None else arguments))
    if not extra:
        return options
    flags = [argument.split("=")[0] for argument in extra if argument.startswith("-")]
    command = f"{parser.prog} {options.command}" if options.command else parser.prog
    if not flags:
        raise UsageError(f"argument {extra[0]!r} is one too many; see {command} --help")
    known = flags_of(parser, options.command)
    fix = _elsewhere(extra) if "--batch-size" in known else ""
    fix = fix or f"nearest: {nearest(flags[0], known)}"
    raise UsageError(f"flag {flags[0]!r} is unknown; {fix}; see {command} --help")


def _elsewhere(extra: Sequence[str]) -> str:
    """What to write instead of the first unknown flag, where other tools have it."""
    at = next(i for i, argument in enumerate(extra) if argument.startswith("-"))
    flag, _, value = extra[at].partition("=")
    following = next((argument for argument in extra[at + 1 : at + 2] if not argument.startswith("-")), None)
    return other_words.where(flag.strip("-").replace("-", "_"), value or following, flag=True)


def flags_of(parser: argparse.ArgumentParser, command: str | None) -> list[str]:
    """The long flags of a command, or of the whole program."""
    chosen = parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction) and command in action.choices:
            chosen = action.choices[command]
    return [text for action in chosen._actions for text in action.option_strings if text.startswith("--")]
