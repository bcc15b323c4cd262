"""The page that puts convolutions of profiled steps beside their predictions."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.accuracy.own_convolutions import Judged, by_kind, judge, measured, page, shapes_of, worst
from precision_time.measurements.repository import required_data_folder

JOB = ("resnet50", "amp-fp16", "128", "nhwc")
FIRST = Judged(JOB, False, (128, 3, 224, 224), (64, 3, 7, 7), 3e-4, 1.5e-4)
LINES = """model,precision,batch_size,memory_format,operator,shapes,calls,us
resnet50,amp-fp16,128,nhwc,aten.cudnn_convolution,128x3x224x224;64x3x7x7,1,300
resnet50,amp-fp16,128,nhwc,aten.convolution_backward,128x64x112x112;128x3x224x224;64x3x7x7,1,310
resnet50,amp-fp16,128,nhwc,aten.convolution_backward,128x64x112x112;128x3x224x224;64x3x7x7,1,290
resnet50,amp-fp16,128,nhwc,aten.add_,128x256x56x56;128x256x56x56,6,1190.52
"""


def test_calls_of_one_shape_are_added_up_and_other_operators_left_out(tmp_path: Path) -> None:
    path = tmp_path / "profiled.csv"
    path.write_text(LINES)
    shapes = ((128, 3, 224, 224), (64, 3, 7, 7))
    assert measured(path) == {JOB: {(False, shapes): pytest.approx(3e-4), (True, shapes): pytest.approx(6e-4)}}


def test_a_gradient_comes_before_input_and_weight_and_a_bias_after() -> None:
    assert shapes_of("2x8x4x4;2x3x4x4;8x3x1x1", backward=True) == ((2, 3, 4, 4), (8, 3, 1, 1))
    assert shapes_of("2x3x4x4;8x3x1x1;8", backward=False) == ((2, 3, 4, 4), (8, 3, 1, 1))


def test_a_transposed_convolution_is_none_of_them() -> None:
    """Its weight has 64 inputs first, and its gradient the 32 outputs that come second."""
    assert shapes_of("2x32x16x16;2x64x8x8;64x32x2x2", backward=True) is None


def test_the_page_has_sums_by_kind_and_the_largest_errors_first() -> None:
    """0.3 + 0.3 ms measured and 0.15 + 0.45 predicted; 0.4 ms off come before 0.15, and 0.05 ms are too short."""
    second = Judged(JOB, False, (128, 3, 112, 112), (32, 3, 3, 3), 3e-4, 4.5e-4)
    wide = Judged(JOB, True, (128, 64, 56, 56), (256, 64, 1, 1), 4e-4, 8e-4)
    short = Judged(JOB, True, (128, 64, 7, 7), (64, 64, 1, 1), 5e-5, 9e-3)
    every = [FIRST, second, wide, short]
    assert list(by_kind(every).rows[0]) == ["fewer than 8 channels", "NHWC", "forward", "2", "0.6", "0.6", "+0%"]
    assert [row[-1] for row in worst(every, count=1).rows] == ["+100%"]
    assert len(worst(every).rows) == 3
    assert "| resnet50, amp-fp16 | nhwc | backward | 128x64x56x56 | 256x64x1x1 | 0.4 | 0.8 | +100% |" in page(every)


@pytest.mark.slow
def test_the_page_is_of_the_shipped_parameters() -> None:
    """Errors of the kinds of convolutions as the page has them, within a point."""
    written = (Path(__file__).parents[1] / "benchmarks" / "results" / "h100-convolutions.md").read_text().splitlines()
    judged = by_kind(judge(required_data_folder())).rows
    assert len(judged) == 20
    for *names, shapes, _, _, error in judged:
        (line,) = (line for line in written if line.startswith(f"| {' | '.join(names)} | {shapes} |"))
        stated = line.strip(" |").rpartition(" ")[2]
        assert float(stated.rstrip("%")) == pytest.approx(float(error.rstrip("%")), abs=1.0), names
