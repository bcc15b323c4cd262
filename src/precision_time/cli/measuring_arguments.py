"""The flags and arguments of the commands that measure on this machine, and of those that fit to measurements."""

from __future__ import annotations

from precision_time.cli.flags import FLAGS, VERIFY_AXES
from precision_time.cli.job_arguments import SEVERAL, SOURCE, Parser, add_job_flags

VERIFY_PRECISIONS = "fp32,amp-bf16"

_NOT_MEASURED = ("anchors", "data", "gpu", "node", "nodes", "system", *(f.field for f in FLAGS if f.group == "run"))
"""Fields of a job that do not apply to measuring on this machine."""


def add_calibrate(parser: Parser, complete: bool) -> None:
    parser.add_argument(
        "source", nargs="*", metavar="MODEL|FILE", help=SOURCE + "; their operators are measured too, in their shapes"
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


def add_measure(parser: Parser, complete: bool) -> None:
    parser.add_argument("source", nargs="*", metavar="MODEL|FILE", help=SOURCE + "; their operators come first")
    parser.add_argument("--output", metavar="FOLDER", help="folder to create or to continue (default measurements)")
    parser.add_argument(
        "--only",
        metavar="KIND",
        action="append",
        help=f"operators, updates, steps, host, ranks; {SEVERAL} (default: all)",
    )
    _add_machine_flags(parser, "10min")
    _add_measured_job_flags(parser, complete)


def add_verify(parser: Parser, complete: bool) -> None:
    parser.add_argument(
        "source", nargs="*", metavar="MODEL|FILE", help=SOURCE + " (default: a small CNN and a small transformer)"
    )
    parser.add_argument("--save", metavar="FILE", help="keep the calibration as a device file: .json")
    parser.add_argument("--runs", metavar="N", default="3", help="number of times that each job is trained (default 3)")
    parser.add_argument(
        "--steps", metavar="N", dest="measured_steps", default="60", help="maximum measured steps of a run (default 60)"
    )
    _add_machine_flags(parser, "180s")
    add_job_flags(parser, complete, VERIFY_AXES, _NOT_MEASURED, f"default: {VERIFY_PRECISIONS}")


def add_runs(parser: Parser, complete: bool) -> None:
    parser.add_argument("--output", metavar="FOLDER", help="folder to create or to continue (default small-networks)")
    parser.add_argument(
        "--only", metavar="NETWORK", action="append", help=f"only these small networks; {SEVERAL} (default: all)"
    )
    parser.add_argument("--quick", action="store_true", help="a trial: smallest parts in fp32, once, no device file")
    _add_machine_flags(parser, "35min")


def add_train(parser: Parser, complete: bool) -> None:
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


def add_fit(parser: Parser, complete: bool) -> None:
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


def _add_machine_flags(parser: Parser, budget: str | None) -> None:
    """Flags of the commands that measure on this machine."""
    default = budget or "180s, of a storage 20s"
    parser.add_argument("--budget", metavar="TIME", default=budget, help=f"time to measure (default {default})")
    parser.add_argument("--on", metavar="KIND", help="cpu or cuda (default: the GPU if there is one)")
    parser.add_argument("--ranks", metavar="N", help="processes that share this machine (default: 2, or its GPUs)")
    parser.add_argument("--threads", metavar="N", help="threads of each process (default: an equal share of the cores)")


def _add_measured_job_flags(parser: Parser, complete: bool) -> None:
    without = (*_NOT_MEASURED, "gpus", "device")
    add_job_flags(parser, complete, ("precision",), without, f"default: {VERIFY_PRECISIONS}")


def _add_tables_flag(parser: Parser) -> None:
    parser.add_argument(
        "--tables",
        metavar="DIR",
        help="folder with published/, kernels/ and cloud-configurations/ (default: data/ of the repository)",
    )
