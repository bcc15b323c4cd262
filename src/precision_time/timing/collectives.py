"""How long a collective takes: NCCL's own cost model with fitted constants.

For every algorithm (ring, tree, in-switch NVLS and its tree between nodes, PAT, and the hierarchy of one domain
at a time) and protocol (LL, LL128, Simple)

    time = a + b + 2 k sqrt(a b)    a: latency, base + hops x hop    b: bytes on the busiest link / bandwidth

and the least of them is taken, as in NCCL. The last term is the cost of pipelining: a message cut into chunks pays
latency per chunk and bandwidth per byte, and the best chunk size leaves a multiple of their geometric mean. It explains
why bus bandwidth still grows from 16 MB to 1 GB.

Structure: NCCL src/graph/tuning.cc. Constants: `data/collectives.json`, written by
`precision-time fit collectives`. Fabrics: `hardware/data/fabrics.yaml`.
`nbytes` is what nccl-tests calls the size: the whole buffer (all-gather: the gathered output; reduce-scatter:
the input; all-to-all: what each rank holds). One number or an array; the result has its shape.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import ceil, log2
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from precision_time.bounded_cache import bounded
from precision_time.errors import JobError
from precision_time.hardware.fabric import Cluster, Fabric, Group
from precision_time.shipped import shipped_file

PROTOCOLS = ("LL", "LL128", "Simple")
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")
Array = NDArray[np.float64]


@dataclass(frozen=True)
class CollectiveTime:
    """Seconds with the algorithm and protocol of the least time, their source and their spread."""

    seconds: Array
    choice: NDArray[np.str_]
    """algorithm/protocol of each message, for example ring/LL128; none where nothing is sent."""
    source: str
    """"learned" where the fabric was measured with at least this many GPUs, else "assumed"."""
    log_std: float
    """Standard deviation of the log of measured over predicted."""

    def __float__(self) -> float:
        return float(self.seconds)


@dataclass(frozen=True)
class Constants:
    """What `data/collectives.json` holds under `constants`. Times in microseconds."""

    base_us: Mapping[str, float]
    """By protocol: what a collective costs before its first hop."""
    hop_us: Mapping[str, Mapping[str, float]]
    """By link (nvlink, pcie, network) and protocol: one step to the next rank."""
    efficiency: Mapping[str, float]
    """By protocol: share of the bus bandwidth for payload."""
    pipelining: float
    """k above."""
    bandwidth_share: Mapping[str, float]
    """By collective: bus bandwidth over that of all-reduce."""
    local_copy: Mapping[str, float]
    """By collective: cost of moving one rank's own part inside its memory, over sending it by NVLink."""
    nvls_us: float
    peer_base_us: float
    peer_hop_us: float
    """All-to-all and point to point: before the first and for each further peer."""
    network_peer_share: float
    """All-to-all: what a further peer across the network costs, over one Simple hop."""


@dataclass(frozen=True)
class Fit:
    constants: Constants
    learned_gpus: Mapping[str, int]
    """Fabric -> the most GPUs it was measured with; beyond them a time is assumed."""
    log_std_learned: float
    log_std_assumed: float


@cache
def fitted() -> Fit:
    """The constants that ship with the package."""
    return fit_from(json.loads(shipped_file("timing/data/collectives.json").read_bytes()))


def fit_from(document: Mapping[str, Any]) -> Fit:
    spread = document["log_std"]
    constants = Constants(**document["constants"])
    measured = {name: int(figures["measured_gpus"]) for name, figures in document["fabrics"].items()}
    return Fit(constants, measured, spread["learned"], spread["assumed"])


