"""The hardware of a job: the catalog with its device file, and its GPUs, nodes and fabric."""

from __future__ import annotations

from pathlib import Path

from precision_time.bounded_cache import bounded
from precision_time.hardware.catalog import Catalog, default_catalog
from precision_time.hardware.fabric import Cluster
from precision_time.job.job import Job


def catalog_of(job: Job) -> Catalog:
    """The shipped catalog, with the entries of the job's device file where it names one.

    Raises a `CatalogError` for a device file that cannot be read.
    """
    if not job.device:
        return default_catalog()
    try:
        state = Path(job.device).stat()
    except OSError:
        return default_catalog().with_file(job.device)  # says what is wrong
    return _with_file(job.device, state.st_mtime_ns, state.st_size)


def cluster_of(job: Job, catalog: Catalog | None = None) -> Cluster:
    """The GPUs, nodes and fabric of a job. Raises a `CatalogError` for an unknown GPU or an impossible count.

    A `system` that is no node type is a label, as publications have them, and decides nothing.
    """
    known = catalog or catalog_of(job)
    system = job.system if job.system and known.has_node(job.system) else None
    return _cluster(known, job.gpu, job.gpus, system or job.node, job.nodes)


@bounded()
def _with_file(device: str, _changed_ns: int, _size: int) -> Catalog:
    """The catalog with a device file; the file is read again only when its time or size changes."""
    return default_catalog().with_file(device)


@bounded()
def _cluster(catalog: Catalog, gpu: str, gpus: int, node: str | None, nodes: int | None) -> Cluster:
    return catalog.cluster(gpu, gpus, node=node, nodes=nodes)
