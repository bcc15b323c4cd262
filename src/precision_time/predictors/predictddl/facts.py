"""Facts of a job before it runs: its network, its cluster and its run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from precision_time.bounded_cache import bounded
from precision_time.capture.captured_model import CapturedModel, capture_model
from precision_time.errors import CatalogError, PredictorError
from precision_time.hardware.fabric import Cluster
from precision_time.job.code import check_code, is_code
from precision_time.job.job import Job
from precision_time.job.precision import parse_precision
from precision_time.placement import catalog_of, cluster_of
from precision_time.predictors.interface import global_batch_size, steps_of
from precision_time.predictors.predictddl.network import Network, network_of
from precision_time.predictors.predictddl.traced import TracedNetwork, job_of, key_of
from precision_time.zoo.names import find

_TRACED_BATCH = 8
"""Batch of the capture. Facts are per sample, so one batch gives one trace for all jobs of a network."""


@dataclass(frozen=True, slots=True, eq=False)
class Facts:
    """Facts of one job. `steps` and `samples` are those of its run, or of one step."""

    job: Job
    network: Network
    cluster: Cluster | None
    """None where the job's device is neither in the catalog nor in a device file; it then has no peaks."""
    dataset: str
    batch_size: int
    ranks: int
    nodes: int
    steps: float
    samples: float
    resolution: float
    """Pixels on a side, or positions of a sequence; 1 where the job has neither."""

    @property
    def gpu(self) -> str:
        """The catalog name where there is one, so that a100 and a100-80gb-sxm are one device."""
        return self.cluster.gpu.name if self.cluster else self.job.gpu


def facts_of(job: Job, networks: Mapping[str, TracedNetwork] = MappingProxyType({})) -> Facts:
    """The facts of a job. Raises an error for an unknown model, a layout that is not data parallel, or a bad run.

    `networks` (by `key_of`) are taken as they are; others are traced.
    """
    if not job.layout_spec.plain:
        raise PredictorError(
            f"layout {job.layout} is not plain data parallelism, the only layout of predictddl; "
            "use layout dp or predictor simulator"
        )
    model = networks.get(key_of(job)) or _model_of(job)
    sized = job if job.batch_size else job.replace(batch_size=model.batch_size)
    if sized.run.epochs is not None and not sized.run.dataset and not sized.run.dataset_size and model.dataset:
        sized = sized.replace(dataset=model.dataset)
    cluster = described_cluster(job)
    steps = steps_of(sized)
    return Facts(
        job=sized,
        network=model.network,
        cluster=cluster,
        dataset=_plain(job.run.dataset or model.dataset),
        batch_size=int(sized.batch_size or 1),
        ranks=job.gpus,
        nodes=cluster.nodes if cluster else job.nodes or 1,
        steps=steps,
        samples=float(job.run.samples or steps * global_batch_size(sized)),
        resolution=model.resolution,
    )


def _model_of(job: Job) -> TracedNetwork:
    """Traced once for all jobs of the network, of any precision, device and batch size."""
    if is_code(job.model):
        check_code(job.code, job.model)
    return _remembered(key_of(job))


@bounded()
def _remembered(key: str) -> TracedNetwork:
    return traced_network(job_of(key))


def traced_network(job: Job) -> TracedNetwork:
    """The network of a job, from the graph that ships or traced here and now."""
    entry = find(job.model)
    step = _captured(job if is_code(job.model) else job.replace(batch_size=_TRACED_BATCH))
    usual = entry.batch_size if entry else step.batch_size
    return TracedNetwork(network_of(step.graph, step.batch_size), step.dataset or "", usual, _resolution(step.sizes))


def _captured(job: Job) -> CapturedModel:
    """The step whose graph describes the network: in fp32 and for CUDA, so that it is the same for every job of it."""
    return capture_model(job, parse_precision("fp32"), "cuda")


def _plain(name: str) -> str:
    """The name of a dataset type without case, hyphens and underscores."""
    return name.strip().lower().replace("-", "").replace("_", "")


def described_cluster(job: Job) -> Cluster | None:
    """The job's cluster; None where its device is not described. Raises a `CatalogError` for a bad node or count."""
    if job.device is None:
        try:
            catalog_of(job).gpu(job.gpu)
        except CatalogError:
            return None
    return cluster_of(job)


def _resolution(sizes: Mapping[str, Any]) -> float:
    for name in ("image_size", "seq_len", "audio_frames", "volume"):
        value = sizes.get(name)
        if isinstance(value, (int, float)):
            return float(value)
        if isinstance(value, (tuple, list)) and value:
            return float(value[0])
    return 1.0