def collective_seconds(
    collective: str, nbytes: ArrayLike, where: Cluster | Group, fit: Fit | None = None, hierarchical: bool = False
) -> CollectiveTime:
    """Time of one collective for one size in bytes or an array of sizes; a group of one rank takes no time.

    Bytes as nccl-tests count them: of all-gather the gathered output, of reduce-scatter the whole input of a rank, of
    all-to-all what one rank holds, its own part included.

    `hierarchical`: weigh one domain at a time too (inside, along the rails, inside), which needs a communicator for
    each step. NCCL never splits a flat communicator so: the p5.48xlarge rows refuse it for all-gather.
    """
    if collective not in COLLECTIVES:
        raise JobError(f"unknown collective {collective!r}; use one of {', '.join(COLLECTIVES)}.")
    size = np.asarray(nbytes, dtype=np.float64)
    if not np.all(np.isfinite(size)) or np.any(size < 0):
        raise JobError("a message size is negative or not a number; give bytes of at least 0.")
    fit_used = fit or fitted()
    group = where.world if isinstance(where, Cluster) else where
    if group.ranks == 1:
        return CollectiveTime(np.zeros_like(size), np.full(size.shape, "none"), "learned", 0.0)
    weighed, nearer = _weighed(collective, group) if fit is None else _weigh(collective, group, fit.constants)
    options: Mapping[str, Callable[[Array], Array]] = weighed
    if hierarchical and collective in _PHASES and group.domains > 1 and group.ranks_per_domain > 1:
        options = {**options, "hierarchical": _hierarchical(collective, group, fit_used.constants)}
    times = np.stack([option(size) for option in options.values()])
    behind = np.stack([option(size) for option in nearer.values()]) if nearer else None
    seconds = _least_seconds(size, times, behind)
    choice = np.where(size == 0, "none", np.array(list(options))[np.argmin(times, axis=0)])
    learned = fit_used.learned_gpus.get(group.intra.name, 0) >= group.ranks_per_domain
    if group.domains > 1 and group.inter is not None:
        learned = learned and fit_used.learned_gpus.get(group.inter.name, 0) >= group.ranks
    return CollectiveTime(
        seconds,
        choice,
        "learned" if learned else "assumed",
        fit_used.log_std_learned if learned else fit_used.log_std_assumed,
    )


@bounded()
def shipped_seconds(collective: str, sizes: tuple[float, ...], group: Group) -> tuple[float, ...]:
    """The seconds of `collective_seconds` for each of some sizes, all at once."""
    if group.ranks == 1:
        return (0.0,) * len(sizes)
    costs, nearer = _cost_columns(collective, group)
    size = np.array(sizes)
    behind = None if nearer is None else _cost_us(size, *nearer)
    found: list[float] = _least_seconds(size, _cost_us(size, *costs), behind).tolist()
    return tuple(found)


def _least_seconds(size: Array, times: Array, nearer: Array | None) -> Array:
    """Seconds of the fastest of all options (rows of `times`, in microseconds). A network between the ranks makes
    nothing faster than the fastest of `nearer`, the options without one."""
    least: Array = times.min(axis=0)
    if nearer is not None:
        least = np.maximum(least, nearer.min(axis=0))
    return np.where(size == 0, 0.0, least * 1e-6)


def floor_seconds(collective: str, nbytes: ArrayLike, where: Cluster | Group) -> Array:
    """Bytes that must cross the slowest link over its bandwidth: no time above is ever below this."""
    group = where.world if isinstance(where, Cluster) else where
    size = np.asarray(nbytes, dtype=np.float64)
    if group.ranks == 1:
        return np.zeros_like(size)
    if collective == "all_to_all":
        return size * max(_all_to_all_traffic(group))
    local, domains = group.ranks_per_domain, group.domains
    inside = across = 0.0
    if local > 1:
        inside = _ring_traffic(collective, local) / group.bus_bytes_per_s
        if collective == "all_reduce" and group.intra.nvls_bytes_per_s:
            inside = min(inside, 1 / group.intra.nvls_bytes_per_s)
    if domains > 1:
        across = _ring_traffic(collective, domains) / group.neighbour_bytes_per_s
    if collective == "send_recv" and domains == 1:
        inside = 1 / group.intra.bus_bytes_per_s(2)
    elif collective == "send_recv":  # the slowest pair of neighbours crosses over the ports of one rank
        inside, across = 0.0, local / group.neighbour_bytes_per_s
    return size * max(inside, across)


