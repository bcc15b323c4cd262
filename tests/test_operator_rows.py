"""Convolutions that were measured alone, as rows of the fit of kernels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from precision_time.errors import DataError
from precision_time.fit.operator_rows import LEAST_S, is_operator, measured_operators
from precision_time.fit.traced import read
from precision_time.fit.traced_rows import OPERATORS, is_forward, is_step, part_of
from precision_time.measurements.repository import required_data_folder

TABLES = required_data_folder()
COLUMNS = [
    "operator",
    "inputs",
    "outputs",
    "attrs",
    "tf32",
    "nhwc",
    "seconds",
    "spread",
    "samples",
    "slowest",
    "outlier",
]
STRIDE = '"stride":[1,1],"padding":[1,1],"dilation":[1,1],"transposed":false'
FORWARD = [
    "aten.convolution", "float16[32,128,28,28];float16[128,4,3,3]", "float16[32,128,28,28]",
    f'{{{STRIDE},"groups":32}}', False, True, 4e-5, 0.005, 25, 4.1e-5, False,
]  # fmt: skip


def written(folder: Path, *lines: list[object]) -> Path:
    """A folder of `precision-time measure` with these operators."""
    (folder / "README.md").write_text("# Measurements on h100-80gb-sxm\n")
    pd.DataFrame(lines, columns=COLUMNS).to_parquet(folder / "operators.parquet")
    return folder / "operators.parquet"


def changed(**cells: object) -> list[object]:
    return [cells.get(name, value) for name, value in zip(COLUMNS, FORWARD, strict=True)]


def test_a_convolution_in_half_precision_is_a_row_with_its_seconds(tmp_path: Path) -> None:
    (found,) = measured_operators(written(tmp_path, FORWARD))
    assert found.row.id == "operator-2 conv_grouped.fwd.nhwc"
    assert (found.row.gpu, found.row.measured_s, found.row.job) == ("h100-80gb-sxm", 4e-5, None)
    assert found.point.options.channels_last
    assert is_operator(found.row)
    assert not is_step(found.row)
    assert not is_forward(found.row)
    assert part_of(found.row) == "conv_grouped.fwd.nhwc"


@pytest.mark.parametrize(
    "cells",
    [
        {"outlier": True},
        {"seconds": LEAST_S / 2},
        {"inputs": "float32[32,128,28,28];float32[128,4,3,3]"},
        {"operator": "aten.cat", "inputs": "float16[8,8];float16[8,8]", "outputs": "float16[16,8]", "attrs": "{}"},
    ],
)
def test_outliers_short_ones_and_other_operators_are_left_out(tmp_path: Path, cells: dict[str, object]) -> None:
    kept = measured_operators(written(tmp_path, changed(**cells), FORWARD))
    assert [each.row.line for each in kept] == [3]


def test_a_folder_that_measure_did_not_write_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a folder that `precision-time measure` wrote"):
        measured_operators(tmp_path / "operators.parquet")


def test_the_traced_table_has_every_operator_once_with_one_work_of_its_class() -> None:
    """The works that tracing stored are those of the operators in their shapes, and belong to no step."""
    operators = {each.row.id: each for each in measured_operators(TABLES / "measured" / OPERATORS)}
    traced = read(TABLES, [OPERATORS])
    assert [row.id for row in traced.rows] == list(operators)
    assert len(operators) > 800
    assert np.all(traced.other_s == 0.0)
    for place, row in zip(traced.case.tolist(), traced.rows, strict=True):
        at = np.flatnonzero(traced.of_case == place)
        work = operators[row.id].point.work
        assert work.key in [traced.table.classes[traced.table.class_of[i]] for i in at]
        assert traced.table.flops[at].sum() == pytest.approx(work.flops, rel=1e-6)
