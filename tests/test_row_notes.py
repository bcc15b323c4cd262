"""What the notes of a row say of its job: scaling of fp8, dropped tokens, ranks that share states, hidden traffic."""

from __future__ import annotations

import pytest

from precision_time.measurements.row import Row, row_of
from precision_time.measurements.table import OPTIONAL, REQUIRED


def _row(layout: str, precision: str, notes: str) -> Row:
    cells = {
        **dict.fromkeys((*REQUIRED, *OPTIONAL), ""), "id": "r", "trust": "A", "model": "qwen3-30b-a3b",
        "gpu": "h100-80gb-sxm", "gpus": "16", "batch_size": "1", "precision": precision, "parallelism": layout,
        "framework": "torchtitan", "step_time_s": "1.0", "notes": notes,
    }  # fmt: skip
    return row_of(2, cells)


@pytest.mark.parametrize(
    ("layout", "notes", "precision", "setting"),
    [
        ("ep=8,dp=16,zero=1", "FP8-CS; router force-balanced, token-drop capacity", "fp8", "capacity_factor=1"),
        ("dp=16,zero=1", "Precision printed MXFP8; preset X", "fp8-block", ""),
        ("tp=8,dp=2,sp=1,zero=3,etp=1", "async TP; float8 rowwise", "fp8-rowwise", "overlap_tp=1"),
        ("dp=16,zero=1", "zero1 group 8 (-1: all data-parallel ranks)", "fp8", "shard=8"),
        ("dp=16,zero=1", "zero1 group 16 (-1: all data-parallel ranks)", "fp8", ""),
        ("dp=16,zero=1", "zero1 group -1 (-1: all data-parallel ranks)", "fp8", ""),
    ],
)  # fmt: skip
def test_a_job_is_what_the_notes_of_its_row_state(layout: str, notes: str, precision: str, setting: str) -> None:
    row, plain = _row(layout, "fp8", notes), _row(layout, "fp8", "")
    assert row.job is not None
    assert plain.job is not None
    assert row.job == plain.job.replace(
        precision=precision, layout=f"{layout},{setting}" if setting else plain.job.layout
    )
    assert (setting.replace("=", " ") in row.assumed) is bool(setting)
    assert (f"precision {precision}" in row.assumed) is (precision != "fp8")
    assert row.precision == "fp8", "the row keeps the name of its table"


def test_notes_on_fp8_change_no_other_precision() -> None:
    row = _row("dp=16,zero=1", "bf16", "compared with float8 rowwise")
    assert row.job is not None
    assert row.job.precision == _row("dp=16,zero=1", "bf16", "").job.precision  # type: ignore[union-attr]
