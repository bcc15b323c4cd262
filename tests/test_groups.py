"""Groups on a network: who shares which ports, what crosses the spine, and what it costs. Worked by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precision_time.errors import CatalogError
from precision_time.hardware import Cluster, cluster, default_catalog
from precision_time.timing.collectives import (
    COLLECTIVES,
    collective_seconds,
    floor_seconds,
)

PORT = 400e9 / 8 * 0.94  # infiniband-400, what an all-reduce reaches
H100 = cluster("h100", 64)  # 8 nodes of 8, one port to a GPU


def wired(base: Cluster, **facts: float | bool) -> Cluster:
    return replace(base, node=replace(base.node, **facts))


def test_tensor_and_data_parallel_groups() -> None:
    tensor, data = H100.group(8), H100.group(8, stride=8)
    assert (tensor.domains, data.domains) == (1, 8)
    assert data.network_bytes_per_s == pytest.approx(PORT)  # its own port; seven groups use the others
    assert H100.world.network_bytes_per_s == pytest.approx(8 * PORT)
    # tp=2: four of the node's ranks are in each data-parallel group, with four ports.
    half = H100.group(32, stride=2)
    assert (half.domains, half.ranks_per_domain) == (8, 4)
    assert half.network_bytes_per_s == pytest.approx(4 * PORT)


def test_stride_beyond_the_domain() -> None:
    pipeline = H100.group(4, stride=16)  # tp=8, dp=2, pp=4: neighbours two nodes apart
    assert (pipeline.domains, pipeline.ranks_per_domain) == (4, 1)
    assert pipeline.network_bytes_per_s == pytest.approx(PORT)
    # 1 GB over one port, alone in its direction, at the least.
    floor = float(floor_seconds("send_recv", 1e9, pipeline))
    assert floor == pytest.approx(1e9 / PORT)
    assert float(collective_seconds("send_recv", 1e9, pipeline)) == pytest.approx(floor, rel=0.2)


def test_pipeline_neighbours_are_as_far_as_the_stages() -> None:
    # Megatron's order is tp, cp, ep, dp, pp: neighbours are gpus / pp apart, here in one node and in two.
    near, far = cluster("h100", 8).group(2, stride=4), cluster("h100", 16).group(2, stride=8)
    assert (near.domains, far.domains) == (1, 2)
    assert float(collective_seconds("send_recv", 1e8, near)) < float(collective_seconds("send_recv", 1e8, far)) / 3


def test_a_rack_is_one_domain() -> None:
    rack = cluster("gb200", 64)
    assert rack.group(8).domains == rack.group(8, stride=8).domains == rack.world.domains == 1
    racks = cluster("gb200", 256)
    assert (racks.domains, racks.gpus_per_domain) == (4, 64)
    assert racks.group(8).domains == 1
    assert racks.group(32, stride=8).domains == 4
    # Four domains, one port of 50 GB/s to a GPU: 64 ports out of each.
    assert racks.world.network_bytes_per_s == pytest.approx(64 * PORT)


def test_a_rank_alone_on_its_node_does_not_get_all_ports() -> None:
    assert cluster("h100", 4, nodes=4).world.network_bytes_per_s == pytest.approx(PORT)
    assert cluster("h100", 4, "p5.48xlarge", nodes=4).world.network_bytes_per_s == pytest.approx(
        cluster("h100", 32, "p5.48xlarge").world.network_bytes_per_s / 8
    )
    # One port to eight GPUs: the only one there is, also for one GPU.
    assert cluster("t4", 2, nodes=2).world.network_bytes_per_s == cluster("t4", 16).world.network_bytes_per_s


def test_groups_behind_one_host_bridge_share_it() -> None:
    box = cluster("rtx-pro-6000", 8)
    assert box.group(2).bus_bytes_per_s == box.world.bus_bytes_per_s  # four pairs at once
    assert cluster("rtx-pro-6000", 2).world.bus_bytes_per_s > box.group(2).bus_bytes_per_s
    assert H100.group(2).bus_bytes_per_s == H100.world.bus_bytes_per_s  # a switch keeps them apart


def test_oversubscription_divides_what_leaves_the_leaf() -> None:
    tight = wired(H100, oversubscription=4.0, gpus_per_leaf=32)
    assert not tight.group(4, stride=8).neighbours_cross_spine  # four nodes are one leaf
    assert tight.world.neighbour_bytes_per_s == pytest.approx(8 * PORT / 4)
    assert tight.group(8, stride=8).neighbour_bytes_per_s == pytest.approx(PORT / 4)
    same = [collective_seconds("all_reduce", 1e8, each.group(4, stride=8)) for each in (tight, H100)]
    assert float(same[0]) == float(same[1])
    # All-gather of 8 GB over 8 nodes: 63/64 of it through 1/4 of the ports.
    assert float(collective_seconds("all_gather", 8e9, tight)) == pytest.approx(8e9 * 63 / 64 / (2 * PORT), rel=0.05)


def test_rails_keep_equal_ranks_off_the_spine() -> None:
    rails = wired(H100, oversubscription=4.0, rail_optimised=True, gpus_per_leaf=8)  # eight nodes to a rail's leaf
    assert not rails.world.neighbours_cross_spine
    assert float(collective_seconds("all_reduce", 1e9, rails)) == float(collective_seconds("all_reduce", 1e9, H100))
    # All-to-all: 7 of 8 pairs are on other rails; NVLink carries them to the right one.
    world = rails.world
    assert (world.spine_share, world.spine_share_by_nvlink) == (pytest.approx(7 / 8), 0.0)
    straight = replace(world, spine_share_by_nvlink=None)
    assert float(collective_seconds("all_to_all", 1e9, world)) < float(collective_seconds("all_to_all", 1e9, straight))
    # One rank to a node has nobody to pass on to, and needs nobody: same rail.
    assert rails.group(8, stride=8).spine_share == 0.0
    # More nodes than a rail's leaf holds: even equal ranks meet above it.
    assert wired(H100, oversubscription=4.0, rail_optimised=True, gpus_per_leaf=4).world.neighbours_cross_spine
    # Ranks that are not equal on their nodes leave the rail.
    assert replace(rails, gpus=64).group(4, stride=12).neighbours_cross_spine


FACTS = st.builds(
    dict,
    rail_optimised=st.booleans(),
    gpus_per_leaf=st.sampled_from([0, 8, 16, 32, 64]),
)


@given(
    st.sampled_from([H100, cluster("a100", 32), cluster("gb200", 256), cluster("t4", 32)]),
    st.sampled_from(COLLECTIVES), st.sampled_from([1, 4, 8]), FACTS, st.floats(1, 8), st.floats(1, 8),
    st.floats(1, 1e10),
)  # fmt: skip
def test_more_oversubscription_is_never_faster(
    base: Cluster, collective: str, stride: int, facts: dict[str, float], few: float, more: float, size: float
) -> None:
    ratios = sorted([few, more])
    groups = [
        wired(base, oversubscription=ratio, **facts).group(base.gpus // stride, stride) for ratio in (1.0, *ratios)
    ]
    seconds = [float(collective_seconds(collective, size, group)) for group in groups]
    assert seconds == sorted(seconds)
    for group, times in zip(groups, seconds, strict=True):
        assert times >= float(floor_seconds(collective, size, group)) * (1 - 1e-9)
        split = float(collective_seconds(collective, size, group, hierarchical=True))
        assert floor_seconds(collective, size, group) * (1 - 1e-9) <= split <= times


def test_a_network_is_described_in_a_device_file() -> None:
    entry = {"based_on": "dgx-h100", "oversubscription": 2, "gpus_per_leaf": 32, "rail_optimised": True}
    mine = default_catalog().with_document({"nodes": {"ours": entry}})
    node = mine.node("ours")
    assert (node.oversubscription, node.gpus_per_leaf, node.rail_optimised) == (2.0, 32, True)
    assert (node.nics, node.intra, node.aliases) == (8, "nvlink4-switch", ())
    assert mine.default_node(mine.gpu("h100")).name == "dgx-h100"
    again = mine.with_document({"nodes": {"more": {"based_on": "ours", "oversubscription": 3}}})
    assert (again.node("more").oversubscription, again.node("more").gpus_per_leaf) == (3.0, 32)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"oversubscription": 0.5, "gpus_per_leaf": 32}, "oversubscription must be a number from 1 to 1,000, not 0.5"),
        ({"oversubscription": 2}, "gpus_per_leaf is missing; give the number of GPUs that share a leaf switch"),
        ({"oversubscription": 2, "gpus_per_leaf": 12}, "gpus_per_leaf=12 is not a multiple of gpus_per_node=8"),
        ({"oversubscription": "x"}, "oversubscription must be a number from 1 to 1,000, not 'x'"),
        ({"rail_optimised": 1}, "rail_optimised must be true or false, not 1"),
        ({"oversubscripton": 2}, "unknown key 'oversubscripton'; nearest: oversubscription"),
        ({"inter": None, "rail_optimised": True}, "rail_optimised belongs to a network, but inter is missing"),
        ({"based_on": "dgx-h1000"}, "unknown node 'dgx-h1000'"),
    ],
)
def test_wrong_networks_are_refused(facts: dict[str, object], message: str) -> None:
    entry = {"based_on": "dgx-h100", **facts}
    with pytest.raises(CatalogError, match=message):
        default_catalog().with_document({"nodes": {"ours": entry}})


@pytest.mark.parametrize("gpus", [999_983, 1_048_573, 2**20, 720_720])
@pytest.mark.parametrize("name", ["h100", "gb200", "t4"])
def test_any_number_of_gpus_is_placed(gpus: int, name: str) -> None:
    placed = cluster(name, gpus)
    assert (placed.nodes - 1) * placed.gpus_per_node < gpus <= placed.nodes * placed.gpus_per_node
    assert placed.world.ranks == gpus
