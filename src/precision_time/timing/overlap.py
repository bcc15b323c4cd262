"""How much compute slows while a collective runs beside it, and the collective beside compute.

A collective takes multiprocessors, held by its blocks while it runs, and memory bandwidth: two or three bytes for every
byte on the wire. With `s` the share of multiprocessors and `m` the share of memory bandwidth, compute-bound kernels
take 1 / (1 - s) times as long, memory-bound ones and the collective beside them 1 + m times (demand exceeds bandwidth
and is shared in proportion).

Every number is in `data/overlap.json` with its source; most are assumed. `scale`, one factor on both slowdowns, is
fitted on published steps (`data/layout_scales.json`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from precision_time.errors import JobError
from precision_time.hardware.fabric import Cluster, Group
from precision_time.shipped import shipped_file
from precision_time.timing.collectives import TREE_BUS_SHARE


@dataclass(frozen=True)
class Overlap:
    """Factors of at least 1 on the seconds that run beside each other."""

    compute: float
    communication: float
    source: str = "assumed"


NONE = Overlap(1.0, 1.0)
MOST_LOST = 1.0
"""Seconds that compute loses for each second beside a collective, at most: with more, compute that begins later and is
beside it for a shorter time would end earlier. The largest of the catalog is 0.79 (P100)."""

TREE_SHARE = 0.9
"""Of the rate of a tree over two domains, on average over a message: it is cut into chunks, each with its own latency.
The cost model of collectives has about 0.9 on the slowest networks at the size of DDP's buckets, and less on fast ones,
where the ring's pace counts."""


def overlap_slowdown(
    cluster: Cluster,
    group: Group,
    collective: str = "all_reduce",
    scale: float = 1.0,
    memory_bound: float | None = None,
) -> Overlap:
    """Factors for kernels of `cluster`'s GPU beside that collective of `group`.

    `scale` multiplies both slowdowns: 0 is none, 1 is the numbers as stated. `memory_bound`: the share of the compute
    that waits for memory, if known.
    """
    if scale < 0:
        raise JobError(f"scale of the overlap is {scale}; it is at least 0 (0: no slowdown, 1: as stated).")
    gpu = cluster.gpu
    if group.ranks == 1 or gpu.device_type != "cuda":
        return NONE
    numbers = _numbers()
    if collective not in numbers["memory_traffic"]:
        raise JobError(f"unknown collective {collective!r}; use one of {', '.join(sorted(numbers['memory_traffic']))}.")
    # Of few ranks, too, which use rings: then one more rank never slows compute less.
    in_switch = collective == "all_reduce" and group.intra.nvls_bytes_per_s > 0 and group.ranks_per_domain > 1
    total = gpu.sm_count or numbers["other_multiprocessors"]["value"]
    taken = min(0.5, _blocks(numbers, group, gpu.arch, in_switch) / total)
    traffic = numbers["memory_traffic"]["nvls" if in_switch else collective]["value"]
    memory = min(1.0, traffic * _bytes_per_s(group, collective, in_switch) / gpu.memory_bytes_per_s)
    waits = numbers["memory_bound_share"]["value"] if memory_bound is None else memory_bound
    compute = (1 - waits) * taken / (1 - taken) + waits * memory
    return Overlap(1 + min(scale * compute, MOST_LOST), 1 + scale * waits * memory)


def _blocks(numbers: Mapping[str, Any], group: Group, arch: str, in_switch: bool) -> float:
    """Thread blocks of the collective: each holds a multiprocessor."""
    if in_switch:
        return _of_arch(numbers["nvls_blocks"], arch)
    if group.ranks_per_domain == 1:
        return float(numbers["one_rank_blocks"]["value"])
    if group.intra.is_through_host:
        return float(numbers["through_host_blocks"]["value"])
    return _of_arch(numbers["ring_blocks"], arch)


def _of_arch(table: Mapping[str, Any], arch: str) -> float:
    return float(table.get(arch.split("-")[0], table["other"])["value"])


def _bytes_per_s(group: Group, collective: str, in_switch: bool) -> float:
    """Bytes that the collective moves through one GPU: the pace of its slowest link.

    In a ring this pace does not depend on the number of domains, nor then does the slowdown: a collective over one more
    domain, which takes as long or longer, takes no less from compute.
    """
    inside = group.intra.nvls_bytes_per_s if in_switch else group.bus_bytes_per_s
    if group.domains == 1:
        return inside
    across = group.neighbour_bytes_per_s
    if group.ranks_per_domain == 1:
        return across
    ring = min(inside, across)
    if collective != "all_reduce" or group.domains > 2:
        return ring
    # Two domains all-reduce in a tree: each byte crosses the network once, the bus twice, and a GPU as often as in a
    # ring of all ranks.
    tree = TREE_SHARE * min(inside if in_switch else TREE_BUS_SHARE * inside / 2, across)
    return max(ring, min(inside, tree * 2 * (1 - 1 / group.ranks)))


@cache
def _numbers() -> Mapping[str, Any]:
    numbers: dict[str, Any] = json.loads(shipped_file("timing/data/overlap.json").read_bytes())
    return numbers