_NVLS_RANKS = 3
"""Fewest ranks that reduce in the switch. NCCL on 3 or 4 H100 is up to 9 % slower than on 8 for more than 64 MiB
(data/kernels/aic_nccl.parquet), as it keeps the ring there; it is modelled as no slower, so that ranks never help."""


TREE_BUS_SHARE = 0.92
"""Share of the bus bandwidth that trees reach (NCCL src/graph/tuning.cc)."""


def _cost_us(size: Array, latency_us: Any, us_per_byte: Any, pipelining: Any) -> Array:
    """Microseconds of collectives of `size` bytes."""
    wire = size * us_per_byte
    total: Array = latency_us + wire + 2 * pipelining * np.sqrt(latency_us * wire)
    return total


@dataclass(frozen=True, slots=True)
class _Cost:
    """What an algorithm and protocol costs in microseconds: before the first byte and for each, and k above."""

    latency_us: float
    us_per_byte: float
    pipelining: float

    def __call__(self, size: Array) -> Array:
        return _cost_us(size, self.latency_us, self.us_per_byte, self.pipelining)


Options = dict[str, _Cost]


def _weigh(collective: str, group: Group, constants: Constants) -> tuple[Options, Options]:
    """What NCCL would weigh, and what it would if all ranks of several domains were in one."""
    nearer = _options(collective, replace(group, domains=1, fullest=0), constants) if group.domains > 1 else {}
    return _options(collective, group, constants), nearer


@bounded()
def _weighed(collective: str, group: Group) -> tuple[Options, Options]:
    return _weigh(collective, group, fitted().constants)


@bounded()
def _cost_columns(collective: str, group: Group) -> tuple[Array, Array | None]:
    """The costs of all options, and of the nearer ones: a row for each field of `_Cost`."""
    options, nearer = (
        np.array([(cost.latency_us, cost.us_per_byte, cost.pipelining) for cost in each.values()], dtype=np.float64)
        for each in _weighed(collective, group)
    )
    return options.T[..., None], nearer.T[..., None] if len(nearer) else None


def _options(collective: str, group: Group, constants: Constants) -> Options:
    """Every algorithm/protocol that NCCL would weigh, as bytes -> microseconds."""
    if collective in ("all_to_all", "send_recv"):
        return {"p2p/Simple": _peer_to_peer(collective, group, constants)}
    options: Options = {}
    for protocol in PROTOCOLS:
        if protocol == "LL128" and not _ll128(group):
            continue
        options[f"ring/{protocol}"] = _ring(collective, group, constants, protocol)
        if collective == "all_reduce" and (group.domains > 1 or group.ranks > 8):
            options[f"tree/{protocol}"] = _tree(group, constants, protocol)
    if collective == "all_reduce" and group.intra.nvls_bytes_per_s and group.ranks_per_domain >= _NVLS_RANKS:
        name = "nvls" if group.domains == 1 else "nvls_tree"
        options[f"{name}/Simple"] = _nvls(group, constants)
    if collective in ("all_gather", "reduce_scatter") and group.domains == group.ranks > 2:
        options["pat/Simple"] = _pat(group, constants)
    return options


_PHASES = {
    "all_reduce": ("reduce_scatter", "all_reduce", "all_gather"),
    "all_gather": ("", "all_gather", "all_gather"),
    "reduce_scatter": ("reduce_scatter", "reduce_scatter", ""),
}
"""Inside each domain, then along each rail on what one rank holds, then inside again."""


