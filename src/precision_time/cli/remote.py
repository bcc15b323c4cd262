"""The commands that ask a server: `predict`, `compare`, `plan` and `walltime` with `--server URL`."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from precision_time.cli.parser import UsageError
from precision_time.cli.streams import note
from precision_time.plan.walltime import CONFIDENCE, FORMAT

if TYPE_CHECKING:
    from precision_time.client import Client
    from precision_time.comparison import Comparison
    from precision_time.estimate.estimate import Estimate
    from precision_time.job import Job

_HERE = ("trace", "largest_batch", "trained", "workers", "dask", "global_batch_size")
"""Flags of what happens in this process, or is not asked of a server."""
_PLAN_HERE = ("plot", "workers", "dask")


def _client(options: Namespace, here: Sequence[str] = _HERE) -> Client:
    """The client of `--server`; flags that do not go with one are refused."""
    from precision_time.client import Client

    for name in here:
        if getattr(options, name, None):
            raise UsageError(f"--{name.replace('_', '-')} does not go with --server; leave one of them out")
    if getattr(options, "predictor", "simulator") != "simulator":
        raise UsageError("--predictor does not go with --server, which has the simulator; leave one of them out")
    return Client(options.server, cluster=options.cluster_name)


def predict(options: Namespace, job: Job) -> Estimate:
    """The estimate of a server; a note names its id."""
    with _client(options) as client:
        estimate = client.predict(job)
    if estimate.prediction:
        note(f"prediction {estimate.prediction}")
    return estimate


def compare(options: Namespace, bases: Sequence[Job], axes: Mapping[str, Sequence[Any]]) -> Comparison:
    """The comparison of a server, in the order that the flags ask for."""
    from precision_time.cli.comparing import arranged, check_order

    if len(bases) > 1:
        raise UsageError("--server compares one model at a time; name one")
    check_order(options)
    names = {
        "precision": "precisions", "gpu": "gpus", "gpus": "counts", "layout": "layouts", "batch_size": "batch_sizes"
    }  # fmt: skip
    with _client(options) as client:
        found = client.compare(bases[0], **{names[name]: list(values) for name, values in axes.items()})
    return arranged(options, found)


def plan(options: Namespace, job: Job) -> tuple[dict[str, Any], str]:
    """The plan of a server: for JSON, and as text."""
    from precision_time.cli.planning import goal_of, space_fields

    with _client(options, _PLAN_HERE) as client:
        content = client.plan(job, goal_of(options), space_fields(options), options.quantile)
    return content, content.pop("text")


def walltime(options: Namespace, job: Job) -> tuple[dict[str, Any], str]:
    """The time limit of a server: for JSON, and the lines to paste."""
    form, sure = FORMAT("format", options.format), CONFIDENCE("confidence", options.confidence)
    with _client(options) as client:
        limit = client.walltime(job, sure, form)
    return limit.to_dict(), limit.text
