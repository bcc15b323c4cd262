"""SkyPilot: the time that its optimizer takes for a task, which is one hour for every task otherwise.

    task.set_time_estimator(time_estimator(job, nodes=task.num_nodes))

SkyPilot itself is not imported: a `Resources` has `accelerators`, a mapping of a name to a number on each node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil
from typing import Any

from precision_time.checks import show
from precision_time.errors import JobError
from precision_time.field_types import NODES, number
from precision_time.global_batch import at_global_batch, global_batch_of
from precision_time.hardware.aliases import SKYPILOT_GPUS
from precision_time.job.job import Job
from precision_time.prediction import predict

CONFIDENCE = number(0.5, 0.999)


def time_estimator(job: Job, nodes: int = 1, confidence: float = 0.5) -> Callable[[Any], int]:
    """A function of SkyPilot's `Resources`: whole seconds of the job's run on them, at the job's global batch.

    `confidence`: probability of ending within those seconds. The function raises a `PrecisionTimeError` for resources
    that the job cannot run on, and for a job without a length.
    """
    count, sure = NODES("nodes", nodes), CONFIDENCE("confidence", confidence)
    batch = global_batch_of(job)

    def seconds(resources: Any) -> int:
        gpu, each = _accelerators(resources)
        layout = job.layout_spec.text(with_dp=False)
        placed = job.replace(gpu=gpu, gpus=each * count, nodes=None, node=None, system=None, layout=layout)
        run = predict(at_global_batch(placed, batch)).goodput
        if run is None:
            raise JobError("a time needs the length of the run: give epochs (with a dataset), steps or samples")
        return ceil(run.wall.quantile(sure))

    return seconds


def _accelerators(resources: Any) -> tuple[str, int]:
    given = getattr(resources, "accelerators", None)
    if not isinstance(given, Mapping) or len(given) != 1:
        raise JobError(f"resources have accelerators {show(given)}; give one kind of GPU, for example H100:8")
    ((name, count),) = given.items()
    if not isinstance(count, (int, float)) or count < 1 or count != int(count):
        raise JobError(f"resources have {show(count)} of {show(name)}; give a whole number of GPUs")
    return SKYPILOT_GPUS.get(str(name), str(name)), int(count)