def _hierarchical(collective: str, group: Group, constants: Constants) -> Callable[[Array], Array]:
    """One collective after another, each on a communicator of its own: each pays its own base."""
    before, along, after = _PHASES[collective]
    inside, rail = group.inside, group.rail
    steps = [(name, inside, 1.0) for name in (before, after) if name]
    steps.append((along, rail, 1 / group.ranks_per_domain))
    parts = [
        (list(_options(step, where, constants).values()), share)  # the least of each
        for step, where, share in steps
    ]

    def microseconds(size: Array) -> Array:
        total = np.zeros_like(size)
        for options, share in parts:
            total = total + np.min([option(size * share) for option in options], axis=0)
        return total

    return microseconds


def _ring(collective: str, group: Group, constants: Constants, protocol: str) -> _Cost:
    n = group.ranks
    rounds = 2 if collective == "all_reduce" else 1
    across = min(rounds * group.domains, rounds * (n - 1)) if group.domains > 1 else 0
    inside = rounds * (n - 1) - across
    latency = (
        constants.base_us[protocol] * group.intra.latency_scale
        + inside * _hop(group.intra, constants, protocol)
        + across * _network_hop(group, constants, protocol)
    )
    efficiency = _efficiency(group, constants, protocol)
    share = constants.bandwidth_share.get(collective, 1.0)
    traffic = _ring_traffic(collective, n)
    if not group.intra.is_through_host:  # memory is so much faster than PCIe that the copy vanishes
        traffic += constants.local_copy.get(collective, 0.0) * traffic / (n - 1)
    wire = traffic / (_bus_bytes_per_s(group) * share * efficiency) * 1e6
    # Between nodes k = 0, as a fit to the p5.48xlarge rows finds (all-gather: median error 5 %, not 15 with the k of
    # NVLink); probably because proxy threads send slice after slice while the next are on their way.
    return _Cost(latency, wire, constants.pipelining if group.domains == 1 else 0.0)


def _tree(group: Group, constants: Constants, protocol: str) -> _Cost:
    local = group.ranks_per_domain
    inside = min(local, 8) - 1 + max(0.0, log2(local / 8))
    latency = constants.base_us[protocol] * group.intra.latency_scale + 2 * (
        inside * _hop(group.intra, constants, protocol)
        + ceil(log2(group.domains)) * _network_hop(group, constants, protocol)
    )
    rates = []
    if local > 1:
        rates.append(group.bus_bytes_per_s * TREE_BUS_SHARE / 2)
    if group.domains > 1:
        rates.append(group.neighbour_bytes_per_s * _tree_share(group))
    return _Cost(latency, 1e6 / (min(rates) * _efficiency(group, constants, protocol)), constants.pipelining)


def _nvls(group: Group, constants: Constants) -> _Cost:
    latency = constants.nvls_us * group.intra.latency_scale
    rate = group.intra.nvls_bytes_per_s
    if group.domains > 1:
        latency += 2 * ceil(log2(group.domains)) * _network_hop(group, constants, "Simple")
        rate = min(rate, group.neighbour_bytes_per_s * _tree_share(group))
    return _Cost(latency, 1e6 / rate, constants.pipelining)


def _pat(group: Group, constants: Constants) -> _Cost:
    """Parallel aggregated trees (NCCL 2.23, one rank per node): few network hops, yet a little for every rank."""
    hops = ceil(log2(group.ranks)) * _network_hop(group, constants, "Simple") / _PAT_OVERLAP
    latency = constants.base_us["Simple"] * group.intra.latency_scale + hops + group.ranks * _PAT_RANK_US
    rate = group.neighbour_bytes_per_s * _PAT_SHARE
    return _Cost(latency, (group.ranks - 1) / group.ranks / rate * 1e6, constants.pipelining)


# NCCL src/graph/tuning.cc (2.23 and later): latency log2(nodes) x hop / 3.5 + 2.8 us x ranks; 0.75 of the bandwidth.
_PAT_OVERLAP, _PAT_RANK_US, _PAT_SHARE = 3.5, 2.8, 0.75


