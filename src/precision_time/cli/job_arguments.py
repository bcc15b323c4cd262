"""The flags that many commands share: the fields of a job, files that a job is taken from, processes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from precision_time.cli.flags import FLAGS

SOURCE = "a model (name, torchvision:NAME, timm:NAME, hf:FILE, FILE.py:FUNCTION) or a job file (.yaml, .json)"
SEVERAL = "several with commas or by repeating the flag"

Parser = argparse.ArgumentParser


def add_job_flags(
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
            text += "; several by repeating the flag" if flag.field == "layout" else f"; {SEVERAL}"
            text += f" ({precisions})" if flag.field == "precision" else ""
        groups[flag.group].add_argument(
            flag.text,
            dest=flag.field,
            metavar="VALUE",
            action="append" if flag.field in several else "store",
            choices=flag.choices or None if complete else None,
            help=text.replace("%", "%%"),
        )


def add_job_sources(parser: Parser, cluster: bool = True) -> None:
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


def add_quantile_flag(parser: Parser, beside: str = "") -> None:
    """The flag of a further quantile; `beside`: instead of which other one."""
    parser.add_argument(
        "--quantile",
        metavar="P",
        help=f"{beside or 'also '}show what times, cost and memory stay below with this probability: 0.95",
    )


def add_workers_flags(parser: Parser) -> None:
    parser.add_argument("--workers", metavar="N", help="processes (default: as many as are worth starting)")
    parser.add_argument("--dask", metavar="ADDRESS", help="scheduler of a Dask cluster: tcp://host:8786")


def add_server_flag(parser: Parser) -> None:
    parser.add_argument(
        "--server",
        metavar="URL",
        help="ask a server (precision-time serve) instead of predicting here; its token is $PRECISION_TIME_TOKEN",
    )
    parser.add_argument("--cluster-name", metavar="NAME", help="with --server: whose outcomes correct the prediction")
