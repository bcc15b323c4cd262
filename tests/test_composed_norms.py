"""RMS norms of PyTorch before 2.9, against a trace in which torch composes them itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from networks import rows  # noqa: E402
from precision_time import predict_time  # noqa: E402
from precision_time.capture import captured_model, fused  # noqa: E402
from precision_time.capture.captured_model import capture_model  # noqa: E402
from precision_time.capture.composed_norms import composed_rms_norms  # noqa: E402
from precision_time.capture.graph import OpGraph, Phase  # noqa: E402
from precision_time.job.job import Job  # noqa: E402

SMALL = {"layers": 2, "hidden": 64, "heads": 2, "kv_heads": 2, "ffn": 128, "vocab": 128}
PRECISIONS = ("bf16-master", "fp16-master", "fp32", "amp-bf16", "amp-fp16", "fp64")


def job(precision: str, **more: Any) -> Job:
    return Job(
        model="llama3-8b",
        model_config=SMALL,
        input={"seq_len": 16},
        batch_size=2,
        gpu="a100-80gb-sxm",
        precision=precision,
        **more,
    )


def operators(graph: OpGraph) -> Counter[Any]:
    """How often each operator runs in each phase. Views are left out: autograd makes one more for the fused kernel."""
    return Counter((call.phase, kind) for call, kind in rows(graph))


@pytest.fixture
def unfused(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """torch composes RMS norms, as it did before 2.9 and does on devices without the kernel."""

    class Composed:
        @staticmethod
        def apply(x: Any, shape: Any, weight: Any) -> Any:
            return torch.rms_norm(x, shape, weight, 1e-6)

    monkeypatch.setattr(fused, "_RmsNorm", Composed)
    captured_model._cached_graph.cache_clear()  # type: ignore[attr-defined]
    yield
    captured_model._cached_graph.cache_clear()  # type: ignore[attr-defined]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_composed_norms_are_those_that_torch_composes(precision: str, request: pytest.FixtureRequest) -> None:
    composed = composed_rms_norms(capture_model(job(precision)).graph)
    request.getfixturevalue("unfused")
    traced = capture_model(job(precision)).graph
    assert operators(composed) == operators(traced)
    for one, other in zip(composed.parameters, traced.parameters, strict=True):
        assert abs(one.ready - other.ready) <= 2, one.name  # autograd adds a gradient up one or two operators later


def test_a_norm_in_bfloat16_by_hand() -> None:
    """One norm of 2 x 16 x 64 elements: 40 bytes an element forward, 104 backward, beside 4 and 6."""
    fused_graph = capture_model(job("bf16-master")).graph
    composed = composed_rms_norms(fused_graph)
    norms = sum(kind.name == "pt.rms_norm" for _, kind in rows(fused_graph))
    elements = 2 * 16 * 64

    def moved(graph: OpGraph, *phases: Phase) -> int:
        """Bytes of tensors of the input's size."""
        return sum(
            tensor.nbytes
            for call, kind in rows(graph)
            for tensor in (*kind.inputs, *kind.outputs)
            if call.phase in phases and tensor.numel == elements
        )

    forward = moved(composed, Phase.FORWARD) - moved(fused_graph, Phase.FORWARD)
    backward = moved(composed, Phase.BACKWARD) - moved(fused_graph, Phase.BACKWARD)
    assert forward == norms * (40 - 4) * elements
    # The division writes what it spreads over the input, whose one number a row counts as read here.
    assert backward == norms * (104 + 4 - 6) * elements


def test_the_backward_pass_keeps_what_it_reads() -> None:
    graph = composed_rms_norms(capture_model(job("bf16-master")).graph)
    for at, call in enumerate(graph.calls):
        for storage in map(graph.storages.__getitem__, call.reads):
            assert storage.born <= at <= storage.dies
    kept = [s for s in graph.storages if s.nbytes == 4 * 2 * 16 * 64 and s.born < len(graph.calls) // 3 < s.dies]
    assert len(kept) >= 4  # in single precision, of each norm the input and the normalised one


@pytest.mark.parametrize(
    ("changed", "composed"),
    [
        ({"torch": "2.8"}, True),
        ({"torch": "2.9"}, False),
        ({"torch": "2.13"}, False),
        ({}, False),
        ({"torch": "2.8", "execution": "compile"}, False),
        ({"torch": "2.8", "framework": "megatron"}, False),
        ({"torch": "2.6", "framework": "torchtitan"}, True),
    ],
)
def test_which_jobs_compose_their_norms(changed: dict[str, Any], composed: bool) -> None:
    one = job("bf16-master", **changed)
    assert one.composes_rms_norms == composed
    names = {kind.name for kind in capture_model(one).graph.kinds}
    assert ("pt.rms_norm" in names) == (not composed) or changed.get("execution") == "compile"


def test_networks_without_rms_norms_stay_as_they_are() -> None:
    graph = capture_model(Job(model="bert-base", gpu="a100-80gb-sxm", precision="fp32", batch_size=2)).graph
    assert composed_rms_norms(graph) is graph


def test_frozen_weights_have_no_gradients() -> None:
    adapted = job("bf16-master", lora={"rank": 4})
    before, after = capture_model(adapted).graph, composed_rms_norms(capture_model(adapted).graph)
    assert [p.trainable for p in after.parameters] == [p.trainable for p in before.parameters]
    sums = [
        kind for call, kind in rows(after, Phase.BACKWARD) if kind.name == "aten.sum" and kind.outputs[0].numel == 64
    ]
    assert sums == []  # a norm's weight is frozen


@pytest.mark.parametrize("layout", ["fsdp", "tp=2"])
def test_a_large_model_takes_longer_in_torch_2_8(layout: str) -> None:
    """torchtitan's Llama 3.1 8B on 128 H100 ran 2.923 s eagerly and 2.515 compiled in December 2024
    (data/published/measurements_llm_more.csv)."""
    asked = {"gpu": "h100-80gb-sxm", "gpus": 8, "precision": "bf16-master", "batch_size": 1, "layout": layout}
    old, new = (predict_time("llama3.1-8b", torch=torch_version, **asked) for torch_version in ("2.8", "2.9"))
    assert 1.05 < old.step.p50 / new.step.p50 < 1.25
