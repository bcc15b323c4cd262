"""Tables of data/measured from what the rig for a GPU wrote."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.accuracy.own_steps import Judged, page
from benchmarks.rigs.gpu_day import STAGES, stages
from benchmarks.rigs.gpu_profile import operator_rows
from benchmarks.rigs.gpu_tables import PART_OF, kind_of, main, part_of, seconds_by_part, trust
from precision_time.fit.step_parts import OF_PART
from precision_time.measure.usage import usage
from precision_time.measurements.repository import required_data_folder
from precision_time.measurements.table import read_table

MEASURED = required_data_folder() / "measured"


def test_the_tables_are_those_of_the_folder(tmp_path: Path) -> None:
    assert main([str(MEASURED / "h100"), "--output", str(tmp_path)]) == 0
    for name in ("h100.csv", "h100_parts.csv"):
        assert (tmp_path / name).read_bytes() == (MEASURED / name).read_bytes()


@pytest.mark.parametrize(
    ("x", "weight", "kind"),
    [
        ((128, 3, 224, 224), (64, 3, 7, 7), "few"),
        ((2, 1, 128, 128, 128), (32, 1, 3, 3, 3), "few"),
        ((128, 4, 1, 1), (96, 4, 1, 1), "one_tap"),
        ((128, 64, 56, 56), (256, 64, 1, 1), "one_tap"),
        ((128, 8, 56, 56), (8, 8, 3, 3), "larger"),
        ((2, 32, 64, 64, 64), (64, 32, 3, 3, 3), "larger"),
        ((64, 1, 8192), (32, 1, 7), "larger"),
        ((64, 128, 56, 56), (128, 4, 3, 3), "grouped"),
        ((64, 128, 56, 56), (128, 4, 1, 1), "grouped"),
        ((64, 96, 56, 56), (96, 1, 7, 7), "depthwise"),
    ],
)
def test_a_convolution_is_of_one_kind(x: tuple[int, ...], weight: tuple[int, ...], kind: str) -> None:
    assert kind_of(x, weight, half=True) == kind
    assert kind_of(x, weight, half=False) == ("larger" if kind == "few" else kind)


def profiled(operator: str, shapes: str, us: str = "100") -> dict[str, str]:
    job = {"model": "m", "precision": "amp-fp16", "batch_size": "8", "memory_format": "nhwc"}
    return job | {"operator": operator, "shapes": shapes, "us": us}


def test_a_transposed_convolution_counts_with_gradients() -> None:
    """Of 64 inputs, which come first in its weight, and 32 outputs: no convolution of two groups."""
    assert part_of(profiled("aten.cudnn_convolution_transpose", "8x64x8x8;64x32x2x2")) == "convolution_larger_backward"
    gradient = profiled("aten.convolution_backward", "8x32x16x16;8x64x8x8;64x32x2x2")
    assert part_of(gradient) == "convolution_larger_backward"


def test_seconds_are_added_up_by_part() -> None:
    lines = [
        profiled("aten.cudnn_convolution", "8x64x8x8;64x64x1x1"),
        profiled("aten.cudnn_convolution", "8x64x8x8;32x64x1x1;32", "50"),
        profiled("aten.convolution_backward", "8x64x8x8;8x64x8x8;64x64x1x1;0", "300"),
        profiled("aten.add_", "8x64x8x8;8x64x8x8", "7"),
        profiled("aten.nonzero", "8x64", "1"),
    ]
    (parts,) = seconds_by_part(lines).values()
    assert parts == pytest.approx({
        "": 458e-6, "convolution_one_tap": 150e-6, "convolution_one_tap_backward": 300e-6, "pointwise": 7e-6,
    })  # fmt: skip


def test_every_part_has_works_of_its_own() -> None:
    """No work is of two parts, and every operator's part is one of those that are traced."""
    assert set(PART_OF.values()) <= set(OF_PART)
    families = sorted({family for works in OF_PART.values() for family in works.families})
    classes = [f"{family}|{each}.nhwc|fp16|half" for family in families for each in ("fwd", "dgrad", "wgrad", "bwd")]
    for taps in (1.0, 9.0):
        found = [works.among(np.array(classes), np.full(len(classes), taps)) for works in OF_PART.values()]
        assert np.sum(found, axis=0).max() == 1


def test_a_folder_without_steps_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), "--output", str(tmp_path)]) == 2
    assert "profiled.csv: No such file or directory; name a folder of gpu_day with steps" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_stages_of_the_rig_have_the_names_that_one_chooses_by() -> None:
    assert tuple(stage.name for stage in stages(torch.device("cpu"), True)) == STAGES


def test_every_step_is_a_job_that_evaluate_reads() -> None:
    table = read_table(MEASURED / "h100.csv")
    assert not table.warnings
    assert len({row.id for row in table.rows}) == len(table.rows) == 223
    for row in table.rows:
        assert row.job is not None, row.id
        assert (row.job.gpu, row.job.torch, row.job.optimizer_impl) == ("h100-80gb-sxm", "2.11", None)
        assert row.job.system == "h100-virtual-machine"


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


def test_a_cpu_has_no_usage_and_kernels_are_no_operators() -> None:
    assert usage(lambda: None, torch.device("cpu"), 0.1) == {}

    class Seen:
        self_device_time_total, count, input_shapes = 3.0, 2, ((2, 3), ())

        def __init__(self, key: str) -> None:
            self.key = key

    rows = operator_rows([Seen("aten::mm"), Seen("void at::native::kernel<4>(int)"), Seen("Memset")], "cuda")
    assert rows == [{"operator": "aten.mm", "shapes": "2x3", "calls": 2, "us": 3.0}]


def test_the_page_of_measured_steps_counts_them() -> None:
    """Two steps: one 10 % too fast and inside its interval, one that the host limits, which counts for memory alone."""
    rows = read_table(MEASURED / "h100.csv").rows
    trusted, other = next(r for r in rows if r.trust == "A"), next(r for r in rows if r.trust == "C")
    several = [Judged(trusted, -0.1, True, -0.02), Judged(other, 3.0, False, 0.04)]
    several += [Judged(row, -0.1, True, 0.0) for row in rows if row.trust == "B" and row.job]
    text = page(several)
    assert f"| all | {len(several) - 1} | 10.0% | 10.0% | -10.0% | 10.0% | 100% |" in text
    assert f"| all | {len(several)} | " in text
