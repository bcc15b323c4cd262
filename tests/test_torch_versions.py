"""What a job's version of PyTorch changes, and which grouped convolutions in NHWC tensor cores take in which."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from precision_time import Job, predict
from precision_time.capture.graph import OpSignature, TensorSpec
from precision_time.capture.training_step import training_step
from precision_time.errors import JobError
from precision_time.hardware.catalog import default_catalog
from precision_time.layout.segment import OpSignatures
from precision_time.measurements.row import row_of
from precision_time.measurements.table import OPTIONAL, REQUIRED
from precision_time.timing.kernel_factors import NO_FACTORS
from precision_time.timing.kernels import KernelModel
from precision_time.timing.kind_works import kind_works
from precision_time.timing.operators import WorkOptions, works
from precision_time.timing.work import CONV_DEPTHWISE


def convolution(inputs: int, outputs: int, groups: int, taps: int = 3, dtype: str = "float16") -> list[OpSignature]:
    """A grouped convolution of these channels a group: its forward and its backward operator."""
    shapes = ((8, inputs * groups, 14, 14), (outputs * groups, inputs, taps, taps), (8, outputs * groups, 14, 14))
    x, weight, y = (TensorSpec(shape, dtype) for shape in shapes)
    attributes = (("stride", (1, 1)), ("padding", (taps // 2,) * 2), ("dilation", (1, 1)), ("groups", groups))
    backward = (*attributes, ("output_mask", (True, True, False)))
    return [
        OpSignature("aten.convolution", (x, weight), (y,), attributes),
        OpSignature("aten.convolution_backward", (y, x, weight), (x, weight), backward),
    ]


def families(kinds: list[OpSignature], last: bool = True, kernels: int = 1) -> list[str]:
    """Of the works of both: forward, gradient of the input, of the weight."""
    return [work.family for kind in kinds for work in works(kind, WorkOptions(False, last, kernels)) or []]


T, V, U = "conv_grouped", "conv_direct", "conv_uneven"


@pytest.mark.parametrize(
    ("inputs", "outputs", "groups", "now", "before"),
    [
        (4, 4, 64, [T, T, T], [T, T, T]),  # resnext101_64x4d
        (16, 16, 32, [T, T, T], [T, T, T]),
        (32, 32, 32, [T, T, T], [V, V, V]),  # resnext101_32x8d, which 1.12 made twice as fast
        (48, 48, 8, [T, T, T], [V, V, V]),  # visformer_small
        (64, 64, 32, [T, V, V], [V, V, V]),  # resnext101_32x16d
        (128, 128, 4, [T, V, V], [V, V, V]),  # repvgg_b1g4
        (32, 32, 4, [T, V, V], [V, V, V]),  # the first stages of resnext26ts: 128 channels
        (16, 16, 20, [T, T, T], [T, T, T]),  # 320 channels
        (16, 16, 18, [T, T, T], [V, V, V]),  # 288 of regnetz_b16, which 1.12 made 3.6 times as fast
        (8, 8, 50, [T, T, T], [V, V, V]),  # 400 of dpn107
        (64, 128, 2, [T, V, T], [T, V, T]),  # resnest50d, which is as fast in every version
        (6, 6, 32, [V, V, V], [V, V, V]),  # dpn92
        (2, 4, 64, [V, V, V], [V, V, V]),  # senet154
    ],
)
def test_grouped_convolutions_that_tensor_cores_do_not_take(
    inputs: int, outputs: int, groups: int, now: list[str], before: list[str]
) -> None:
    assert families(convolution(inputs, outputs, groups)) == now
    assert families(convolution(inputs, outputs, groups), kernels=0) == before
    assert families(convolution(inputs, outputs, groups), last=False) == [T, T, T]
    assert families(convolution(inputs, outputs, groups, dtype="float32")) == [T, T, T]


def test_dense_depthwise_and_one_tap_convolutions_are_no_such_ones() -> None:
    for kernels in (0, 1, 2):
        assert families(convolution(64, 64, 1), kernels=kernels) == ["conv"] * 3
        assert families(convolution(1, 1, 64), kernels=kernels) == ["conv_depthwise"] * 3
        assert families(convolution(40, 160, 2, taps=1), kernels=kernels) == [T, T, T]


def test_several_outputs_a_channel_have_no_depthwise_kernel_in_nhwc() -> None:
    """PiT's pooling: each channel is a group alone in whole tiles."""
    for kernels in (0, 1, 2):
        assert families(convolution(1, 2, 64), kernels=kernels) == [U, U, U]
        assert families(convolution(1, 2, 64), last=False, kernels=kernels) == ["conv_depthwise"] * 3
        assert families(convolution(1, 2, 64, dtype="float32"), kernels=kernels) == ["conv_depthwise"] * 3


