"""Networks traced once and kept as a table, so that training on the published rows traces nothing.

`data/traced/networks.npz` of the repository has the graph of every model and input of the published data-parallel
steps; `python -m benchmarks.papers.predictddl_networks` writes it.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from precision_time.errors import DataError
from precision_time.job.code import GIVEN
from precision_time.job.job import Job
from precision_time.measurements.repository import data_folder
from precision_time.predictors.interface import MeasuredJob
from precision_time.predictors.predictddl.network import Network
from precision_time.predictors.published import all_published
from precision_time.report.write import write_whole

TABLE = Path("traced") / "networks.npz"
"""In the data folder of the repository."""


@dataclass(frozen=True, slots=True, eq=False)
class TracedNetwork:
    """The network of a model with its configuration and input.

    `dataset` is its type of data, `batch_size` its default, `resolution` as in `Facts`, `family` the model family of
    `precision_time.fit.traced.family_of` ("" where it was not asked for).
    """

    network: Network
    dataset: str
    batch_size: int
    resolution: float
    family: str = ""


def key_of(job: Job) -> str:
    """Equal for all jobs of a network: its model, configuration and input as JSON."""
    fields: dict[str, Any] = {"model": job.model, "model_config": dict(job.model_config), "input": dict(job.input)}
    return json.dumps(fields, sort_keys=True)


def job_of(key: str) -> Job:
    """The job of which only the network is given: whatever framework or attention a row ran, its network is one."""
    return Job.from_fields(json.loads(key), GIVEN)  # its code, if any, was checked before


def write_table(path: Path, networks: Mapping[str, TracedNetwork]) -> None:
    """Write the networks by key: the nodes and edges of all, one network behind the other."""
    of = [each.network for each in networks.values()]
    cells = [
        {
            "key": key, "name": each.network.name, "family": each.family, "dataset": each.dataset,
            "batch_size": each.batch_size, "resolution": each.resolution, "parameters": each.network.parameters,
            "nodes": each.network.nodes, "edges": each.network.edges.shape[1],
        }
        for key, each in networks.items()
    ]  # fmt: skip
    packed = io.BytesIO()
    np.savez_compressed(
        packed,
        cells=np.array(json.dumps(cells)),
        types=np.concatenate([each.types for each in of]).astype(np.uint8),
        shapes=np.concatenate([each.shapes for each in of]).astype(np.int32),
        edges=np.concatenate([each.edges for each in of], axis=1).astype(np.int16),
        flops=np.concatenate([each.flops for each in of]).astype(np.float32),
        bytes=np.concatenate([each.bytes for each in of]).astype(np.float32),
    )
    write_whole(path, packed.getvalue())


def read_table(path: Path) -> dict[str, TracedNetwork]:
    """The networks by key. Raises a `DataError` where the file is damaged."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        cells = json.loads(str(arrays["cells"]))
        return {cell["key"]: made for cell, made in zip(cells, _networks(cells, arrays), strict=True)}
    except (OSError, ValueError, KeyError) as error:
        raise DataError(
            f"table of networks {str(path)!r} cannot be read ({type(error).__name__}); make it again with "
            "python -m benchmarks.papers.predictddl_networks"
        ) from error


def _networks(cells: Iterable[Mapping[str, Any]], arrays: Mapping[str, Any]) -> Iterable[TracedNetwork]:
    node = edge = 0
    for cell in cells:
        nodes, edges = slice(node, node + cell["nodes"]), slice(edge, edge + cell["edges"])
        node, edge = nodes.stop, edges.stop
        yield TracedNetwork(
            Network(
                cell["name"],
                arrays["types"][nodes].astype(np.int64),
                arrays["shapes"][nodes].astype(np.int64),
                arrays["edges"][:, edges].astype(np.int64),
                arrays["flops"][nodes].astype(np.float64),
                arrays["bytes"][nodes].astype(np.float64),
                cell["parameters"],
            ),
            cell["dataset"],
            cell["batch_size"],
            cell["resolution"],
            cell["family"],
        )


@cache
def known_networks() -> Mapping[str, TracedNetwork]:
    """The repository's table; empty where there is no such file."""
    folder = data_folder(None)
    path = folder / TABLE if folder is not None else None
    return read_table(path) if path is not None and path.is_file() else {}


def published_steps(data: Path) -> tuple[MeasuredJob, ...]:
    """The published steps in plain data parallelism whose network is in the table: what ships is trained on them."""
    known = known_networks()
    return tuple(each for each in data_parallel(all_published(data)) if key_of(each.job) in known)


def data_parallel(measured: Iterable[MeasuredJob]) -> list[MeasuredJob]:
    """The jobs in plain data parallelism, the only layout of PredictDDL."""
    return [each for each in measured if each.job.layout_spec.plain]
