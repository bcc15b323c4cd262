"""Rows of forward passes: which are taken, and as what jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from precision_time.fit.traced import read
from precision_time.fit.traced_rows import forward_rows, is_forward, measured_otherwise
from precision_time.measurements.repository import required_data_folder
from precision_time.measurements.table import read_table

HEAD = "model,family,image_size,batch_size,gpu,precision,memory_format,execution,torch,forward_s\n"


def test_forward_rows_are_eager_and_of_one_image_size(tmp_path: Path) -> None:
    path = tmp_path / "forward.csv"
    path.write_text(
        HEAD
        + "timm:resnet50,resnet,224,1024,rtx-3090,amp-fp16,nhwc,eager,1.13,0.3\n"
        + "timm:resnet50,resnet,224,1024,rtx-4090,amp-fp16,nchw,eager,2.91,0.2\n"
        + "timm:resnet50,resnet,288,512,rtx-4090,amp-fp16,nchw,eager,2.91,0.2\n"
        + "timm:resnet50,resnet,224,1024,rtx-4090,amp-fp16,nchw,compile,2.91,0.2\n"
    )
    old, new = forward_rows(path)
    assert old.id == "forward-2"
    assert is_forward(old)
    assert old.job is not None
    assert new.job is not None
    assert (old.measured_s, old.job.batch_size, dict(old.job.input)) == (0.3, 1024, {"image_size": 224})
    assert (old.job.memory_format, old.job.torch, old.job.attention) == ("nhwc", "1.13", "math")
    assert (new.job.gpu, new.job.torch, new.job.attention) == ("rtx-4090", "2.9", "flash")


def test_norms_of_timm_ran_in_half_precision_where_they_were_its_own(tmp_path: Path) -> None:
    path, rows = tmp_path / "forward.csv", []
    for model, precision, version in (
        ("davit_tiny", "amp-fp16", "2.4"), ("vit_base_patch16_224", "amp-fp16", "2.4"),
        ("vit_base_patch16_224", "amp-fp16", "2.91"), ("davit_tiny", "fp32", "2.4"),
    ):  # fmt: skip
        rows.append(f"timm:{model},x,224,64,rtx-4090,{precision},nchw,eager,{version},0.3\n")
    path.write_text(HEAD + "".join(rows))
    found = [row.job.model_config for row in forward_rows(path) if row.job is not None]
    assert found == [{"fast_norm": True}, {}, {"fast_norm": True}, {}]


def test_every_row_of_the_published_table_is_a_job() -> None:
    rows = forward_rows(required_data_folder() / "published" / "timm_forward.csv")
    assert [row.reason for row in rows if row.job is None] == []
    assert len({row.model for row in rows}) == pytest.approx(1028, abs=5)
    assert len({row.id for row in rows}) == len(rows)


@pytest.mark.parametrize(
    ("model", "version", "why"),
    [
        ("tresnet_m", "1.13", "InPlaceABN"), ("tresnet_m", "2.4", ""),
        ("repvgg_b1", "2.91", "branches fused"), ("repvgg_b1", "2.4", ""),
        ("ecaresnext50t_32x4d", "2.4", "26 layers"), ("ig_resnext101_32x48d", "1.13", "32x8d"),
        ("ig_resnext101_32x16d", "1.13", ""), ("resnet50", "2.91", ""),
    ],
)  # fmt: skip
def test_rows_of_networks_that_are_others_today_are_left_out(
    tmp_path: Path, model: str, version: str, why: str
) -> None:
    path = tmp_path / "forward.csv"
    path.write_text(HEAD + f"timm:{model},x,224,64,rtx-3090,amp-fp16,nhwc,eager,{version},0.3\n")
    (row,) = forward_rows(path)
    assert why in measured_otherwise(row)
    assert bool(why) == bool(measured_otherwise(row))


def test_a_job_measured_several_times_has_each_of_its_times() -> None:
    """45 identifiers of this table are those of two or three measurements of one job."""
    table = "torchvision_gpus.csv"
    known: dict[str, list[float]] = {}
    for row in read_table(required_data_folder() / "published" / table).rows:
        known.setdefault(row.id, []).append(row.measured_s)
    repeated = {name for name, seconds in known.items() if len(seconds) > 1}
    found: dict[str, list[float]] = {}
    for row in read(required_data_folder(), [table]).rows:
        found.setdefault(row.id, []).append(row.measured_s)
    assert len(repeated) == 45
    assert {name: found[name] for name in repeated} == {name: known[name] for name in repeated}


def test_no_traced_row_was_measured_otherwise() -> None:
    found = read(required_data_folder())
    assert [row.id for row in found.rows if measured_otherwise(row)] == []


def test_group_norms_of_forward_passes_are_in_half_precision() -> None:
    found = read(required_data_folder())
    group_norm = [number for number, key in enumerate(found.table.classes) if key[0] == "group_norm"]
    assert group_norm
    dtypes = set()
    for number in group_norm:
        normed = set(found.of_case[found.table.class_of == number].tolist())
        if any(is_forward(row) and case in normed for row, case in zip(found.rows, found.case, strict=True)):
            dtypes.add(found.table.classes[number][3])
    assert dtypes == {"half"}
