"""The vision zoo: parameter counts against published ones, and whole steps on the meta device."""

from __future__ import annotations

import importlib
from collections import Counter
from typing import Any

import pytest

from precision_time.capture.captured_model import capture_model
from precision_time.capture.training_step import training_step
from precision_time.errors import JobError
from precision_time.job import Job
from precision_time.timing.operators import WorkOptions, works
from precision_time.zoo.tables.vision import ENTRIES
from precision_time.zoo.workload import Workload, ZooEntry

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")

from precision_time.capture.trace import trace_entry  # noqa: E402
from precision_time.zoo.models.operators import focal_loss, instance_norm  # noqa: E402

BY_NAME = {entry.name: entry for entry in ENTRIES}
PUBLISHED = [entry for entry in ENTRIES if entry.parameters]


def build(entry: ZooEntry, config: dict[str, Any] | None = None, **sizes: Any) -> Workload:
    module, _, function = entry.builder.partition(":")
    if module == "models.transformers_models":
        pytest.importorskip("transformers")
    if function == "build_timm":
        pytest.importorskip("timm")
    builder = getattr(importlib.import_module(f"precision_time.zoo.{module}"), function)
    with torch.device("meta"):
        return builder({**entry.config, **(config or {})}, {**entry.input, "batch_size": 2, **sizes})


def count(workload: Workload) -> int:
    return sum(p.numel() for p in workload.module.parameters())


def step(workload: Workload) -> None:
    with torch.device("meta"):
        loss = workload.loss(workload.module, workload.inputs)
        loss.backward()
    assert loss.shape == ()
    trained = [p for p in workload.module.parameters() if p.requires_grad]
    assert all(p.grad is not None and p.grad.shape == p.shape for p in trained)


@pytest.mark.parametrize("entry", PUBLISHED, ids=lambda entry: entry.name)
def test_parameter_count_is_the_published_one(entry: ZooEntry) -> None:
    assert entry.parameters_source
    tolerance = 0.005 if "rounded" in entry.parameters_source else 0
    assert count(build(entry)) == pytest.approx(entry.parameters, rel=tolerance, abs=0)


@pytest.mark.parametrize(
    ("name", "config", "expected"),
    [
        ("maskrcnn-r50-fpn", {"classes": 91}, 44_401_393),
        ("fasterrcnn-r50-fpn", {"classes": 91}, 41_755_286),
        ("retinanet-resnext50", {"classes": 91, "groups": 1, "group_width": 64}, 34_014_999),
        ("resnet50", {"depth": 34}, 21_797_672),
        ("efficientnet-b0", {"variant": "b7"}, 66_347_960),
    ],
)
def test_relatives_have_the_counts_of_torchvision(name: str, config: dict[str, Any], expected: int) -> None:
    assert count(build(BY_NAME[name], config)) == expected


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("resnet50", {"image_size": 64}),
        ("efficientnet-b0", {"image_size": 64}),
        ("gpunet-1", {"image_size": 64}),
        ("efficientdet-d0", {"image_size": (128, 256)}),
        ("ssd300-resnet34", {}),
        ("maskrcnn-r50-fpn", {"image_size": (256, 320)}),
        ("fasterrcnn-r50-fpn", {"image_size": (256, 320)}),
        ("nnunet-2d", {"image_size": (64, 32)}),
        ("nnunet-3d", {"image_size": (64, 32, 32)}),
        ("unet3d", {"volume": 64}),
        ("inception-v3", {}),
        ("yolov8n", {"image_size": (64, 96)}),
        ("unet-resnet34", {"image_size": (64, 32)}),
        ("siglip-b-16", {"image_size": 64}),
    ],
)
def test_a_step_runs_without_memory(name: str, sizes: dict[str, Any]) -> None:
    """Images that are not square, and models beside the smallest of their family (tests/test_stored_sizes.py)."""
    step(build(BY_NAME[name], **sizes))


def test_efficientdet_pads_inside_its_layers_and_has_one_kernel_for_its_loss() -> None:
    """As NVIDIA's benchmark scripts run it: 90 classes are padded to 96, at nine anchors a cell."""
    entry = BY_NAME["efficientdet-d0"]
    graph = trace_entry(entry, entry.config, {**entry.input, "batch_size": 2}, "autocast", "flash")
    of = Counter(graph.kinds[call.kind].name for call in graph.calls)
    assert not of["aten.constant_pad_nd"]
    assert of["pt.focal_loss_forward"] == of["pt.focal_loss_backward"] == 5  # of each level
    losses = [kind for kind in graph.kinds if kind.name == "pt.focal_loss_forward"]
    assert {spec.shape[-1] for kind in losses for spec in kind.inputs[:1]} == {96}
    biased = [name for name, _ in build(entry).module.named_parameters() if name.endswith("bias")]
    assert len([name for name in biased if name.startswith(("score.predict", "box.predict"))]) == 2


