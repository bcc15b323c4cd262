"""The collective model: a case worked by hand, invariants, and agreement with published figures."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from precision_time.errors import JobError
from precision_time.hardware import Cluster, Fabric, Group, cluster, default_catalog, fabric
from precision_time.timing import collectives
from precision_time.timing.collectives import (
    COLLECTIVES,
    Constants,
    Fit,
    collective_seconds,
    fitted,
    floor_seconds,
)

REPO = Path(__file__).parents[1]
JSON = REPO / "src" / "precision_time" / "timing" / "data" / "collectives.json"

CLUSTERS = [
    cluster("v100", 8),
    cluster("v100-32gb-sxm", 16),
    cluster("a100", 2),
    cluster("a100", 24),
    cluster("h100", 8),
    cluster("h100", 16),
    cluster("h100", 1024),
    cluster("gb200", 256),
    cluster("l4", 4),
    cluster("t4", 16),
    cluster("rtx-3090", 2),
    cluster("mi300x", 8),
]
BYTES = st.floats(min_value=1, max_value=1e12)

# Round numbers: base 10 us, 1 us a hop, no pipelining term, no local copy.
SIMPLE = Fit(
    Constants(
        base_us={"LL": 10, "LL128": 1e6, "Simple": 10},
        hop_us={link: {"LL": 1, "LL128": 1, "Simple": 1} for link in ("nvlink", "pcie", "network")},
        efficiency={"LL": 0.5, "LL128": 1, "Simple": 1},
        pipelining=0,
        bandwidth_share={"all_to_all": 1},
        local_copy={},
        nvls_us=20,
        peer_base_us=10,
        peer_hop_us=1,
        network_peer_share=0.1,
    ),
    {},
    0.1,
    0.3,
)
LINK = Fabric("link", "nvswitch", MappingProxyType({2: 100e9}))
NET = Fabric("net", "infiniband", MappingProxyType({}), nic_bytes_per_s=25e9)


def test_ring_all_reduce_by_hand() -> None:
    # 4 ranks, 1 GB, 100 GB/s: 2 x 3/4 GB over each link is 15 ms; 10 us + 6 hops of 1 us is 16 us.
    found = collective_seconds("all_reduce", 1e9, Group(4, 1, LINK), SIMPLE)
    assert float(found) == pytest.approx(15e-3 + 16e-6)
    assert found.choice == "ring/Simple"
    # 8 bytes: only latency, LL and Simple cost the same 16 us.
    assert float(collective_seconds("all_reduce", 8, Group(4, 1, LINK), SIMPLE)) == pytest.approx(16e-6, rel=1e-4)
    # All-gather moves half of that in half the hops.
    assert float(collective_seconds("all_gather", 1e9, Group(4, 1, LINK), SIMPLE)) == pytest.approx(7.5e-3 + 13e-6)


def test_two_nodes_by_hand() -> None:
    # 2 nodes of 4 with 50 GB/s of ports each, all-gather of 1 GB: 7/8 GB at 50 GB/s is 17.5 ms; 7 hops.
    group = Group(8, 2, LINK, NET, 50e9)
    assert float(collective_seconds("all_gather", 1e9, group, SIMPLE)) == pytest.approx(17.5e-3 + 17e-6)
    # All-reduce takes the tree: 1 GB over 46 GB/s (92 % of half the bus) beats 1.75 GB over 50.
    found = collective_seconds("all_reduce", 1e9, group, SIMPLE)
    assert found.choice == "tree/Simple"
    assert float(found) == pytest.approx(1 / 46 + (10 + 2 * (3 + 1)) * 1e-6)


def test_in_switch_reduction_by_hand() -> None:
    switch = replace(LINK, nvls_bytes_per_s=80e9)
    found = collective_seconds("all_reduce", 1e9, Group(8, 1, switch), SIMPLE)
    assert found.choice == "nvls/Simple"
    assert float(found) == pytest.approx(1 / 80 + 20e-6)


def test_one_rank_to_a_node_gathers_in_few_hops() -> None:
    # 64 nodes of one rank with 25 GB/s: PAT pays 10 + 6 x 1 / 3.5 + 64 x 2.8 us, the ring 10 + 63 x 1 us: ring.
    group = Group(64, 64, LINK, NET, 25e9)
    assert collective_seconds("all_gather", 8, group, SIMPLE).choice == "ring/Simple"
    # On a network of 50 us a hop it is 274.9 us against 3.2 ms, and 63/64 GB at 0.75 of 25 GB/s against all of it.
    slow = replace(NET, hop_us=MappingProxyType({"LL": 50, "LL128": 50, "Simple": 50}))
    few, many = (collective_seconds("all_gather", size, Group(64, 64, LINK, slow, 25e9), SIMPLE) for size in (8, 1e9))
    assert (few.choice, many.choice) == ("pat/Simple", "ring/Simple")
    assert float(few) == pytest.approx((10 + 6 * 50 / 3.5 + 64 * 2.8) * 1e-6, rel=1e-3)
    # NCCL allows it to one rank per node only.
    assert collective_seconds("all_gather", 8, Group(128, 64, LINK, slow, 25e9), SIMPLE).choice != "pat/Simple"


def test_hierarchical_by_hand() -> None:
    # 4 nodes of 8, 100 GB/s inside, 8 GB/s of ports each; 1 GB.
    group = Group(32, 4, LINK, NET, 8e9)
    split = collective_seconds("all_reduce", 1e9, group, SIMPLE, hierarchical=True)
    assert split.choice == "hierarchical"
    # Inside 7/8 GB at 100 GB/s, twice, 17 us each; a rail of 4 all-reduces 1/8 GB over 1 GB/s, 2 x 3/4 of it in 16 us.
    assert float(split) == pytest.approx(2 * (8.75e-3 + 17e-6) + 2 * 0.75 * 0.125 + 16e-6)
    assert collective_seconds("all_reduce", 1e9, group, SIMPLE).choice != "hierarchical"  # NCCL does not


def test_latency_at_scale() -> None:
    # All-reduce of a little takes the tree: eight times the nodes are three more levels, not eight times the time.
    few, many = (float(collective_seconds("all_reduce", 1e4, cluster("h100", n))) for n in (256, 2048))
    assert many < 1.6 * few
    # All-gather goes round the ring: n - 1 hops, if there is more than one rank to a node.
    few, many = (float(collective_seconds("all_gather", 1e4, cluster("h100", n))) for n in (256, 2048))
    assert many == pytest.approx(8 * few, rel=0.1)
    # A data-parallel group with one rank to each of 256 nodes has PAT; its ring would pay 255 hops of 5 us.
    lone = collective_seconds("all_gather", 1e4, cluster("h100", 2048).group(256, stride=8))
    assert lone.choice == "pat/Simple"
    assert float(lone) < 0.7 * 255 * 5e-6


@given(st.sampled_from(CLUSTERS), st.sampled_from(COLLECTIVES), BYTES, st.floats(1, 100))
def test_more_bytes_are_never_faster(where: Cluster, collective: str, size: float, factor: float) -> None:
    few, many = collective_seconds(collective, [size, size * factor], where).seconds
    assert 0 < few <= many


@given(st.sampled_from(CLUSTERS), st.sampled_from(COLLECTIVES), BYTES, st.sampled_from([1, 2, 4, 8]))
def test_never_below_the_floor(where: Cluster, collective: str, size: float, stride: int) -> None:
    group = where.group(max(1, where.gpus // stride), min(stride, where.gpus))
    seconds = collective_seconds(collective, size, group).seconds
    assert seconds >= floor_seconds(collective, size, group) * (1 - 1e-9)


@given(st.sampled_from(CLUSTERS), st.sampled_from(COLLECTIVES), st.lists(BYTES, min_size=1, max_size=5))
def test_an_array_is_its_elements(where: Cluster, collective: str, sizes: list[float]) -> None:
    together = collective_seconds(collective, sizes, where)
    apart = [collective_seconds(collective, size, where) for size in sizes]
    np.testing.assert_allclose(together.seconds, [float(one) for one in apart])
    assert together.choice.tolist() == [str(one.choice) for one in apart]


SWITCHED = [
    name
    for name, node in default_catalog().nodes.items()
    if node.gpu_names and (node.inter or node.gpus_per_node > 1)
    and not default_catalog().fabric(node.intra).widens_with_gpus
]  # fmt: skip


@pytest.mark.parametrize("name", SWITCHED)
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter", "broadcast"])
def test_one_more_rank_is_never_faster(name: str, collective: str) -> None:
    """Also from one node to two, from full nodes to one that holds one rank more, and from one algorithm to another."""
    catalog, sizes = default_catalog(), np.geomspace(1.0, 1e10, 40)
    node = catalog.nodes[name]
    full = node.domain_gpus
    most = full if node.inter is None else 1009
    near = {*range(2, 19), *range(max(full - 1, 2), full + 3), *range(2 * full - 1, 2 * full + 3), 127, 128, 129, 1009}
    counts = sorted(gpus for gpus in near if gpus <= most)
    before = np.zeros(len(sizes))
    for gpus in counts:
        seconds = collective_seconds(collective, sizes, catalog.cluster(node.gpu_names[0], gpus, name)).seconds
        assert (seconds >= before * (1 - 1e-12)).all(), gpus
        assert (np.diff(seconds) >= 0.0).all()
        before = seconds


def test_links_of_a_mesh_add_up() -> None:
    """The one exception: where each GPU more brings links of its own, more ranks may be faster, as measured."""
    two, eight = (collective_seconds("all_reduce", 1e9, cluster("mi300x", gpus)).seconds for gpus in (2, 8))
    assert eight < two
    assert fabric("xgmi3-mesh").widens_with_gpus


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_nothing_to_send_takes_no_time(collective: str) -> None:
    alone = collective_seconds(collective, [1e6, 1e9], cluster("a100", 1))
    assert alone.seconds.tolist() == [0, 0]
    assert float(collective_seconds(collective, 0, cluster("a100", 8))) == 0


def test_wrong_sizes_and_names_are_refused() -> None:
    with pytest.raises(JobError, match="negative"):
        collective_seconds("all_reduce", -1, cluster("a100", 8))
    with pytest.raises(JobError, match="negative or not a number"):
        collective_seconds("all_reduce", float("nan"), cluster("a100", 8))
    with pytest.raises(JobError, match="use one of all_reduce"):
        collective_seconds("allreduce", 1, cluster("a100", 8))


def bus_gb_per_s(nbytes: float, where: Cluster) -> float:
    n = where.gpus
    return float(nbytes * 2 * (n - 1) / n / float(collective_seconds("all_reduce", nbytes, where)) / 1e9)


@pytest.mark.parametrize(
    ("where", "published"),
    [  # large all-reduce bus bandwidths of data/published/collectives.csv
        (cluster("v100", 8), 126),
        (cluster("a100", 8), 231),
        (cluster("h200", 8), 480),
        (cluster("h100", 32), 370),
        (cluster("a100", 32), 192),
        (cluster("mi300x", 8), 313),
        (cluster("b200", 8), 850),
    ],
    ids=lambda value: value.node.name + str(value.gpus) if isinstance(value, Cluster) else "",
)
def test_large_messages_reach_the_published_bandwidth(where: Cluster, published: float) -> None:
    assert bus_gb_per_s(2**34, where) == pytest.approx(published, rel=0.08)


def test_choices_are_those_of_nccl() -> None:
    choices = collective_seconds("all_reduce", [1e3, 1e9], cluster("h100", 8)).choice.tolist()
    assert choices[0].endswith("/LL")
    assert choices[1] == "nvls/Simple"
    assert collective_seconds("all_reduce", 1e4, cluster("h100", 512)).choice == "tree/LL"
    assert collective_seconds("all_gather", 1e9, cluster("a100", 8)).choice == "ring/Simple"


def test_the_source_says_whether_the_fabric_was_fitted() -> None:
    learned, assumed = (
        collective_seconds("all_reduce", 1e6, cluster("a100", 8)),
        collective_seconds("all_reduce", 1e6, cluster("v100", 8)),
    )
    assert (learned.source, assumed.source) == ("learned", "assumed")
    assert collective_seconds("all_reduce", 1e6, cluster("l40s", 2)).source == "learned"
    assert collective_seconds("all_reduce", 1e6, cluster("l40s", 4)).source == "assumed"
    assert collective_seconds("all_reduce", 1e6, cluster("h100", 64, "p5")).source == "learned"
    assert collective_seconds("all_reduce", 1e6, cluster("h100", 64)).source == "assumed"
    assert 0 < learned.log_std < assumed.log_std < 1


def test_groups_share_the_ports() -> None:
    job = cluster("h100", 64)
    alone, shared = (
        collective_seconds("all_reduce", 1e9, job.world),
        collective_seconds("all_reduce", 1e9, job.group(8, stride=8)),
    )
    assert float(shared) > 2 * float(alone)  # an eighth of the ports against all of them
    assert float(collective_seconds("send_recv", 1e8, job.group(2))) < float(
        collective_seconds("send_recv", 1e8, job.group(2, stride=32))
    )
    assert float(collective_seconds("all_to_all", 1e8, job.group(8))) < float(
        collective_seconds("all_to_all", 1e8, job)
    )


def test_catalog_carries_the_fitted_figures() -> None:
    document = json.loads(JSON.read_text())
    for name, figures in document["fabrics"].items():
        link = fabric(name)
        if "bus_gb_per_s" in figures:
            found = figures["bus_gb_per_s"]
            table = {int(n): rate for n, rate in found.items()} if isinstance(found, dict) else {2: found}
            for count, rate in table.items():
                assert link.bus_bytes_per_s(count) == pytest.approx(rate * 1e9, rel=0.01), name
            assert link.latency_scale == pytest.approx(figures["latency_scale"], rel=0.01), name
        if "nvls_gb_per_s" in figures:
            assert link.nvls_bytes_per_s == pytest.approx(figures["nvls_gb_per_s"] * 1e9, rel=0.01), name
        if "hop_us" in figures:
            assert link.hop_us == pytest.approx(figures["hop_us"], rel=0.01), name
            assert link.efficiency == pytest.approx(figures["efficiency"], rel=0.01), name


def test_constants_carry_their_provenance() -> None:
    document = json.loads(JSON.read_text())
    assert {len(file["sha256"]) for file in document["provenance"]["files"]} == {64}
    assert document["provenance"]["points_fitted"] > 1000
    judged = json.loads((REPO / "benchmarks" / "results" / "collectives.json").read_text())
    for errors in judged["in_sample"]["by_gpu"].values():
        assert errors["> 1 MB"]["median_ape"] < 0.1
    assert fitted() is collectives.fitted()


def test_multi_node_rows_of_p5() -> None:
    path = REPO / "data" / "published" / "collectives.csv"
    ratios = []
    with path.open(newline="") as lines:
        for row in csv.DictReader(lines):
            if row["system"] == "p5.48xlarge EFA":
                where = cluster("h100", int(float(row["gpus"])), row["system"], int(float(row["nodes"])))
                kind = row["collective"].replace("alltoall", "all_to_all")
                predicted = float(collective_seconds(kind, float(row["bytes"]), where))
                ratios.append(predicted / (float(row["time_us"]) * 1e-6))
    assert len(ratios) == 115
    assert np.median(np.abs(np.array(ratios) - 1)) < 0.1
