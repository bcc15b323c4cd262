"""Tables of data/measured from what the rig for a GPU wrote."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch

from benchmarks.rigs.gpu_profile import operator_rows
from benchmarks.rigs.gpu_tables import PART_OF, main, trust
from precision_time.capture.graph import OpSignature, TensorSpec
from precision_time.fit.traced import OF_PART, OWN, STEP_PARTS, is_step, part_of, part_rows, read, table_path
from precision_time.hardware.catalog import default_catalog
from precision_time.measure.usage import usage
from precision_time.measurements.repository import required_data_folder
from precision_time.measurements.table import read_table
from precision_time.timing.kernel_factors import NO_FACTORS
from precision_time.timing.kernels import KernelModel
from precision_time.timing.operators import alignment, works
from precision_time.timing.registry import WorkOptions

DATA = required_data_folder()


def test_the_tables_are_those_of_the_folder(tmp_path: Path) -> None:
    assert main([str(DATA / "measured" / "h100"), "--output", str(tmp_path)]) == 0
    for name in (OWN, STEP_PARTS):
        assert (tmp_path / name).read_bytes() == table_path(DATA, name).read_bytes()


@pytest.mark.parametrize(
    ("host_s", "power_w", "precision", "kernels_s", "grade"),
    [
        (0.05, "500", "amp-bf16", None, "A"),
        (0.085, "500", "amp-bf16", None, "B"),
        (0.095, "500", "amp-bf16", None, "C"),
        (0.075, "200", "amp-bf16", None, "C"),  # launched in three quarters of the step, and yet the GPU waits
        (0.02, "200", "amp-bf16", None, "A"),  # a slow kernel, not a slow host
        (0.099, "500", "amp-fp16", None, "C"),  # the scaler waits for the GPU, so who was slow is unknown
        (0.099, "500", "amp-fp16", 0.095, "A"),
        (0.099, "500", "amp-fp16", 0.05, "C"),
    ],
)
def test_what_the_host_limits_has_no_trust(
    host_s: float, power_w: str, precision: str, kernels_s: float | None, grade: str
) -> None:
    step = {"step_time_s": "0.1", "precision": precision}
    assert trust(step, {"host_s": str(host_s), "power_w": power_w}, kernels_s) == grade


def test_a_step_of_grade_c_is_in_no_fit_and_no_part_is_a_step() -> None:
    graded = {row.id: row.trust for row in read_table(table_path(DATA, OWN)).rows}
    found = read(DATA, [OWN, STEP_PARTS])
    assert {graded[row.id] for row in found.rows if is_step(row)} == {"A", "B"}
    parts = [row for row in found.rows if not is_step(row)]
    assert {part_of(row) for row in parts} == set(OF_PART) == set(PART_OF.values())
    assert len(parts) == len(part_rows(table_path(DATA, STEP_PARTS)))
    families = {key[0] for key in found.table.classes}
    assert "matmul" in families
    assert "attention" in families, "whole steps have all kernels"


def test_a_cpu_has_no_usage_and_kernels_are_no_operators() -> None:
    assert usage(lambda: None, torch.device("cpu"), 0.1) == {}

    class Seen:
        self_device_time_total, count, input_shapes = 3.0, 2, ((2, 3), ())

        def __init__(self, key: str) -> None:
            self.key = key

    rows = operator_rows([Seen("aten::mm"), Seen("void at::native::kernel<4>(int)"), Seen("Memset")], "cuda")
    assert rows == [{"operator": "aten.mm", "shapes": "2x3", "calls": 2, "us": 3.0}]


def norm(channels: int, side: int, dtype: str = "float16", backward: bool = False) -> OpSignature:
    x, c = TensorSpec((64, channels, side, side), dtype), TensorSpec((channels,), "float32")
    if backward:
        return OpSignature("aten.native_batch_norm_backward", (x, x, c, c, c, c, c), (x, c, c))
    return OpSignature("aten.native_batch_norm", (x, c, c, c, c), (x, c, c), (("training", True),))


def seconds(kind: OpSignature, nhwc: bool, gpu: str = "h100-80gb-sxm") -> float:
    kernels = works(kind, WorkOptions(False, nhwc)) or []
    model = KernelModel(scales={}, factors=NO_FACTORS)
    return float(model.seconds(kernels, default_catalog().gpu(gpu)).seconds.sum())


def test_a_batch_norm_of_few_channels_in_nchw_is_slow_whatever_the_bandwidth() -> None:
    """Equal bytes: 16 blocks take 512 / 16 times as long as their own share, on each GPU as long."""
    for backward in (False, True):
        few, many = norm(16, 128, backward=backward), norm(512, 16, backward=backward)
        (one,), (other,) = works(few, WorkOptions()) or [], works(many, WorkOptions()) or []
        assert one.bytes_read == 16 * 128**2 / (512 * 16**2) * other.bytes_read
        assert other.latency_s == 0
        passes = 5 if backward else 3
        assert one.latency_s == pytest.approx(passes * 64 * 128**2 * (1 - 16 / 512) / 4.5e9)
        waits = [seconds(few, False, gpu) - seconds(few, True, gpu) for gpu in ("h100-80gb-sxm", "b200-180gb-sxm")]
        assert waits == pytest.approx([one.latency_s] * 2, rel=0.05)
    (native,) = works(norm(16, 128, "bfloat16"), WorkOptions()) or []
    assert native.variant == "fwd.native.nchw"


def test_rows_that_are_no_multiples_of_16_bytes_are_told_apart() -> None:
    assert [alignment(n, 768, "bf16") for n in (50257, 730, 324, 50304)] == ["align1", "align2", "align4", ""]
    assert alignment(768, 50257, "fp16") == "align1"
    assert alignment(50257, 768, "fp32") == ""
    for name in ("measured/h100.csv", "measured/h100_parts.csv"):
        with (DATA / name).open(newline="") as file:
            assert {line["gpu"] for line in csv.DictReader(file)} == {"h100-80gb-sxm"}
