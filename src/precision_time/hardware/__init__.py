"""The catalog of GPUs, nodes, fabrics, storages and prices.

takes     names, and device files of the user
gives     `Gpu`, `Node`, `Fabric`, `Cluster` and its communicators (`Group`), `Storage`, `Rental`
imports   no models and no jobs
"""

from precision_time.hardware.catalog import (
    Catalog,
    cluster,
    default_catalog,
    fabric,
    gpu,
    load_device_file,
    node,
)
from precision_time.hardware.fabric import Cluster, Fabric, Group
from precision_time.hardware.gpu import Gpu
from precision_time.hardware.node import Node
from precision_time.hardware.prices import Price, Rental

__all__ = [
    "Catalog",
    "Cluster",
    "Fabric",
    "Gpu",
    "Group",
    "Node",
    "Price",
    "Rental",
    "cluster",
    "default_catalog",
    "fabric",
    "gpu",
    "load_device_file",
    "node",
]
