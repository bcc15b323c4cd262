"""The catalog of GPUs, nodes, fabrics and prices: the data files of the package and the device files of the user.

A catalog is immutable; `with_file` returns a new one. The functions of the module read the built-in catalog.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from math import ceil
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from precision_time.bounded_cache import bounded
from precision_time.checks import Entry, show
from precision_time.errors import CatalogError, nearest
from precision_time.hardware.aliases import GPU_ALIASES, plain, plain_gpu, plain_system
from precision_time.hardware.entries import (
    entries,
    fabric_from_entry,
    gpu_from_entry,
    node_from_entry,
)
from precision_time.hardware.fabric import Cluster, Fabric
from precision_time.hardware.gpu import Gpu
from precision_time.hardware.node import Node
from precision_time.hardware.prices import Price, Rental, price_from_entry, rental
from precision_time.names import joined, nearest_names
from precision_time.reading import plain_entry, read_mapping
from precision_time.shipped import shipped_file

_DATA = "hardware/data"
T = TypeVar("T")
_SECTIONS = ("gpus", "nodes", "fabrics", "prices")
MOST_ENTRIES = 1_000
"""Most entries of a section of a device file."""
_OWN_TO_A_NODE = {"default_for", "aliases", "source"}
"""Keys that a node does not inherit from the node that it is `based_on`."""


@dataclass(frozen=True, eq=False)
class Catalog:
    """Entries by name, ignoring case and punctuation. A device file overrides earlier ones and the package's data.

    A catalog compares and hashes by identity. Caches that take one as a key hold a reference to it, so its identity
    is not reused while the entry lives.
    """

    overlays: tuple[tuple[str, Entry], ...] = field(default=(), repr=False)
    """(path, parsed document) of each device file."""

    @cached_property
    def gpus(self) -> Mapping[str, Gpu]:
        gpus = dict(_builtin_gpus())
        for where, document in self.overlays:
            for name, entry in entries(document, "gpus", where).items():
                base = entry.get("based_on")
                if base is not None:
                    base = _find(gpus, _gpu_names(gpus), plain_gpu(str(base)), "GPU", str(base))
                gpus[name] = gpu_from_entry(name, entry, f"{where}: gpus: {name}", base)
        return MappingProxyType(gpus)

    @cached_property
    def nodes(self) -> Mapping[str, Node]:
        nodes = dict(_builtin_nodes())
        written = dict(_builtin_node_entries())
        for where, document in self.overlays:
            for name, entry in entries(document, "nodes", where).items():
                full = dict(entry)
                if (base := full.pop("based_on", None)) is not None:
                    first = _find(written, _node_names(nodes), plain_system(str(base)), "node", str(base))
                    full = {**{key: first[key] for key in first if key not in _OWN_TO_A_NODE}, **full}
                nodes[name] = node_from_entry(name, full, f"{where}: nodes: {name}")
                written[name] = full
        return MappingProxyType(nodes)

    @cached_property
    def fabrics(self) -> Mapping[str, Fabric]:
        fabrics = dict(_builtin_fabrics())
        for where, document in self.overlays:
            for name, entry in entries(document, "fabrics", where).items():
                fabrics[name] = fabric_from_entry(name, entry, f"{where}: fabrics: {name}")
        return MappingProxyType(fabrics)

    @cached_property
    def prices(self) -> Mapping[str, Price]:
        """By instance type."""
        prices = dict(_builtin_prices())
        for where, document in self.overlays:
            for name, entry in entries(document, "prices", where).items():
                price = price_from_entry(name, entry, f"{where}: prices: {name}")
                prices[name] = replace(price, gpu=self.gpu(price.gpu).name)
        return MappingProxyType(prices)

    def with_file(self, path: str | Path) -> Catalog:
        """This catalog with the `gpus:`, `nodes:`, `fabrics:` and `prices:` of a YAML or JSON device file added."""
        name = str(path)
        if self.has_gpu(name) and not Path(path).exists():
            raise CatalogError(f"there is no device file {name!r}; give a GPU of the catalog as gpu, not as device")
        return self.with_document(_read_document(Path(path)), name)

    def with_document(self, document: Entry, where: str = "device") -> Catalog:
        """The same from the parsed content of such a file; `where` names it in errors."""
        document = plain_entry(where, document)
        for section in document:
            if section not in _SECTIONS:
                raise CatalogError(
                    f"{where}: unknown section {show(section)}; use {', '.join(_SECTIONS)}"
                    f" (nearest: {nearest(section, _SECTIONS, 1)})."
                )
            if len(entries(document, section, where)) > MOST_ENTRIES:
                raise CatalogError(f"{where}: {section} has more than {MOST_ENTRIES:,} entries; give fewer.")
        new = Catalog((*self.overlays, (where, document)))
        for name in entries(document, "nodes", where):
            for key in ("intra", "inter"):
                fabric_name = getattr(new.nodes[name], key)
                if fabric_name is not None and fabric_name not in new.fabrics:
                    raise CatalogError(
                        f"{where}: nodes: {name}: {key} is {show(fabric_name)}, which is no fabric;"
                        f" nearest: {nearest(fabric_name, new.fabrics)}."
                    )
            for gpu_name in (*new.nodes[name].gpu_names, *new.nodes[name].default_for):
                if gpu_name not in new.gpus:
                    raise CatalogError(
                        f"{where}: nodes: {name}: {show(gpu_name)} is no GPU; nearest: {nearest(gpu_name, new.gpus)}."
                    )
        _ = new.gpus, new.fabrics  # validate every entry now, not at first use
        if document.get("prices"):
            _ = new.prices
        return new

    @cached_property
    def _other_gpu_names(self) -> Mapping[str, str]:
        return _gpu_names(self.gpus)

    def gpu(self, name: str) -> Gpu:
        """The GPU of that catalog name, alias, kernel-table name or driver name."""
        return _find(self.gpus, self._other_gpu_names, plain_gpu(name), "GPU", name)

    def has_gpu(self, name: str) -> bool:
        """Whether `gpu` knows this name."""
        return plain_gpu(name) in {plain_gpu(each) for each in self.gpus} | self._other_gpu_names.keys()

    def gpus_like(self, text: str) -> list[Gpu]:
        """The GPUs whose name contains a text, else the one that it names otherwise."""
        named = [gpu for name, gpu in self.gpus.items() if text.lower() in name.lower()]
        return named or [self.gpu(text)]

    def node(self, name: str) -> Node:
        """The node of a catalog name, an alias, or a `system` of the measurement tables."""
        return _find(self.nodes, _node_names(self.nodes), plain_system(name), "node", name)

    def has_node(self, name: str) -> bool:
        """Whether `node` knows this name."""
        return plain_system(name) in {plain(each) for each in self.nodes} | _node_names(self.nodes).keys()

    def fabric(self, name: str) -> Fabric:
        return _find(self.fabrics, {}, plain(name), "fabric", name)

    def default_node(self, gpu: Gpu, gpus: int = 1) -> Node:
        """The node type that is taken for a GPU where the job names none.

        `gpus`: of a job on one node. One with more GPUs than that node has, which exactly fills a larger node, gets
        that: 16 x V100-32GB on one node are a DGX-2.
        """
        # Latest entries first, so that a device file can change a default.
        usual = next((node for node in reversed(list(self.nodes.values())) if gpu.name in node.default_for), None)
        if usual is None:
            fitting = [node for node in self.nodes.values() if gpu.name in node.gpu_names]
            if not fitting:
                return Node(f"single-{gpu.name}", (gpu.name,), 1, "pcie4", source="assumed: a lone device")
            usual = fitting[-1]
        if gpus > usual.gpus_per_node and usual.domain_gpus == usual.gpus_per_node:
            for node in self.nodes.values():
                if gpu.name in node.gpu_names and node.gpus_per_node == gpus:
                    return node
        return usual

    def cluster(
        self, gpu: str | Gpu, gpus: int = 1, node: str | Node | None = None, nodes: int | None = None
    ) -> Cluster:
        """`gpus` GPUs in equal shares on `nodes` nodes. Default: the GPU's default node, and as few as hold the GPUs,
        filled one after another."""
        device = gpu if isinstance(gpu, Gpu) else self.gpu(gpu)
        if gpus < 1:
            raise CatalogError(f"gpus is {gpus}; it must be at least 1.")
        if node is None or node == "":
            box = self.default_node(device, gpus if nodes == 1 else 1)
        else:
            box = node if isinstance(node, Node) else self.node(node)
        if not box.fits(device.name):
            raise CatalogError(f"node {box.name} does not hold {device.name}; it holds {', '.join(box.gpu_names)}.")
        packed = nodes is None
        inter = None if box.inter is None else self.fabric(box.inter)
        least = ceil(gpus / box.gpus_per_node)
        return Cluster(device, box, self.fabric(box.intra), inter, gpus, nodes or least, packed)

    def rental(self, price: str, cluster: Cluster) -> Rental:
        """The cloud instances for a cluster's GPUs; `price` is a provider, `any` of them, or an instance type."""
        return rental(self.prices.values(), price, cluster.gpu.name, cluster.gpus, cluster.gpus_per_node)


