"""The catalog of GPUs, nodes, fabrics, storages and prices, as plain data. A user adds a device with a file."""

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
