"""What is known of a job before it runs: its network, its cluster, its run. No column yet, no number invented."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from precision_time.capture.training_step import TrainingStep, training_step
from precision_time.errors import CatalogError, PredictorError
from precision_time.hardware.catalog import Catalog, default_catalog, load_device_file
from precision_time.hardware.fabric import Cluster
from precision_time.job.job import Job
from precision_time.job.precision import parse_precision
from precision_time.predictors.interface import global_batch_size, steps_of
from precision_time.predictors.predictddl.network import Network, network_of

_TRACED_BATCH = 8
"""Networks are described per sample; this batch is only for the capture, and one for all keeps it to one trace each."""


@dataclass(frozen=True, slots=True, eq=False)
class Facts:
    """Of one job. Counts are of the whole job: `steps` and `samples` of its run, or of one step."""

    job: Job
    network: Network
    cluster: Cluster | None
    """None where the job's device is no GPU of the catalog (a CPU that is not described): it then has no peaks."""
    dataset: str
    batch_size: int
    ranks: int
    nodes: int
    steps: float
    samples: float
    resolution: float
    """Pixels on a side, or positions of a sequence; 1 where the job has neither."""


def facts_of(job: Job) -> Facts:
    """Raises the errors of the task checker's parts: unknown model, layout other than data parallel, no length."""
    if not job.layout_spec.plain:
        raise PredictorError(
            f"layout {job.layout} is not plain data parallelism, which is all that predictddl knows; "
            "use layout dp or predictor line"
        )
    plain = _plain(job)
    step = captured(plain)
    sized = job if job.batch_size else job.replace(batch_size=step.batch_size)
    dataset = dataset_type(job, step)
    if sized.run.epochs is not None and not sized.run.dataset and not sized.run.dataset_size and step.dataset:
        sized = sized.replace(dataset=step.dataset)
    steps = steps_of(sized)
    cluster = cluster_of(job)
    return Facts(
        job=sized,
        network=_network(plain),
        cluster=cluster,
        dataset=dataset,
        batch_size=int(sized.batch_size or 1),
        ranks=job.gpus,
        nodes=cluster.nodes if cluster else job.nodes or 1,
        steps=steps,
        samples=float(job.run.samples or steps * global_batch_size(sized)),
        resolution=_resolution(step.sizes),
    )


def captured(job: Job) -> TrainingStep:
    """The step whose graph describes the network: in fp32 and for CUDA, so that it is the same for every job of it."""
    return training_step(job, parse_precision("fp32"), "cuda")


def _plain(job: Job) -> Job:
    """Only what makes the network."""
    words: dict[str, Any] = {"model_config": job.model_config, "input": job.input, "optimizer": job.optimizer}
    own = job.model.endswith(".py") or ".py:" in job.model
    return Job(job.model, batch_size=None if own else _TRACED_BATCH, **words)


def _network(plain: Job) -> Network:
    return _remembered(json.dumps(plain.to_dict(), sort_keys=True))


@lru_cache(maxsize=512)
def _remembered(words: str) -> Network:
    step = captured(Job.from_dict(json.loads(words)))
    return network_of(step.graph, step.batch_size)


def dataset_type(job: Job, step: TrainingStep | None = None) -> str:
    """What one predictor is trained for: the job's data set, else its model's own, else ""."""
    name = job.run.dataset or (step.dataset if step is not None else captured(_plain(job)).dataset) or ""
    return name.strip().lower().replace("-", "").replace("_", "")


def cluster_of(job: Job) -> Cluster | None:
    """The job's cluster; None where its device is not described. Raises a `CatalogError` for a bad node or count."""
    catalog: Catalog = load_device_file(job.device) if job.device else default_catalog()
    if job.gpu not in catalog.gpus and job.device is None:
        try:
            catalog.gpu(job.gpu)
        except CatalogError:
            return None
    return catalog.cluster(job.gpu, job.gpus, node=job.system or job.node, nodes=job.nodes)


def _resolution(sizes: Any) -> float:
    for name in ("image_size", "seq_len", "audio_frames", "volume"):
        value = sizes.get(name)
        if isinstance(value, (int, float)):
            return float(value)
        if isinstance(value, (tuple, list)) and value:
            return float(value[0])
    return 1.0
