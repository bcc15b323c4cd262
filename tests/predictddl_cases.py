"""Networks and measured jobs for the tests of PredictDDL: small graphs by hand, and times that follow a known law."""

from __future__ import annotations

import numpy as np

from precision_time.job.job import Job
from precision_time.predictors.interface import MeasuredJob, steps_of
from precision_time.predictors.predictddl.facts import facts_of
from precision_time.predictors.predictddl.network import Network
from precision_time.predictors.predictddl.primitives import Primitive

IMAGE_MODELS = ("resnet50", "vgg16", "densenet121", "mobilenet-v3-large", "inception-v3", "gpunet-0")


def network(
    types: list[Primitive], edges: list[tuple[int, int]], shapes: list[tuple[int, int, int, int]] | None = None
) -> Network:
    """A network of these nodes; every node does a million operations on a thousand bytes."""
    count = len(types)
    return Network(
        "by hand",
        np.array(types, dtype=np.int64),
        np.array(shapes or [(8, 8, 3, 3)] * count, dtype=np.int64),
        np.array(edges, dtype=np.int64).reshape(-1, 2).T.copy(),
        np.full(count, 1e6),
        np.full(count, 1e3),
        1000,
    )


def lawful(models: tuple[str, ...] = IMAGE_MODELS, gpu: str = "a100-80gb-sxm") -> list[MeasuredJob]:
    """Jobs whose time is 10 Tflop/s in fp32 and 40 in amp-bf16, plus a millisecond a step, halved by a second GPU."""
    found = []
    for model in models:
        for precision, rate in (("fp32", 1e13), ("amp-bf16", 4e13)):
            for batch in (16, 64):
                for gpus in (1, 2):
                    job = Job(
                        model, precision=precision, batch_size=batch, gpus=gpus, gpu=gpu,
                        run={"dataset": "imagenet", "samples": 4096},
                    )  # fmt: skip
                    flops = 3.0 * float(facts_of(job).network.flops.sum()) * 4096 / gpus
                    seconds = flops / rate + 1e-3 * steps_of(job)
                    found.append(
                        MeasuredJob(f"{job.signature()}", job, seconds, model, "imagenet", cost_s=2.0 * seconds)
                    )
    return found