@cache
def default_catalog() -> Catalog:
    """The data files of the package alone."""
    return Catalog()


def load_device_file(path: str | Path) -> Catalog:
    """The built-in catalog with a user's device file added."""
    return default_catalog().with_file(path)


def gpu(name: str) -> Gpu:
    return default_catalog().gpu(name)


def node(name: str) -> Node:
    return default_catalog().node(name)


def fabric(name: str) -> Fabric:
    return default_catalog().fabric(name)


def cluster(gpu: str | Gpu, gpus: int = 1, node: str | Node | None = None, nodes: int | None = None) -> Cluster:
    return default_catalog().cluster(gpu, gpus, node, nodes)


@bounded()
def weaker_gpus(gpu: Gpu) -> tuple[Gpu, ...]:
    """The catalog's GPUs of the same architecture that are in no figure better than `gpu`.

    Left out are those added after the parameters were fitted, so that a new row moves no prediction for other devices.
    """
    return tuple(
        other
        for other in _builtin_gpus().values()
        if other.name != gpu.name and other.arch == gpu.arch and not after_fit(other) and _dominates(gpu, other)
    )


@bounded()
def stronger_gpus(gpu: Gpu) -> tuple[Gpu, ...]:
    """The catalog's GPUs of the same architecture that `gpu` is in no figure better than.

    Those added after the parameters were fitted are left out for all others.
    """
    every = after_fit(gpu)
    return tuple(
        other
        for other in _builtin_gpus().values()
        if other.name != gpu.name
        and other.arch == gpu.arch
        and (every or not after_fit(other))
        and _dominates(other, gpu)
    )


