"""Jobs with invented times for the tests of boosting and of its study."""

from __future__ import annotations

import math

from precision_time.job.job import Job
from precision_time.predictors.facts import facts_of
from precision_time.predictors.interface import MeasuredJob

MODELS = {"resnet50": "resnet", "bert-base": "bert", "vgg16": "vgg"}


UTILISATION = {"fp32": 0.8, "tf32": 0.6, "amp-fp16": 0.5}


def measured_jobs() -> list[MeasuredJob]:
    """72 jobs: three models, two GPUs, two precisions each, three batches, one GPU or eight."""
    found = []
    for model, family in MODELS.items():
        for gpu, precisions in (("v100-16gb-sxm", ("fp32", "amp-fp16")), ("a100-80gb-sxm", ("tf32", "amp-fp16"))):
            for precision in precisions:
                for batch in (8, 16, 32):
                    for gpus in (1, 8):
                        job = Job(model, precision=precision, batch_size=batch, gpu=gpu, gpus=gpus)
                        facts = facts_of(job)
                        seconds = facts.kernel_s / UTILISATION[precision] + 0.2 * facts.wire_s + 1e-3 * math.log2(gpus)
                        name = f"{model}-{gpu}-{precision}-{batch}-{gpus}"
                        found.append(MeasuredJob(name, job, seconds, family, cost_s=10.0))
    return found
