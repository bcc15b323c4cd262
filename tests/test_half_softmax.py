"""float16 autocast from a bfloat16 trace: softmax with fp32 result is one kernel in float16."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from networks import cnn, dtypes, names, rows, trace, transformer  # noqa: E402
from precision_time.capture.graph import OpGraph, Phase  # noqa: E402
from precision_time.capture.half_softmax import merge_half_softmax  # noqa: E402
from precision_time.capture.symbolic import rename_dtypes  # noqa: E402


def stream(graph: OpGraph) -> list[Any]:
    return [(c.phase, k.name, k.inputs, k.outputs) for c, k in rows(graph)]


def renamed(build: Any) -> OpGraph:
    return rename_dtypes(trace(build, "autocast"), {"bfloat16": "float16"})


@pytest.mark.parametrize("build", [cnn, transformer, lambda: transformer(fused=True)], ids=["cnn", "math", "flash"])
def test_merged_graph_equals_a_trace_in_float16(build: Any) -> None:
    merged = merge_half_softmax(renamed(build))
    traced = trace(build, "autocast", low_precision=torch.float16)
    assert stream(merged) == stream(traced)
    assert [p.ready for p in merged.parameters] == [p.ready for p in traced.parameters]


def test_one_kernel_each_way_and_fewer_bytes() -> None:
    before = renamed(lambda: transformer(layers=1))
    after = merge_half_softmax(before)
    kernels = [(k.name, dtypes(k.inputs), dtypes(k.outputs)) for _, k in rows(after, Phase.FORWARD) if "soft" in k.name]
    assert kernels == [("aten._softmax", ("float16",), ("float32",))]
    removed = names(before)["_to_copy"] - names(after)["_to_copy"]
    assert removed == 2  # around the attention's softmax; the loss asks for its log-softmax in half itself
    assert sum(s.nbytes for s in after.storages) < sum(s.nbytes for s in before.storages)
    assert [c.phase for c in after.calls] == sorted(c.phase for c in after.calls)


def test_bfloat16_and_fp32_steps_are_untouched() -> None:
    for regime in ("autocast", "full", "half"):
        graph = trace(transformer, regime)
        assert merge_half_softmax(graph) is graph
