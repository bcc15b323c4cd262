"""PredictDDL's graphs and encoder: layers and edges of real captures, sweeps worked by hand, paths against networkx."""

from __future__ import annotations

import json

import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.papers.random_networks import random_networks
from precision_time.capture.captured_model import capture_model
from precision_time.errors import DataError, PredictorError
from precision_time.job.job import Job
from precision_time.job.precision import parse_precision
from precision_time.predictors.predictddl.encoder import (
    WEIGHTS,
    Encoder,
    embed,
    load_encoder,
    random_encoder,
    save_encoder,
    size_bins,
)
from precision_time.predictors.predictddl.network import Network, network_of
from precision_time.predictors.predictddl.paths import levels, levels_from_the_end, path_lengths
from precision_time.predictors.predictddl.primitives import (
    CHANNEL_BINS,
    CHANNEL_EDGES,
    KERNEL_BINS,
    KERNEL_EDGES,
    POOLS,
    Primitive,
    channel_bin,
    kernel_bin,
)
from predictddl_cases import network

CONV, ACT, SUM, BN = Primitive.CONV, Primitive.ACT, Primitive.SUM, Primitive.BN


def captured(model: str, precision: str = "fp32") -> Network:
    step = capture_model(Job(model, batch_size=8), parse_precision(precision), "cuda")
    return network_of(step.graph, step.batch_size)


# --- layers and edges ------------------------------------------------------------------------------------------------


def test_resnet50_has_its_published_layers_and_sixteen_sums_of_two_branches() -> None:
    found = captured("resnet50")
    counts = np.bincount(found.types, minlength=len(Primitive))
    assert counts[CONV] == counts[BN] == 53
    assert counts[SUM] == 16
    assert counts[Primitive.LINEAR] == 1
    assert counts[Primitive.INPUT] == 1  # the labels that only the loss reads are no part of the network
    assert found.shapes[0].tolist() == [3, 3, 224, 224]
    assert found.shapes[1].tolist() == [3, 64, 7, 7]
    sums = np.flatnonzero(found.types == SUM)
    assert all((found.edges[1] == node).sum() == 2 for node in sums)
    # 4.09 billion multiply-adds of a 224-pixel image (He et al. 2015), and pointwise work of a few per cent
    assert found.flops.sum() == pytest.approx(2 * 4.09e9, rel=0.03)
    assert found.parameters == 25_557_032


def test_edges_go_forward_and_join_everything_but_the_input_to_a_producer() -> None:
    for model in ("densenet121", "bert-base", "swin-t", "tft"):
        found = captured(model)
        assert (found.edges[0] < found.edges[1]).all()
        reached = set(found.edges[1].tolist())
        assert all(i in reached for i in range(found.nodes) if found.types[i] != Primitive.INPUT)


@pytest.mark.parametrize("model", ["resnet50", "bert-base", "efficientnet-b0"])
def test_a_network_is_the_same_at_every_precision(model: str) -> None:
    single, mixed = captured(model, "fp32"), captured(model, "amp-bf16")
    assert single.types.tolist() == mixed.types.tolist()
    assert single.edges.tolist() == mixed.edges.tolist()


def test_depthwise_and_dilated_convolutions_are_kinds_of_their_own() -> None:
    assert (captured("mobilenet-v3-large").types == Primitive.SEP_CONV).sum() == 15  # one in each bottleneck
    assert (captured("unet3d").types == Primitive.DIL_CONV).sum() == 5  # the transposed ones


def test_a_graph_without_layers_is_an_error() -> None:
    step = capture_model(Job("ncf", batch_size=8), parse_precision("fp32"), "cuda")
    from dataclasses import replace

    with pytest.raises(PredictorError, match="no known layer"):
        network_of(replace(step.graph, calls=()), 8)


def test_bins_at_and_beside_their_edges() -> None:
    assert channel_bin(0) == 0
    assert channel_bin(1) == 1
    assert channel_bin(64) == channel_bin(95) != channel_bin(96)
    assert channel_bin(10**9) == CHANNEL_BINS - 1 == len(CHANNEL_EDGES)
    assert kernel_bin(0) == 0
    assert [kernel_bin(k) for k in (1, 3, 5, 7)] == [1, 3, 5, 7]
    assert kernel_bin(10**9) == KERNEL_BINS - 1 == len(KERNEL_EDGES)


# --- paths -----------------------------------------------------------------------------------------------------------


@st.composite
def acyclic(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]]]:
    nodes = draw(st.integers(2, 12))
    pairs = [(i, j) for i in range(nodes) for j in range(i + 1, nodes)]
    return nodes, sorted(draw(st.sets(st.sampled_from(pairs), min_size=1)), key=lambda pair: pair[1])