def after_fit(gpu: Gpu) -> bool:
    """Whether the device was added to the catalog after the parameters were fitted (column `after_fit` of gpus.csv)."""
    return gpu.name in _after_fit()


def _figures(gpu: Gpu) -> tuple[float | None, ...]:
    return gpu.memory_bytes_per_s, gpu.sm_count, gpu.top_hz, gpu.l2_bytes, gpu.tdp_w


def _dominates(better: Gpu, worse: Gpu) -> bool:
    """Whether every figure and peak of `worse` is known of both, and not higher than that of `better`."""
    figures = [*zip(_figures(better), _figures(worse), strict=True)]
    figures += [(better.peaks.get(name), peak) for name, peak in worse.peaks.items()]
    return all(more is not None and less is not None and more >= less for more, less in figures)


@cache
def _builtin_gpus() -> Mapping[str, Gpu]:
    gpus = {}
    for row in _gpu_rows():
        name = row["name"]
        entry = {key: value for key, value in row.items() if key != "after_fit"}
        gpus[name] = gpu_from_entry(name, entry, f"gpus.csv: {name}")
    for name, same in _SAME_CHIP.items():
        gpus[name] = replace(gpus[name], kernel_name=gpus[same].kernel_name)
    return gpus


_SAME_CHIP = {
    "a800-80gb-sxm": "a100-80gb-sxm",
    "a800-80gb-pcie": "a100-80gb-pcie",
    "h800-80gb-sxm": "h100-80gb-sxm",
    "h100-96gb-sxm": "h100-80gb-sxm",
}
"""Devices that differ from another in NVLink (the H800 in fp64 as well) or in the size of memory alone, and have its
kernel times."""