@pytest.mark.parametrize(
    ("inputs", "outputs", "groups", "family"),
    [(4, 4, 32, T), (16, 16, 8, T), (64, 64, 32, T), (12, 12, 32, U), (24, 24, 14, U), (112, 112, 8, U), (6, 6, 32, U)],
)
def test_from_cudnn_9_on_widths_of_groups_that_are_no_powers_of_two_are_slower(
    inputs: int, outputs: int, groups: int, family: str
) -> None:
    """As measured on an H100 (`data/measured/h100/operators.parquet`)."""
    assert families(convolution(inputs, outputs, groups), kernels=2) == [family] * 3
    assert families(convolution(inputs, outputs, groups), last=False, kernels=2) == [T, T, T]


def test_vector_units_take_longer_and_the_same_operations() -> None:
    """On the H100, whose tensor cores have 15 times their operations, the more so."""
    ratio = []
    for name in ("rtx-3090", "h100-80gb-sxm"):
        gpu = default_catalog().gpu(name)
        _, (fast, *_) = (works(kind, WorkOptions(False, True, 1)) or [] for kind in convolution(48, 48, 32))
        _, (slow, *_) = (works(kind, WorkOptions(False, True, 1)) or [] for kind in convolution(56, 56, 32))
        assert (fast.family, slow.family) == (T, V)
        times = KernelModel(scales={}, factors=NO_FACTORS).seconds([fast, slow], gpu)
        rates = np.array([fast.flops, slow.flops]) / times.seconds
        ratio.append(rates[0] / rates[1])
        assert (times.seconds >= times.floor_seconds).all()
    assert ratio[1] > ratio[0] > 2


@pytest.mark.parametrize(
    ("column", "notes", "expected"),
    [("", "pt112 cu113; no GradScaler", "1.12"), ("", "pt110 cu113", "1.10"), ("2.9", "pt112", "2.9"), ("", "", None)],
)
def test_a_row_names_its_version_in_its_column_or_notes(column: str, notes: str, expected: str | None) -> None:
    cells = dict.fromkeys((*REQUIRED, *OPTIONAL), "")
    cells |= {"model": "resnet50", "gpu": "rtx-3090", "precision": "amp-fp16", "step_time_s": "1", "notes": notes}
    job = row_of(1, cells | {"torch": column}).job
    assert job is not None
    assert job.torch == expected


def test_before_2_11_torch_chose_flash_attention_2() -> None:
    """A published row and a job that says the same are priced alike."""
    assert [Job("m", torch=version).attention_kernel for version in (None, "2.10", "2.11")] == [
        "flash",
        "flash2",
        "flash",
    ]
    words = {"model": "llama3-8b", "gpu": "h100-80gb-sxm", "gpus": "8", "precision": "bf16-master", "batch_size": "1"}
    cells = dict.fromkeys((*REQUIRED, *OPTIONAL), "") | words | {"framework": "torchtitan", "step_time_s": "1"}
    row = row_of(1, cells | {"parallelism": "fsdp", "attention": "flash", "optimizer": "adamw"})
    assert "torch 2.6" in row.assumed
    job = Job("llama3-8b", gpu="h100-80gb-sxm", gpus=8, precision="bf16-master", batch_size=1, layout="fsdp",
              framework="torchtitan", torch="2.6", optimizer="adamw", optimizer_impl="fused")  # fmt: skip
    assert row.job == job
    seconds = [
        predict(job.replace(**other)).step.p50
        for other in ({"torch": "2.10"}, {"torch": None, "attention": "flash2"}, {"torch": None})
    ]
    assert seconds[0] == seconds[1] > seconds[2]