@given(acyclic(), st.integers(2, 6))
@settings(max_examples=60, deadline=None)
def test_path_lengths_are_those_of_networkx(graph: tuple[int, list[tuple[int, int]]], longest: int) -> None:
    nodes, edges = graph
    oracle = networkx.DiGraph(edges)
    expected = {
        (a, b): length
        for a, to in networkx.all_pairs_shortest_path_length(oracle, cutoff=longest)
        for b, length in to.items()
        if length
    }
    lengths = path_lengths(nodes, np.array(edges).T, longest)
    assert {(int(a), int(b)): int(lengths[b, a]) for b, a in zip(*np.nonzero(lengths), strict=True)} == expected


@given(acyclic())
@settings(max_examples=60, deadline=None)
def test_levels_are_longest_paths_from_both_ends(graph: tuple[int, list[tuple[int, int]]]) -> None:
    nodes, edges = graph
    array = np.array(edges).T
    oracle = networkx.DiGraph(edges)
    oracle.add_nodes_from(range(nodes))
    for found, towards in ((levels(nodes, array), oracle), (levels_from_the_end(nodes, array), oracle.reverse())):
        for node in range(nodes):
            above = towards.subgraph(networkx.ancestors(towards, node) | {node})
            assert found[node] == networkx.dag_longest_path_length(above)


# --- the encoder -----------------------------------------------------------------------------------------------------


def transparent_encoder() -> Encoder:
    """Width 4, MLP(h) = relu(h), MLP_ve(h) = 2 relu(h), GRU(m, h) = tanh(m + h)."""
    arrays = dict(random_encoder(width=4).arrays)
    one = np.eye(4)
    for name in ("near", "far"):
        for part in (0, 2):
            arrays[f"{name}.{part}.weight"] = one * (2.0 if (name, part) == ("far", 2) else 1.0)
            arrays[f"{name}.{part}.bias"] = np.zeros(4)
    zero = np.zeros((4, 4))
    arrays["gru.weight_ih"] = np.concatenate([zero, zero, one])  # reset, update, new
    arrays["gru.weight_hh"] = np.concatenate([zero, zero, one])
    arrays["gru.bias_ih"] = np.concatenate([np.full(4, 100.0), np.full(4, -100.0), np.zeros(4)])
    arrays["gru.bias_hh"] = np.zeros(12)
    return Encoder(arrays)


def test_both_sweeps_over_three_nodes_worked_by_hand() -> None:
    encoder = transparent_encoder()
    chain = network([CONV, BN, ACT], [(0, 1), (1, 2)], [(3, 8, 3, 3), (8, 8, 0, 0), (8, 8, 0, 0)])
    types, channels, kernels = (encoder.arrays[f"{name}_embedding.weight"] for name in ("type", "channel", "kernel"))

    def start(kind: Primitive, i: int, o: int, k: int) -> np.ndarray:
        sizes = (channels[channel_bin(i)], channels[channel_bin(o)], kernels[kernel_bin(k)], kernels[kernel_bin(k)])
        return types[kind] + np.concatenate(sizes)

    def relu(x: np.ndarray) -> np.ndarray:
        return np.maximum(x, 0.0)

    a, b, c = start(CONV, 3, 8, 3), start(BN, 8, 8, 0), start(ACT, 8, 8, 0)
    a = np.tanh(a)
    b = np.tanh(relu(a) + b)
    c = np.tanh(relu(b) + 2.0 * relu(a) / 2.0 + c)  # from a along a path of two edges
    c = np.tanh(c)
    b = np.tanh(relu(c) + b)
    a = np.tanh(relu(b) + 2.0 * relu(c) / 2.0 + a)
    rows = np.stack([a, b, c])
    rows = (rows - rows.mean(1, keepdims=True)) / np.sqrt(rows.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(embed(encoder, chain), rows.mean(0), rtol=1e-4, atol=1e-5)


def test_numbering_within_topological_order_does_not_matter() -> None:
    encoder = random_encoder(3)
    shapes = [(3, 8, 3, 3), (8, 16, 5, 5), (8, 16, 1, 1), (16, 16, 0, 0), (16, 16, 0, 0)]
    one = network([CONV, CONV, Primitive.SEP_CONV, SUM, ACT], [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4)], shapes)
    swapped = [shapes[i] for i in (0, 2, 1, 3, 4)]
    two = network([CONV, Primitive.SEP_CONV, CONV, SUM, ACT], [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4)], swapped)
    other = network([CONV, CONV, CONV, SUM, ACT], [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4)], shapes)
    np.testing.assert_allclose(embed(encoder, one), embed(encoder, two), atol=1e-6)
    assert np.abs(embed(encoder, one) - embed(encoder, other)).max() > 1e-3


