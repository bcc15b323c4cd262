"""Graph networks on the data sets of the Open Graph Benchmark (Hu et al. 2020, arXiv:2005.00687).

Nodes and edges are those of the data set, each direction of an edge counted; of molecules the mean. Parameter counts
are those of OGB's leaderboards (recalled, re-read in a public copy for the GAT).
"""

from __future__ import annotations

from precision_time.zoo.workload import BATCH, Symbol, ZooEntry

_ARXIV = {"nodes": 169_343, "edges": 2_315_598}
"""1,166,243 citations, in both directions without repeats."""
NODES = Symbol("nodes", (40, 60), 100)
EDGES = Symbol("edges", (160, 220), 300)

ENTRIES: tuple[ZooEntry, ...] = (
    ZooEntry(
        "graphsage", "models.graphsage:build", "graphsage", {}, "adam", "ogbn-products", 1024,
        config={"features": 100, "hidden": 256, "classes": 47, "fanout": (15, 10, 5), "dropout": 0.5},
        parameters=206_895,
        parameters_source="OGB leaderboard, ogbn-products, NeighborSampling (SAGE), recalled, not re-read",
        samples_unit="nodes",
    ),
    *(
        ZooEntry(
            name, "models.graph_networks:build_full", "graph-network", _ARXIV, "adam", "ogbn-arxiv", 90_941,
            config={
                "aggregation": kind, "features": 128, "hidden": 256, "layers": 3, "classes": 40, "dropout": 0.5,
            },
            symbols=(BATCH, NODES, EDGES), parameters=count,
            parameters_source=f"OGB leaderboard, ogbn-arxiv, {title} (recalled)", samples_unit="nodes",
        )
        for name, kind, title, count in (
            ("gcn-arxiv", "gcn", "GCN", 110_120), ("graphsage-arxiv", "mean", "GraphSAGE", 218_664),
        )
    ),
    ZooEntry(
        "gat-products", "models.graph_networks:build_gat", "graph-network", {}, "adam", "ogbn-products", 512,
        config={
            "features": 100, "hidden": 128, "heads": 4, "classes": 47, "fanout": (10, 10, 10), "dropout": 0.5,
        },
        parameters=751_574, parameters_source="OGB leaderboard, ogbn-products, GAT with NeighborSampling",
        samples_unit="nodes",
    ),
    ZooEntry(
        "gin-molhiv", "models.graph_networks:build_gin", "graph-network", {"nodes": 26, "edges": 55}, "adam",
        "ogbg-molhiv", 32,
        config={"hidden": 300, "layers": 5, "classes": 1, "dropout": 0.5},
        symbols=(BATCH, NODES, EDGES), parameters=1_885_206,
        parameters_source="OGB leaderboard, ogbg-molhiv, GIN (recalled)", samples_unit="graphs",
    ),
)  # fmt: skip
