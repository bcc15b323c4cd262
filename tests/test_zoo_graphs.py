"""Graph networks: published parameter counts, and layers against the same formulas on dense matrices."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from precision_time import predict_time
from precision_time.zoo.tables.graphs import ENTRIES
from precision_time.zoo.workload import Workload, ZooEntry

torch = pytest.importorskip("torch")

from precision_time.zoo.models.graph_networks import (  # noqa: E402
    Categories,
    GatLayer,
    GcnLayer,
    GinLayer,
    MeanLayer,
    summed,
)

BY_NAME = {entry.name: entry for entry in ENTRIES}


def build(entry: ZooEntry, **sizes: Any) -> Workload:
    module, _, function = entry.builder.partition(":")
    builder = getattr(importlib.import_module(f"precision_time.zoo.{module}"), function)
    with torch.device("meta"):
        workload = builder(dict(entry.config), {**entry.input, "batch_size": 4, **sizes})
    assert isinstance(workload, Workload)
    return workload


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_parameter_count_is_the_published_one(entry: ZooEntry) -> None:
    assert sum(p.numel() for p in build(entry).module.parameters()) == entry.parameters
    assert entry.parameters_source


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_a_step_trains_every_weight(entry: ZooEntry) -> None:
    workload = build(entry)
    with torch.device("meta"):
        loss = workload.loss(workload.module, workload.inputs)
        loss.backward()
    assert loss.shape == ()
    assert all(p.grad is not None for p in workload.module.parameters())


@pytest.fixture
def graph() -> dict[str, Any]:
    """Five nodes, two of which have one incoming edge and one has three; no edge twice."""
    torch.manual_seed(0)
    source, target = torch.tensor([0, 1, 2, 3, 4, 0, 2]), torch.tensor([1, 0, 3, 3, 3, 4, 2])
    degree = torch.bincount(target, minlength=5).float()
    return {"source": source, "target": target, "degree": degree, "weight": torch.rand(7), "x": torch.randn(5, 6)}


def dense(graph: dict[str, Any], values: Any) -> Any:
    """Row: target, column: source."""
    matrix = torch.zeros(5, 5)
    matrix[graph["target"], graph["source"]] = values
    return matrix


def test_gcn_is_the_product_with_the_weighted_adjacency_matrix(graph: dict[str, Any]) -> None:
    layer = GcnLayer(6, 3)
    expected = dense(graph, graph["weight"]) @ (graph["x"] @ layer.linear.weight.T) + layer.bias
    assert torch.allclose(layer(graph["x"], graph), expected, atol=1e-6)


def test_graphsage_takes_the_mean_of_the_neighbours(graph: dict[str, Any]) -> None:
    layer = MeanLayer(6, 3)
    adjacency = dense(graph, torch.ones(7)) / graph["degree"].unsqueeze(-1)
    expected = layer.neighbours(adjacency @ graph["x"]) + layer.own(graph["x"])
    assert torch.allclose(layer(graph["x"], graph), expected, atol=1e-6)


@pytest.mark.parametrize("join", [True, False])
def test_gat_is_attention_with_the_scores_of_missing_edges_masked(graph: dict[str, Any], join: bool) -> None:
    layer = GatLayer(6, 4, 2, join)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_()
    rows = layer.linear(graph["x"]).view(5, 2, 4)
    scores = (rows * layer.of_target).sum(-1)[:, None] + (rows * layer.of_source).sum(-1)[None]
    missing = dense(graph, torch.ones(7)) == 0
    scores = torch.nn.functional.leaky_relu(scores, 0.2).masked_fill(missing.unsqueeze(-1), -torch.inf)
    mixed = torch.einsum("tsh,shc->thc", scores.softmax(1), rows)
    expected = (mixed.flatten(1) if join else mixed.mean(1)) + layer.bias + layer.own(graph["x"])
    assert torch.allclose(layer(graph["x"], graph["source"], graph["target"], 5), expected, atol=1e-5)


def test_gin_adds_the_neighbours_with_their_bonds(graph: dict[str, Any]) -> None:
    layer = GinLayer(6).eval()
    bonds = torch.tensor([[0, 1, 0], [1, 2, 1], [4, 5, 1], [0, 0, 0], [2, 2, 0], [3, 1, 1], [1, 1, 1]])
    total = (1 + layer.own) * graph["x"]
    for edge, (start, end) in enumerate(zip(graph["source"], graph["target"], strict=True)):
        bond = sum(table.weight[value] for table, value in zip(layer.bonds.tables, bonds[edge], strict=True))
        total = total.index_add(0, end.view(1), torch.relu(graph["x"][start] + bond).view(1, 6))
    assert torch.allclose(layer(graph["x"], {**graph, "bonds": bonds}), layer.norm(layer.feed(total)), atol=1e-5)


def test_sums_by_target_and_of_categories() -> None:
    rows, target = torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([2, 0, 2])
    assert summed(rows, target, 3).tolist() == [[2.0], [0.0], [5.0]]
    table = Categories((3, 2), 4)
    found = table(torch.tensor([[2, 1]]))
    assert torch.allclose(found[0], table.tables[0].weight[2] + table.tables[1].weight[1])


def test_a_whole_graph_is_limited_by_memory_traffic_and_grows_with_its_edges() -> None:
    few = predict_time("gcn-arxiv", precision="fp32")
    many = predict_time("gcn-arxiv", precision="fp32", input={"edges": 2 * 2_315_598})
    assert few.bound_shares["memory"] > 0.6
    assert 1.3 < many.step.p50 / few.step.p50 < 2.0
    assert few.steps_per_epoch == 1
    assert few.samples_unit == "nodes"


def test_small_batches_of_molecules_are_limited_by_launches() -> None:
    """Ten times the molecules take less than ten times as long, until kernels are long enough."""
    steps = [predict_time("gin-molhiv", precision="fp32", batch_size=size) for size in (32, 320, 3200)]
    assert steps[0].bound_shares["launch"] > 0.3
    assert steps[2].bound_shares["launch"] < 0.01
    assert steps[1].step.p50 < 5 * steps[0].step.p50
    assert 8 < steps[2].step.p50 / steps[1].step.p50 < 11
    assert steps[0].steps_per_epoch == -(-32_901 // 32)
