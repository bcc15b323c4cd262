"""Compute and communication beside each other: shares of multiprocessors and memory, worked by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precision_time.errors import JobError
from precision_time.hardware import cluster
from precision_time.timing import overlap
from precision_time.timing.collectives import COLLECTIVES, collective_seconds
from precision_time.timing.overlap import NONE, Overlap, overlap_slowdown

DATA = Path(overlap.__file__).parent / "data" / "overlap.json"
PLACES = [("v100", 8), ("a100", 8), ("a100", 32), ("h100", 8), ("gb200", 64), ("b300", 8), ("l40s", 2), ("mi300x", 8)]


def test_a_ring_on_a100_by_hand() -> None:
    node = cluster("a100", 8)
    # 24 blocks of 108 multiprocessors: the rest takes 108/84. 246.3 GB/s x 2 of 2039 GB/s of memory for all-gather.
    found = overlap_slowdown(node, node.world, "all_gather", memory_bound=0.0)
    assert found == Overlap(pytest.approx(108 / 84), 1.0)
    found = overlap_slowdown(node, node.world, "all_gather", memory_bound=1.0)
    assert found.compute == found.communication == pytest.approx(1 + 2 * 246.3 / 2039, rel=1e-3)


def test_the_switch_of_hopper_takes_less() -> None:
    node = cluster("h100", 8)
    reduced, gathered = (overlap_slowdown(node, node.world, name) for name in ("all_reduce", "all_gather"))
    assert 1 < reduced.compute < gathered.compute


def test_compute_slows_as_published() -> None:
    # arXiv 2507.03114: 18.9 % on average, 40 % at most, over A100, H100 and AMD.
    slower = [overlap_slowdown(cluster(gpu, 4), cluster(gpu, 4).world).compute for gpu in ("a100", "h100")]
    assert 1.1 < min(slower) <= max(slower) < 1.4


def test_alone_and_on_a_cpu_nothing_slows() -> None:
    node = cluster("a100", 8)
    assert overlap_slowdown(node, node.group(1)) == NONE
    assert overlap_slowdown(node, node.world, scale=0.0) == NONE
    host = replace(node, gpu=replace(node.gpu, device_type="cpu"))
    assert overlap_slowdown(host, host.world) == NONE


@given(st.sampled_from(PLACES), st.sampled_from(COLLECTIVES), st.floats(0, 9), st.floats(0, 9))
def test_a_larger_scale_never_speeds_up(place: tuple[str, int], collective: str, few: float, more: float) -> None:
    where = cluster(*place)
    few, more = sorted([few, more])
    less = overlap_slowdown(where, where.world, collective, few)
    most = overlap_slowdown(where, where.world, collective, more)
    assert 1 <= less.compute <= most.compute <= 1 + min(2 * max(more, 1e-9), overlap.MOST_LOST)
    assert 1 <= less.communication <= most.communication


def test_wrong_words_are_refused() -> None:
    node = cluster("a100", 8)
    with pytest.raises(JobError, match="at least 0"):
        overlap_slowdown(node, node.world, scale=-1)
    with pytest.raises(JobError, match="use one of all_gather"):
        overlap_slowdown(node, node.world, "allreduce")


def test_every_number_has_a_source() -> None:
    def leaves(value: object) -> list[dict[str, object]]:
        if not isinstance(value, dict):
            return []
        return [value] if "value" in value else [leaf for each in value.values() for leaf in leaves(each)]

    found = leaves(json.loads(DATA.read_text()))
    assert len(found) > 10
    assert all(leaf["source"] for leaf in found)


@pytest.mark.parametrize("gpu", ["l4", "a40", "v100", "p100-16gb-sxm", "p100-16gb-pcie", "a100", "h100", "mi210"])
@pytest.mark.parametrize("nodes", [1, 2, 3, 7, 8, 31])
def test_one_rank_on_a_further_node_never_takes_less_from_compute(gpu: str, nodes: int) -> None:
    """What takes longer may slow compute beside it less, but not in all: its bytes pass through memory."""
    full = nodes * cluster(gpu, 1).node.gpus_per_node
    for size in (3e7, 1e9, 1e10):
        stolen_s = []
        for where in (cluster(gpu, full), cluster(gpu, full + 1)):
            seconds = float(collective_seconds("all_reduce", size, where))
            stolen_s.append(seconds * (overlap_slowdown(where, where.world).compute - 1.0))
        assert stolen_s[1] >= stolen_s[0]


def test_the_slowdown_between_nodes_is_that_of_the_network_by_hand() -> None:
    """192 GB/s of the ports of 8 A100 are less than their bus, and pass through each GPU whatever the number of nodes:
    3 x 192 of 2039 GB/s of memory."""
    for ranks in (24, 25, 512):
        where = cluster("a100", ranks)
        found = overlap_slowdown(where, where.world, "reduce_scatter", memory_bound=1.0)
        assert found.compute == pytest.approx(1 + 3 * 192 / 2039, rel=1e-3)