@pytest.mark.parametrize(("fused", "copies"), [(1, False), (0, True)])
def test_a_fused_instance_norm_takes_channels_last(fused: int, copies: bool) -> None:
    entry = BY_NAME["nnunet-3d"]
    sizes = {"volume": 64, "channels": 4, "batch_size": 1}
    graph = trace_entry(entry, {**entry.config, "fused_norm": fused}, sizes, "autocast", "flash", channels_last=True)
    of = Counter(graph.kinds[call.kind].name for call in graph.calls)
    assert of["aten.native_batch_norm"] == of["aten.native_batch_norm_backward"] == 22
    assert (of["aten.clone"] > 22) == copies


def test_a_fused_instance_norm_computes_the_same() -> None:
    x, weight, bias = torch.randn(2, 3, 4, 5, 6), torch.randn(3), torch.randn(3)
    expected = torch.nn.functional.instance_norm(x, weight=weight, bias=bias)
    assert torch.allclose(instance_norm(x, weight, bias, 1e-5), expected)


def test_ssd_has_its_8732_anchors() -> None:
    assert build(BY_NAME["ssd300-resnet50"]).inputs["anchors"].shape == (1, 4, 8732)


def test_table_spellings_of_the_configuration_are_understood() -> None:
    described = {"backbone": "resnet50_to_conv4_stride1", "classes": 81, "anchors": 8732}
    assert count(build(BY_NAME["ssd300-resnet50"], described)) == count(build(BY_NAME["ssd300-resnet50"]))
    step(build(BY_NAME["resnet50"], {"variant": "v1.5", "classes": 1000}, image_size=32))
    shape = {"filters": (32, 64), "kernel": 3, "norm": "instance", "classes": 4}
    step(build(BY_NAME["nnunet-2d"], shape, image_size=(192, 160), channels=4))


@pytest.mark.parametrize(
    ("name", "config", "sizes", "message"),
    [
        ("resnet50", {"variant": "v2"}, {}, "v1.5"),
        ("ssd300-resnet50", {}, {"image_size": (300, 400)}, "square"),
        ("nnunet-2d", {}, {"image_size": 100}, "divide by 32"),
        ("nnunet-3d", {}, {"image_size": (128, 128)}, "takes 3"),
        ("vgg16", {"name": "vgg17"}, {}, "vgg16"),
        ("yolov8n", {}, {"image_size": 650}, "multiple of 32"),
        ("unet-resnet34", {}, {"image_size": 40}, "divide by 32"),
    ],
)
def test_impossible_models_are_errors(name: str, config: dict[str, Any], sizes: dict[str, Any], message: str) -> None:
    with pytest.raises(JobError, match=message):
        build(BY_NAME[name], config, **sizes)


