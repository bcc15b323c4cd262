"""What TensorFlow composes of several kernels where PyTorch has one."""

from __future__ import annotations

import pytest

from precision_time.anchoring import Anchoring
from precision_time.capture.graph import OpSignature, TensorSpec
from precision_time.hardware import catalog
from precision_time.job import Job
from precision_time.prediction import predict, work_options
from precision_time.timing.operators import WorkOptions, works

ROWS = TensorSpec((4096, 1024), "float16")
WIDTH, MASK = TensorSpec((1024,), "float32"), TensorSpec((4096, 1024), "bool")


@pytest.mark.parametrize(
    ("kind", "times"),
    [
        (OpSignature("aten.native_layer_norm", (ROWS, WIDTH, WIDTH), (ROWS,)), 3.5),
        (OpSignature("aten._softmax_backward_data", (ROWS, ROWS), (ROWS,), (("dim", 1),)), 3.5),
        (OpSignature("aten.native_dropout", (ROWS,), (ROWS, MASK)), 3.5),
        (OpSignature("aten.gelu", (ROWS,), (ROWS,)), 1.0),
        (OpSignature("aten.native_batch_norm", (ROWS, WIDTH, WIDTH), (ROWS,)), 1.0),
    ],
)
def test_traffic_of_composed_kernels(kind: OpSignature, times: float) -> None:
    (*_, one), (several,) = works(kind, WorkOptions()) or [], works(kind, WorkOptions(composes=True)) or []
    assert several.bytes == times * one.bytes
    assert several.latency_s == times * one.latency_s
    assert several.launches == one.launches * (4 if times > 1 else 1)
    assert several.flops == one.flops


def test_which_frameworks_compose() -> None:
    gpu = catalog.gpu("a100-40gb-sxm")
    composing = {
        framework: work_options(Job("bert-large", framework=framework), gpu).composes
        for framework in ("pytorch", "paddle", "mxnet", "tensorflow1", "tensorflow2")
    }
    assert composing == {
        "pytorch": False, "paddle": False, "mxnet": False, "tensorflow1": True, "tensorflow2": True,
    }  # fmt: skip


def test_bert_takes_longer_and_resnet_as_long() -> None:
    def seconds(model: str, framework: str) -> float:
        job = Job(model, precision="tf32", gpu="a100-40gb-sxm", framework=framework, execution="static_graph")
        return predict(job, anchoring=Anchoring(use=False)).step.p50

    assert 1.05 < seconds("bert-large", "tensorflow2") / seconds("bert-large", "paddle") < 1.5
    assert seconds("resnet50", "tensorflow2") == pytest.approx(seconds("resnet50", "paddle"), rel=0.01)