@pytest.mark.parametrize(
    ("torch", "precision", "model", "fused"),
    [
        ("2.4", "tf32", "llama3.2-1b", True), ("2.5", "tf32", "llama3.2-1b", False),
        ("2.13", "fp32", "llama3.2-1b", False), ("2.14", "tf32", "llama3.2-1b", True),
        (None, "fp32", "llama3.2-1b", True), ("2.11", "bf16", "llama3.2-1b", True),
        ("2.11", "amp-bf16", "llama3.2-1b", True), ("2.11", "tf32", "gpt2", True),
    ],
)  # fmt: skip
def test_single_precision_with_fewer_heads_of_keys_is_unfused_in_some_versions(
    torch: str | None, precision: str, model: str, fused: bool
) -> None:
    """Shipped models and others alike; 32 heads of queries and 8 of keys against 12 of both."""
    for config in ({}, {"layers": 2}):
        job = Job(model, gpu="h100-80gb-sxm", precision=precision, batch_size=1, torch=torch, model_config=config)
        names = {kind.name for kind in training_step(job).graph.kinds}
        assert any(name.startswith("pt.attention") for name in names) == fused
        assert any("softmax" in name and "log" not in name for name in names) != fused


def test_a_sequence_is_not_divided_where_attention_is_unfused() -> None:
    job = Job("llama3.2-1b", gpus=2, precision="tf32", layout="cp=2", torch="2.11", gpu="h100-80gb-sxm")
    with pytest.raises(JobError, match=r"torch 2\.11 has none in tf32 .* set torch to 2\.14"):
        training_step(job)
    training_step(job.replace(torch="2.14"))


def test_a_measured_step_with_written_out_scores() -> None:
    """Llama 3 in TF32 on an H100 under PyTorch 2.11 took 44.6 ms and 12.6 GB (`data/measured/h100`)."""
    job = Job("llama3-8b", model_config={"layers": 1, "vocab": 1024}, input={"seq_len": 4096}, batch_size=1,
              gpu="h100-80gb-sxm", precision="tf32", optimizer="adamw", torch="2.11")  # fmt: skip
    estimate = predict(job)
    assert estimate.step.p10 < 0.0446 < estimate.step.p90
    assert estimate.memory.allocated_bytes == pytest.approx(12.6e9, rel=0.2)


def test_gradients_that_were_measured_in_no_such_torch_are_told() -> None:
    """Every second block of this RepVGG has 4 groups, whose gradients run on vector units."""
    pytest.importorskip("timm")
    job = Job(
        "timm:repvgg_b1g4", gpu="rtx-3090", precision="amp-fp16", batch_size=64, memory_format="nhwc", torch="2.3"
    )

    def told(**other: str | None) -> list[str]:
        return [note for note in predict(job.replace(**other)).assumptions if "grouped" in note]

    (note,) = told()
    assert "gradients of grouped convolutions on vector units, as in PyTorch 1.12" in note
    assert told(torch="1.13") == [note]
    assert told(torch="1.12") == told(torch="1.9") == told(memory_format="nchw") == told(precision="fp32") == []
    assert told(torch="2.4") == told(torch=None) == []
    now, then = predict(job).step, predict(job.replace(torch="1.12")).step
    assert now.p50 == then.p50
    assert now.p90 / now.p10 > 1.2 * then.p90 / then.p10, "what was not measured widens the interval"
    assert predict(job).step.p50 > 1.1 * predict(job.replace(memory_format="nchw")).step.p50