@pytest.mark.parametrize("name", ["resnet50", "gpunet-0"])
def test_operators_do_not_depend_on_sizes(name: str) -> None:
    """What lets one capture serve all sizes: the same sequence of operators at any batch and image size."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Recorder(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.names: list[str] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.names.append(str(func))
            return func(*args, **(kwargs or {}))

    sequences = []
    for batch, side in ((2, 64), (3, 96)):
        workload = build(BY_NAME[name], batch_size=batch, image_size=side)
        with Recorder() as recorder:
            step(workload)
        sequences.append(recorder.names)
    assert sequences[0] == sequences[1]


@pytest.mark.parametrize(
    ("name", "size"), [("tf_efficientnet_b1_ap", 240), ("vit_base_patch16_224_sam", 224), ("efficientnet_b0", 96)]
)
def test_old_names_of_timm_and_other_image_sizes(name: str, size: int) -> None:
    pytest.importorskip("timm")
    from precision_time.zoo.models.torchvision_models import build_timm

    with torch.device("meta"):
        workload = build_timm({"name": name}, {"batch_size": 2, "image_size": size})
    step(workload)


def test_fast_norm_of_timm_runs_norms_in_the_dtype_of_autocast() -> None:
    """As timm's `fast_layer_norm` does without Apex; PyTorch's layer norm under autocast is in single precision."""
    pytest.importorskip("timm")
    from timm.layers import is_fast_norm

    def norms(precision: str, **config: bool) -> set[str]:
        job = Job("timm:davit_tiny", precision=precision, batch_size=2, model_config=config)
        kinds = training_step(job, None, "cuda").graph.kinds
        return {kind.inputs[0].dtype for kind in kinds if kind.name == "aten.native_layer_norm"}

    assert norms("amp-fp16") == {"float32"}
    assert norms("amp-fp16", fast_norm=True) == {"float16"}
    assert norms("fp32", fast_norm=True) == {"float32"}
    assert not is_fast_norm()


def test_old_names_that_timm_takes_for_a_smaller_network() -> None:
    pytest.importorskip("timm")
    from precision_time.zoo.models.torchvision_models import build_timm

    with torch.device("meta"):
        workloads = [build_timm({"name": f"ig_resnext101_32x{n}d"}, {"batch_size": 1}) for n in (8, 16, 32)]
    assert [count(workload) for workload in workloads] == [88_791_336, 194_026_792, 468_530_472]
    with pytest.raises(JobError, match="another network under the name ig_resnext101_32x48d"):
        build_timm({"name": "ig_resnext101_32x48d"}, {"batch_size": 1})


def test_deep_resunet_has_its_published_count_without_shortcuts() -> None:
    """arXiv:1711.10684 states 7.8 million for residual units whose shortcuts have no convolution."""
    workload = build(BY_NAME["resunet"])
    inner = sum(p.numel() for name, p in workload.module.named_parameters() if "shortcut" not in name)
    assert round(inner / 1e6, 1) == 7.8


def test_unet_variants_keep_the_size_of_the_image() -> None:
    for name in ("unet-2d", "attention-unet", "resunet", "unet-resnet50"):
        workload = build(BY_NAME[name], image_size=(64, 32))
        with torch.device("meta"):
            found = workload.module(workload.inputs["image"])
        assert found.shape == (2, BY_NAME[name].config["classes"], 64, 32)


@pytest.mark.parametrize(("size", "gflops"), [("n", 8.9), ("s", 28.8), ("m", 79.3), ("l", 165.7), ("x", 258.5)])
def test_yolov8_has_its_published_flops(size: str, gflops: float) -> None:
    """A multiply-add is two; yolov8.yaml counts one image of 640 pixels, with batch norm and activations (2 %)."""
    from torch.utils.flop_counter import FlopCounterMode

    workload = build(BY_NAME[f"yolov8{size}"], batch_size=1)
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        workload.module(workload.inputs["image"])
    assert counter.get_total_flops() / 1e9 == pytest.approx(gflops, rel=0.025)


def test_complete_iou_is_that_of_torchvision() -> None:
    from torchvision.ops import complete_box_iou

    from precision_time.zoo.models.pyramid import corner_boxes
    from precision_time.zoo.models.yolo import complete_iou

    torch.manual_seed(0)
    one, other = corner_boxes(6), corner_boxes(5)
    found = complete_iou(one.unsqueeze(1), other.unsqueeze(0))
    assert torch.allclose(found, complete_box_iou(one, other), atol=1e-5)


def test_an_object_is_learned_by_the_best_cells_inside_it() -> None:
    """16 cells of 8 pixels; the box covers the first four, one of which has the best score and an exact box."""
    from precision_time.zoo.models.yolo import assigned

    side = torch.arange(4) * 8.0 + 4.0
    cells = torch.stack(torch.meshgrid(side, side, indexing="xy"), -1).reshape(16, 2)
    boxes = torch.cat((cells - 4.0, cells + 4.0), -1).unsqueeze(0).clone()
    boxes[0, 5] = torch.tensor([0.0, 0.0, 16.0, 16.0])
    scores = torch.full((1, 16, 3), 0.1)
    scores[0, 5, 2] = 0.9
    inputs = {"box": torch.tensor([[[0.0, 0.0, 16.0, 16.0]]]), "label": torch.tensor([[2]]), "cells": cells}
    best, target = assigned(boxes, scores, inputs)
    assert best.shape == (1, 1, 10)
    assert best[0, 0, 0] == 5
    assert target[0, :, :2].sum() == 0
    assert {i for i in range(16) if target[0, i, 2] > 0} == {0, 1, 4, 5}
    assert target[0, 5, 2] == pytest.approx(1.0)


def test_the_loss_of_yolov8_falls_when_boxes_and_classes_are_right() -> None:
    """On real tensors: three steps on one image lower the loss."""
    torch.manual_seed(0)
    entry = BY_NAME["yolov8n"]
    module, _, function = entry.builder.partition(":")
    builder = getattr(importlib.import_module(f"precision_time.zoo.{module}"), function)
    workload = builder({**entry.config, "objects": 2}, {"image_size": 64, "batch_size": 1})
    side = [(s, [(x * s + s / 2, y * s + s / 2) for y in range(64 // s) for x in range(64 // s)]) for s in (8, 16, 32)]
    workload.inputs["cells"] = torch.tensor([place for _, places in side for place in places])
    workload.inputs["stride"] = torch.tensor([[float(s)] for s, places in side for _ in places])
    workload.inputs["box"] = torch.tensor([[[8.0, 8.0, 40.0, 48.0], [20.0, 4.0, 60.0, 30.0]]])
    optimizer = torch.optim.Adam(workload.module.parameters(), 1e-3)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = workload.loss(workload.module, workload.inputs)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("gradient", [False, True])
def test_focal_loss_is_that_of_torchvision(gradient: bool) -> None:
    from torchvision.ops import sigmoid_focal_loss

    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(2, 7, 5, generator=generator, requires_grad=True)
    classes = torch.tensor([[0, 4, -1, -2, 3, -1, 1], [-1, -1, -2, 2, 2, -1, 0]])
    target = torch.nn.functional.one_hot(classes.clamp(min=0), 5).float() * (classes >= 0).unsqueeze(-1)
    expected = (sigmoid_focal_loss(logits, target) * (classes > -2).unsqueeze(-1)).sum(dim=(1, 2))
    found = focal_loss(logits, classes)
    if gradient:
        found, expected = (torch.autograd.grad(loss.sum(), logits)[0] for loss in (found, expected))
    assert torch.allclose(found, expected, atol=1e-6)


def test_focal_loss_is_one_kernel_each_way() -> None:
    """Logits in half precision are read and their gradient is written, 4 bytes; then it is scaled, 4 more."""
    job = Job(model="retinanet-resnext50", precision="amp-fp16", batch_size=2, memory_format="nhwc")
    graph = capture_model(job).graph
    forward, backward = (kind for kind in graph.kinds if kind.name.startswith("pt.focal_loss"))
    logits = 2 * 120_087 * 264
    assert forward.inputs[0].numel == forward.outputs[1].numel == backward.outputs[0].numel == logits
    read_and_written = sum(w.bytes for kind in (forward, backward) for w in works(kind, WorkOptions()) or [])
    assert read_and_written == pytest.approx(8 * logits, rel=0.01)


@pytest.mark.parametrize("model", ["retinanet-resnext50", "maskrcnn-r50-fpn"])
def test_frozen_norms_are_fused_where_published_runs_do(model: str) -> None:
    jobs = [Job(model, batch_size=2, execution=mode) for mode in ("eager", "cuda_graphs", "torchscript")]
    eager, replayed, scripted = (capture_model(job).graph for job in jobs)
    assert replayed.kinds == scripted.kinds
    fused = [any(kind.name == "pt.fused_pointwise" for kind in graph.kinds) for graph in (eager, replayed)]
    assert fused == [False, True]


def test_frozen_norms_keep_the_dtype_of_images() -> None:
    """As NVIDIA's Mask R-CNN, whose constant terms are cast: images in half precision stay so."""
    graph = capture_model(Job("maskrcnn-r50-fpn", batch_size=2, precision="amp-fp16")).graph
    norms = [k for k in graph.kinds if k.name == "aten.mul" and k.inputs[-1].shape[1:] == (1, 1)]
    assert norms
    assert {kind.outputs[0].dtype for kind in norms} == {"float16"}


def test_the_tag_of_a_timm_model_decides_its_classes() -> None:
    pytest.importorskip("timm")
    from precision_time.zoo.models.torchvision_models import build_timm

    with torch.device("meta"):
        names = ("swin_tiny_patch4_window7_224.ms_in22k", "swin_base_patch4_window7_224_in22k", "resnet18")
        classes = [build_timm({"name": name}, {"batch_size": 1}).module.num_classes for name in names]
    assert classes == [21841, 21841, 1000]


def test_timm_models_by_name() -> None:
    pytest.importorskip("timm")
    from precision_time.zoo.models.torchvision_models import build_timm

    with torch.device("meta"):
        workload = build_timm({"name": "resnet18", "classes": 10}, {"batch_size": 2, "image_size": 64})
    step(workload)


def test_names_are_unique_and_batches_positive() -> None:
    assert len(BY_NAME) == len(ENTRIES)
    assert all(entry.batch_size > 0 and entry.symbols[0].name == "batch_size" for entry in ENTRIES)
