"""The flags of `record` and `store`."""

from __future__ import annotations

import argparse

Parser = argparse.ArgumentParser
_DATABASE = "the store: a file or postgresql://... (default: a file in the user's data directory)"


def add_record(parser: Parser, complete: bool) -> None:
    parser.add_argument(
        "source",
        nargs="?",
        metavar="PREDICTION|FILE",
        help="id of a prediction, an outcome file of a callback (.json), or a table (.csv) of outcomes by prediction "
        "or of measured jobs as for evaluate",
    )
    parser.add_argument(
        "--slurm",
        metavar="FILE",
        help="ended jobs whose comment is precision-time:ID, as `sacct --parsable2` or `scontrol show job --oneliner` "
        "print them; - for standard input",
    )
    measured = parser.add_argument_group("measured values of a prediction that is given by its id")
    measured.add_argument("--step-s", metavar="SECONDS", help="median seconds of a step")
    measured.add_argument("--run-s", metavar="SECONDS", help="seconds from launch to end")
    measured.add_argument("--peak-bytes", metavar="BYTES", help="highest memory of the fullest GPU")
    measured.add_argument("--finished", metavar="yes|no", help="whether all steps were done")
    measured.add_argument("--exit-code", metavar="N", help="of the job: 0 is --finished yes, any other --finished no")
    measured.add_argument(
        "--machine", metavar="NAME=VALUE", action="append", help="what ran it, host=node17; may be repeated"
    )
    measured.add_argument("--key", metavar="KEY", help="the same key twice is one outcome (default: from the content)")
    parser.add_argument("--prediction", metavar="ID", help="whose outcome an outcome file is, in place of its own")
    where = parser.add_argument_group("where")
    where.add_argument("--database", metavar="FILE|URL", help=_DATABASE)
    where.add_argument("--server", metavar="URL", help="a server instead; its token is $PRECISION_TIME_TOKEN")
    where.add_argument("--cluster-name", metavar="NAME", help="the cluster that ran jobs of files and tables")


def add_store(parser: Parser, complete: bool) -> None:
    parser.add_argument(
        "action",
        nargs="*",
        metavar="ACTION",
        help="backup FILE, restore FILE, check FILE (of a backup), or nothing: what the store has",
    )
    parser.add_argument("--database", metavar="FILE|URL", help=_DATABASE)