def test_edges_matter_and_so_does_their_direction() -> None:
    encoder = random_encoder(3)
    types, shapes = [CONV, BN, ACT, CONV], [(3, 8, 3, 3), (8, 8, 0, 0), (8, 8, 0, 0), (8, 4, 1, 1)]
    chain = embed(encoder, network(types, [(0, 1), (1, 2), (2, 3)], shapes))
    fan = embed(encoder, network(types, [(0, 1), (0, 2), (0, 3)], shapes))
    assert np.abs(chain - fan).max() > 1e-3


def test_the_encoder_in_numpy_is_the_one_that_pytorch_trains() -> None:
    import torch

    from benchmarks.papers.predictddl_torch import TorchEncoder, batch_of, graph_of

    networks = random_networks(12, seed=2)
    for encoder in (random_encoder(1), load_encoder()):
        with torch.no_grad():
            together = TorchEncoder(encoder)(batch_of([graph_of(each) for each in networks])).numpy()
        alone = np.stack([embed(encoder, each) for each in networks])
        np.testing.assert_allclose(together, alone, atol=1e-5)
        again = TorchEncoder(encoder).encoder()
        assert all(np.allclose(again.arrays[name], array, atol=1e-6) for name, array in encoder.arrays.items())


@pytest.mark.slow
def test_pretraining_lowers_the_error_on_networks_held_out_and_goes_on_where_it_stopped(tmp_path) -> None:
    from benchmarks.papers.predictddl_pretraining import Pool, pretrain, r2_of, started

    pool, held_out = Pool.of(random_networks(48, seed=0)), Pool.of(random_networks(16, seed=1))
    whole = started(pool, 6, 16, 1e-2, 0)
    before = np.median(r2_of(whole, pool, held_out))
    pretrain(pool, whole, epochs=6, batch=16, after_epoch=lambda e: whole.save(tmp_path / "at.pt") if e == 3 else None)
    assert np.median(r2_of(whole, pool, held_out)) > before + 0.1
    resumed = started(pool, 6, 16, 1e-2, 0)
    resumed.resume(tmp_path / "at.pt")
    assert resumed.done == 9
    pretrain(pool, resumed, epochs=6, batch=16)
    np.testing.assert_allclose(r2_of(resumed, pool, held_out), r2_of(whole, pool, held_out), atol=1e-4)


def test_the_shipped_encoder_tells_flops_and_parameters_of_networks_it_never_saw() -> None:
    """Its provenance says so; a linear fit on its vectors says most of it again."""
    with np.load(WEIGHTS, allow_pickle=False) as stored:
        scores = json.loads(str(stored["provenance"]))["held_out_r2"]
    assert scores["flops"] > 0.95
    assert scores["parameters"] > 0.95
    networks = random_networks(90, seed=11)
    truth = np.log([each.flops.sum() for each in networks])
    r2 = []
    for encoder in (load_encoder(), random_encoder()):
        x = np.stack([np.append(embed(encoder, each), 1.0) for each in networks])
        theta = np.linalg.lstsq(x[:60], truth[:60])[0]
        r2.append(1.0 - ((x[60:] @ theta - truth[60:]) ** 2).sum() / ((truth[60:] - truth[60:].mean()) ** 2).sum())
    assert r2[0] > max(0.7, r2[1])


def test_cells_have_the_structure_of_darts() -> None:
    cells = [each for each in random_networks(60, seed=3) if each.name == "cells"]
    assert len(cells) > 5
    for each in cells:
        joins = np.flatnonzero(each.types == Primitive.CONCAT)
        assert len(joins)
        assert all((each.edges[1] == node).sum() == 4 for node in joins)  # four nodes of a cell
    kinds = set(np.concatenate([each.types for each in cells]).tolist())
    assert {int(p) for p in (*POOLS, CONV, Primitive.SEP_CONV, Primitive.DIL_CONV, SUM, Primitive.CSE)} <= kinds


def test_the_shipped_encoder_has_a_provenance_and_saves_exactly(tmp_path) -> None:
    encoder = load_encoder()
    some = random_networks(1, seed=5)[0]
    save_encoder(encoder, tmp_path / "again.npz", {"networks": 1})
    assert embed(load_encoder(tmp_path / "again.npz"), some).tolist() == embed(encoder, some).tolist()
    save_encoder(random_encoder(width=8), tmp_path / "narrow.npz", {})
    assert load_encoder(tmp_path / "narrow.npz").width == 8
    (tmp_path / "broken.npz").write_bytes(b"no npz")
    with pytest.raises(DataError, match="pretraining"):
        load_encoder(tmp_path / "broken.npz")


def test_generated_networks_are_well_formed() -> None:
    for each in random_networks(60, seed=7):
        assert (each.edges[0] < each.edges[1]).all()
        assert (each.flops >= 0).all()
        assert each.flops.sum() > 0
        assert (each.bytes > 0).sum() == each.nodes - (each.types == Primitive.INPUT).sum()
        assert size_bins(each).max() < max(CHANNEL_BINS, KERNEL_BINS)