def _peer_to_peer(collective: str, group: Group, constants: Constants) -> _Cost:
    scale = group.intra.latency_scale
    first = constants.peer_base_us * scale
    far_hop = _network_hop(group, constants, "Simple")
    share = constants.bandwidth_share["all_to_all"]
    if collective == "send_recv":
        if group.domains > 1:
            rate = group.neighbour_bytes_per_s / group.ranks_per_domain  # the ports of one rank
            return _Cost(first + far_hop, 1e6 / rate, constants.pipelining)
        rate = group.intra.bus_bytes_per_s(2)
        return _Cost(first + constants.peer_hop_us * scale, 1e6 / (rate * share), constants.pipelining)
    local, n = group.ranks_per_domain, group.ranks
    latency = first + (local - 1) * constants.peer_hop_us * scale
    if group.domains > 1:
        latency += far_hop + (n - local - 1) * far_hop * constants.network_peer_share
    inside, across = _all_to_all_traffic(group)
    if not group.intra.is_through_host and local > 1:
        inside += constants.local_copy["all_to_all"] / n / group.bus_bytes_per_s
    return _Cost(latency, max(inside, across) / share * 1e6, constants.pipelining)


def _all_to_all_traffic(group: Group) -> tuple[float, float]:
    """Seconds per byte that each rank holds: inside its domain, and out through the ports.

    In a network of rails NVLink may first carry what is meant for other rails (NCCL's PXN): the faster way is taken.
    """
    local, n = group.ranks_per_domain, group.ranks
    inside = (local - 1) / n / group.bus_bytes_per_s if local > 1 else 0.0
    if group.domains == 1:
        return inside, 0.0
    far = (n - local) / n
    ports = far * local / group.network_bytes_per_s
    straight = inside, ports * max(1.0, group.spine_share * group.oversubscription)
    if group.spine_share_by_nvlink is None or local == 1:
        return straight
    carried = inside + far * (local - 1) / local / group.bus_bytes_per_s
    by_nvlink = carried, ports * max(1.0, group.spine_share_by_nvlink * group.oversubscription)
    return min(straight, by_nvlink, key=max)


def _ring_traffic(collective: str, n: int) -> float:
    """Bytes that cross each link over the message size."""
    return {"all_reduce": 2 * (n - 1) / n, "broadcast": 1.0, "send_recv": 1.0}.get(collective, (n - 1) / n)


def _bus_bytes_per_s(group: Group) -> float:
    """The slowest link of a ring: inside the domains or between them."""
    rates = []
    if group.ranks_per_domain > 1:
        rates.append(group.bus_bytes_per_s)
    if group.domains > 1:
        rates.append(group.neighbour_bytes_per_s)
    return min(rates)


def _efficiency(group: Group, constants: Constants, protocol: str) -> float:
    share = constants.efficiency[protocol]
    # Half of every LL word is its flag, which the network has to carry.
    return min(share, 0.5) if protocol == "LL" and group.domains > 1 else share


def _tree_share(group: Group) -> float:
    """Bytes all-reduced over bytes through the ports: two domains exchange once, more send up and down."""
    return 1.0 if group.domains == 2 else 0.5


def _hop(fabric: Fabric, constants: Constants, protocol: str) -> float:
    if fabric.hop_us is not None:
        return fabric.hop_us[protocol]
    link = "network" if fabric.is_network else "pcie" if fabric.is_through_host else "nvlink"
    return constants.hop_us[link][protocol] * fabric.latency_scale


def _network_hop(group: Group, constants: Constants, protocol: str) -> float:
    if group.domains == 1 or group.inter is None:
        return 0.0
    return _hop(group.inter, constants, protocol)


def _ll128(group: Group) -> bool:
    return group.intra.ll128 and (group.domains == 1 or (group.inter is not None and group.inter.ll128))