@pytest.mark.parametrize(("version", "expected"), [("1.12", "torch1"), ("2.0", None), ("2.11", None), ("", "torch1")])
def test_optimizers_loop_over_tensors_in_rows_of_old_versions_alone(version: str, expected: str | None) -> None:
    """Rows without a version are of 2020 to 2022; from 2.0 on torch updates many tensors at once, as jobs assume."""
    cells = dict.fromkeys((*REQUIRED, *OPTIONAL), "")
    cells |= {"model": "gpt2", "gpu": "h100", "precision": "amp-bf16", "step_time_s": "1", "optimizer": "adamw"}
    row = row_of(1, cells | {"framework": "pytorch", "torch": version})
    assert row.job is not None
    assert row.job.optimizer_impl == expected


def matrices(name: str, *shape: int) -> OpSignature:
    """An operator on square matrices in single precision."""
    spec = TensorSpec(shape, "float32")
    return OpSignature(f"aten.{name}", (spec,), (spec,))


@pytest.mark.parametrize(
    ("kind", "routines"),
    [
        (matrices("_linalg_slogdet", 8, 8), 1),
        (matrices("linalg_inv_ex", 8, 8), 2),
        (matrices("linalg_lu_solve", 8, 8), 2),  # the gradient of a determinant was an inverse
        (matrices("_linalg_slogdet", 1, 8, 8), 1),
        (matrices("_linalg_slogdet", 4, 8, 8), 0),  # routines of many matrices run on the device
    ],
)
def test_decompositions_of_one_matrix_by_magma(kind: OpSignature, routines: int) -> None:
    gpu, model = default_catalog().gpu("a100-80gb-sxm"), KernelModel(scales={}, factors=NO_FACTORS)

    def seconds(magma: bool) -> float:
        return float(model.seconds(works(kind, WorkOptions(magma=magma)) or [], gpu).seconds.sum())

    assert seconds(magma=False) < 2e-4
    assert seconds(magma=True) == pytest.approx(routines * 3e-3 if routines else seconds(magma=False), rel=0.01)


def test_lu_takes_about_what_was_measured() -> None:
    """The determinant of side 4,096 on a V100: 39 to 42 ms (jax, issue 9694)."""
    kind, gpu = matrices("_linalg_slogdet", 4096, 4096), default_catalog().gpu("v100-16gb-sxm")
    seconds = KernelModel(scales={}, factors=NO_FACTORS).seconds(works(kind, WorkOptions()) or [], gpu).seconds
    assert float(seconds.sum()) == pytest.approx(40e-3, rel=0.3)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, False),
        ({"torch": "1.9"}, True),
        ({"torch": "1.10"}, False),
        ({"optimizer_impl": "torch1"}, True),
        ({"optimizer_impl": "torch1", "torch": "1.13"}, False),
    ],
)
def test_which_versions_decompose_by_magma(fields: dict[str, str], expected: bool) -> None:
    assert Job(model="waveglow", **fields).decomposes_by_magma is expected