@cache
def _after_fit() -> frozenset[str]:
    return frozenset(row["name"] for row in _gpu_rows() if row["after_fit"])


@cache
def _gpu_rows() -> tuple[dict[str, str], ...]:
    with shipped_file(f"{_DATA}/gpus.csv").open(newline="", encoding="utf-8") as lines:
        return tuple(csv.DictReader(lines))


@cache
def _builtin_nodes() -> Mapping[str, Node]:
    return {
        name: node_from_entry(name, entry, f"nodes.yaml: {name}") for name, entry in _builtin_node_entries().items()
    }


@cache
def _builtin_node_entries() -> Mapping[str, Entry]:
    return _read_document(shipped_file(f"{_DATA}/nodes.yaml"))


@cache
def _builtin_fabrics() -> Mapping[str, Fabric]:
    document = _read_document(shipped_file(f"{_DATA}/fabrics.yaml"))
    return {name: fabric_from_entry(name, entry, f"fabrics.yaml: {name}") for name, entry in document.items()}


@cache
def _builtin_prices() -> Mapping[str, Price]:
    document = _read_document(shipped_file(f"{_DATA}/prices.yaml"))
    sources = document["sources"]
    return {
        name: price_from_entry(
            name, {**entry, "source": sources.get(entry["source"], entry["source"])}, f"prices.yaml: {name}"
        )
        for name, entry in document["prices"].items()
    }


def _read_document(path: Path) -> dict[str, Any]:
    return read_mapping(path, "device file", "gpus: {my-gpu: {based_on: a100-80gb-sxm}}")


def _node_names(nodes: Mapping[str, Node]) -> dict[str, str]:
    """Plain other name -> catalog name."""
    return {plain_system(alias): node.name for node in nodes.values() for alias in node.aliases}


def _gpu_names(gpus: Mapping[str, Gpu]) -> dict[str, str]:
    """Plain other name -> catalog name: kernel-table names, then the stated aliases."""
    names = {plain_gpu(gpu.kernel_name): gpu.name for gpu in reversed(list(gpus.values()))}  # the first of equal ones
    return {**names, **GPU_ALIASES}


def _find(known: Mapping[str, T], others: Mapping[str, str], name: str, kind: str, asked: str) -> T:
    """By exact name, then by plain name, by other name, and without separators ('rtx4090') where that is one entry."""
    if asked in known:
        return known[asked]
    plain_names = {plain(each): each for each in known}
    target = plain_names.get(name) or others.get(name)
    if target is not None:
        return known[target]
    every = {**others, **plain_names}
    same = {each for other, each in every.items() if joined(other) == joined(name)}
    if len(same) == 1:
        return known[same.pop()]
    spelled = {joined(each) for each in known}
    choices = [*known, *(other for other in others if joined(other) not in spelled)]
    raise CatalogError(
        f"unknown {kind} {show(asked)}; nearest: {nearest_names(name, choices)};"
        f" or describe it in a device file (docs/hardware.md)."
    )
