"""The ten precision names, their other spellings, and schedules."""

from __future__ import annotations

import pytest

from precision_time.errors import JobError
from precision_time.job.precision import ALIASES, PRECISIONS, parse_precision
from precision_time.job.schedule import PrecisionFrom, parse_schedule

SPELLINGS = {
    "fp64": ("fp64", "double", "64-true", "float64", 64),
    "fp32": ("fp32", "single", "float32", "32-true", "32", 32),
    "torch-fp32": ("torch-fp32", "torch_fp32", "default", "torch-default"),
    "tf32": ("tf32", "TF32"),
    "amp-fp16": ("amp-fp16", "amp_fp16", "mixed_fp16_fp32", "mixed", "16-mixed", "Mixed", " 16-mixed "),
    "amp-bf16": ("amp-bf16", "mixed_bf16_fp32", "bf16-mixed", "BF16_MIXED"),
    "fp16-master": ("fp16-master", "fp16_master"),
    "bf16-master": ("bf16-master",),
    "fp16": ("fp16", "float16", "16-true"),
    "bf16": ("bf16", "bfloat16", "bf16-true"),
    "fp8": ("fp8", "fp8-tensorwise", "fp8-rowwise", "fp8-block", "FP8_block"),
}


def test_the_names() -> None:
    assert list(PRECISIONS) == list(SPELLINGS)


@pytest.mark.parametrize(("name", "spelling"), [(n, s) for n, all_ in SPELLINGS.items() for s in all_])
def test_every_spelling(name: str, spelling: str | int) -> None:
    assert parse_precision(spelling).name == name


def test_every_alias_is_tested_and_leads_to_a_name() -> None:
    tested = {str(s).lower().replace("_", "-").strip() for all_ in SPELLINGS.values() for s in all_}
    assert set(ALIASES) - tested == {"64"} - tested
    assert set(ALIASES.values()) <= set(PRECISIONS)


def test_a_label_reads_back() -> None:
    for spelling in (*PRECISIONS, *ALIASES, "fp8-rowwise", "fp8-block"):
        precision = parse_precision(spelling)
        assert parse_precision(precision.label) == precision


@pytest.mark.parametrize("bad", ["fp17", "", "fp32 or so", None, True, 3.5, ["fp32"], "ünïcode", "fp32;"])
def test_unknown_precision_names_the_nearest(bad: object) -> None:
    with pytest.raises(JobError, match=r"^precision .* is unknown; nearest: .*; set precision to one of fp64"):
        parse_precision(bad)


def test_sixteen_alone_is_ambiguous() -> None:
    with pytest.raises(JobError, match=r"16-mixed .* or 16-true"):
        parse_precision(16)


def test_gradients_under_autocast_stay_fp32_so_traffic_does_not_halve() -> None:
    for precision in PRECISIONS.values():
        if precision.autocast:
            assert (precision.parameter_dtype, precision.gradient_dtype) == ("float32", "float32")
            assert precision.compute_dtype != "float32"
        else:
            assert precision.gradient_dtype == precision.parameter_dtype
    assert [p.name for p in PRECISIONS.values() if p.loss_scaling] == ["amp-fp16", "fp16-master"]
    assert [p.name for p in PRECISIONS.values() if p.tf32] == ["tf32"]
    for name in ("fp16", "bf16"):
        assert PRECISIONS[name].state_dtype == PRECISIONS[name].parameter_dtype
    for name in ("fp16-master", "bf16-master", "fp8"):
        assert PRECISIONS[name].master_weights
        assert PRECISIONS[name].state_dtype == "float32"


def test_fp8_is_bf16_outside_matrix_multiplies() -> None:
    fp8 = parse_precision("fp8-rowwise")
    assert (fp8.compute_dtype, fp8.fp8_scaling) == ("bfloat16", "rowwise")
    assert fp8.label == "fp8-rowwise"
    assert parse_precision("fp8-tensorwise").label == "fp8"


def test_schedule() -> None:
    entries = [{"from_step": 0, "precision": "32"}, {"from-step": 1000, "precision": "bf16-mixed"}]
    assert parse_schedule(entries) == (PrecisionFrom(0, "fp32"), PrecisionFrom(1000, "amp-bf16"))


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ([], "empty schedule"),
        ("fp32", "not a schedule"),
        ({"from_step": 0}, "not a schedule"),
        ([3], "each entry"),
        ([{"from_step": 0}], "without precision"),
        ([{"precision": "fp32"}], "without from_step"),
        ([{"from_step": 5, "precision": "fp32"}], "start with from_step: 0"),
        ([{"from_step": 0, "precision": "fp32"}, {"from_step": 0, "precision": "bf16"}], "in order"),
        ([{"from_step": -1, "precision": "fp32"}], "from_step must be a whole number of steps from 0 to 1e12"),
        ([{"from_step": 0, "precison": "fp32"}], "nearest: precision"),
        ([{"from_step": 0, "precision": "fp31"}], "nearest: fp32"),
    ],
)
def test_bad_schedules(bad: object, says: str) -> None:
    with pytest.raises(JobError, match=says) as caught:
        parse_schedule(bad)
    assert "\n" not in str(caught.value)