def depthwise(math: str, channels: int, side: int, taps: int, *, stride: int = 1, last: bool = False) -> OpSignature:
    """A depthwise convolution of 8 images."""
    shape, out = (8, channels, side, side), (8, channels, side // stride, side // stride)
    specs = TensorSpec(shape, math), TensorSpec((channels, 1, taps, taps), math)
    attrs = {"stride": (stride, stride), "dilation": (1, 1), "groups": channels, "channels_last": last}
    return OpSignature("aten.convolution", specs, (TensorSpec(out, math),), tuple(attrs.items()))


@pytest.mark.parametrize(
    ("kind", "torch", "layout"),
    [
        (depthwise("float16", 64, 56, 3), (1, 10), "nchw"),
        (depthwise("float16", 64, 56, 5), (1, 10), "native"),
        (depthwise("float16", 64, 56, 5), (1, 11), "nchw"),
        (depthwise("float16", 64, 56, 7), (2, 11), "native"),
        (depthwise("float16", 16, 56, 5), (2, 11), "native"),  # few channels
        (depthwise("float16", 64, 6, 3), (2, 11), "native"),  # small images
        (depthwise("float16", 256, 14, 3, stride=2), (2, 11), "native"),
        (depthwise("float16", 256, 28, 3, stride=2), (2, 11), "nchw"),
        (depthwise("float16", 512, 14, 3, stride=2), (2, 11), "nchw"),
        (depthwise("bfloat16", 64, 56, 3), (2, 11), "bf16.native"),
        (depthwise("bfloat16", 64, 56, 7), (2, 11), "native"),
        (depthwise("float32", 64, 56, 3), (2, 11), "native"),
        (depthwise("float16", 64, 56, 7, last=True), (1, 10), "nhwc"),
        (depthwise("bfloat16", 64, 56, 3, last=True), (2, 11), "nhwc"),
    ],
)
def test_which_depthwise_convolutions_cudnn_runs(kind: OpSignature, torch: tuple[int, ...], layout: str) -> None:
    """As `use_cudnn_depthwise` of aten/src/ATen/native/Convolution.cpp decides."""
    (work,) = works(kind, WorkOptions(torch=torch)) or []
    assert (work.family, work.variant) == (CONV_DEPTHWISE, f"fwd.{layout}")


@pytest.mark.parametrize("precision", ["amp-fp16", "amp-bf16"])
def test_stored_and_traced_networks_have_the_same_depthwise_kernels(precision: str) -> None:
    """Of a stored network, works in float16 are made of those in bfloat16."""
    job = Job("efficientnet-b0", gpu="rtx-3090", precision=precision, batch_size=8)
    kinds = training_step(job).graph.kinds
    stored = kind_works(OpSignatures(kinds), WorkOptions())
    traced = kind_works(OpSignatures(tuple(kinds)), WorkOptions())
    layouts = [
        Counter(
            works.table.classes[of][1] for of in works.table.class_of if works.table.classes[of][0] == CONV_DEPTHWISE
        )
        for works in (stored, traced)
    ]
    assert layouts[0] == layouts[1]
    assert ("fwd.nchw" in layouts[0]) is (precision == "amp-fp16")


def test_a_dense_convolution_of_one_channel_is_not_depthwise() -> None:
    x, weight, y = (
        TensorSpec(shape, "float16") for shape in ((2, 1, 64, 64, 64), (32, 1, 3, 3, 3), (2, 32, 64, 64, 64))
    )
    attrs = (("stride", (1, 1, 1)), ("dilation", (1, 1, 1)), ("groups", 1))
    work, *_ = works(OpSignature("aten.convolution", (x, weight), (y,), attrs), WorkOptions()) or []
    assert work.variant == "fwd.nchw"


@pytest.mark.parametrize(("rows", "waits_s"), [(511, 0.0), (512, 512 * 28e-9), (100_000, 2.8e-3)])
def test_backward_passes_of_layer_norm_before_1_11_wait_for_every_row(rows: int, waits_s: float) -> None:
    x, weight = TensorSpec((rows, 192), "float16"), TensorSpec((192,), "float32")
    kind = OpSignature("aten.native_layer_norm_backward", (x, x, weight), (x, weight, weight))
    (old,), (new,) = (works(kind, WorkOptions(torch=torch)) or [] for torch in ((1, 10), (1, 11)))
    assert old.latency_s - new.latency_s == pytest.approx(waits_s)


def test_waveglow_of_old_versions_pays_for_its_determinants() -> None:
    """12 flows, each with a determinant and the inverse of its gradient: 36 routines."""
    old, new = (predict(Job(model="waveglow", torch=version, anchors="none")).step.p50 for version in ("1.9", "1.10"))
    assert old - new == pytest.approx(36 * 3e-3, rel=0.05)
