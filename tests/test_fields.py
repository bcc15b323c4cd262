"""Every field of `field_table` against every kind of bad value: the value it checks, or one sentence that names it."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from precision_time import predict_time
from precision_time.errors import CatalogError, PrecisionTimeError
from precision_time.field_table import TableField, field_table, with_table
from precision_time.hardware.catalog import default_catalog
from precision_time.hardware.fabric import Fabric
from precision_time.hardware.storage import Storage
from precision_time.zoo.catalog import ENTRIES

BAD: tuple[Any, ...] = (
    -1, -224, 0, 0.5, -0.0, 1e30, -1e30, 1e308, math.inf, -math.inf, math.nan, 5e-324, 1e-320, 10**30, 10**400,
    True, False, None, "", " ", "x", "-1", "1e400", "nan", "1e-320", "8k", "9" * 60, "x" * 10_000, "\x1b[31mred",
    "a\nb", "\x00", [], [1], [[1]], [None], ["x"], [-1, 2], (1,), {}, {"a": 1}, {1: 2}, b"x", 1j, Fraction(1, 3),
    object(),
)  # fmt: skip
"""Values that no field, or few fields, may have."""
FIELDS = field_table()


def sound(of: TableField, value: Any) -> bool:
    """Whether a checked number lies in the field's range."""
    if isinstance(value, tuple):
        return all(sound(of, each) for each in value)
    kind = int if of.type.kind == "whole" else float
    return type(value) is kind and (of.type.least <= value <= of.type.most or (of.type.zero and value == 0))


def outcome(of: TableField, value: Any) -> tuple[Any, str]:
    """The checked value, or None and the error."""
    try:
        return of.type(f"{of.section}: {of.name}", value), ""
    except PrecisionTimeError as error:
        return None, str(error)


@pytest.mark.parametrize("of", FIELDS, ids=lambda of: f"{of.section}.{of.name}")
def test_a_bad_value_is_refused_by_name_or_lies_in_the_range(of: TableField) -> None:
    for value in BAD:
        checked, refusal = outcome(of, value)
        assert not refusal or (of.name in refusal and refusal.isprintable()), (value, refusal)
        if of.type.kind in ("whole", "number") and checked is not None:
            assert sound(of, checked), value


@pytest.mark.parametrize(
    "of", [of for of in FIELDS if of.type.kind in ("whole", "number")], ids=lambda of: f"{of.section}.{of.name}"
)
def test_the_ends_of_a_range_are_in_it_and_what_is_beyond_is_not(of: TableField) -> None:
    for end in (of.type.least, of.type.most):
        assert sound(of, of.type(of.name, end))
        assert of.type(of.name, str(end)) == of.type(of.name, end)
    for beyond in (of.type.least - 1, of.type.most * 1.001 + 1, math.nan):
        if not (of.type.zero and beyond == 0):
            with pytest.raises(PrecisionTimeError, match=of.name):
                of.type(of.name, beyond)


def test_the_zoo_is_within_its_own_ranges() -> None:
    for of in FIELDS:
        for name in of.models:
            entry = ENTRIES[name]
            value = (entry.config if of.section == "model_config" else entry.input)[of.name]
            assert of.type(of.name, value) == value


def test_every_key_of_every_model_has_a_type() -> None:
    listed = {(of.section, of.name, name) for of in FIELDS for name in of.models}
    assert listed == {
        (section, key, name)
        for name, entry in ENTRIES.items()
        for section, keys in (("model_config", entry.config), ("input", entry.input))
        for key in keys
    }


def test_the_page_of_limits_lists_every_field() -> None:
    page = (Path(__file__).parent.parent / "docs" / "limits.md").read_text(encoding="utf-8")
    assert with_table(page) == page, "run `python -m precision_time.field_table docs/limits.md`"


@pytest.mark.parametrize("bad", [0, -1, math.nan, math.inf, 5e-324, "x", [], {}])
def test_nouns_built_in_python_are_checked_too(bad: Any) -> None:
    gpu = default_catalog().gpu("a100")
    node = default_catalog().node("dgx-a100")
    for change in ("memory_bytes", "memory_bytes_per_s"):
        with pytest.raises(CatalogError, match=change):
            replace(gpu, **{change: bad})
    with pytest.raises(CatalogError, match="peak of bf16"):
        replace(gpu, peaks={**gpu.peaks, "bf16": bad})
    with pytest.raises(CatalogError, match="gpus_per_node"):
        replace(node, gpus_per_node=bad)
    with pytest.raises(CatalogError, match="bytes_per_s"):
        Storage("mine", bad, 1e9, 0.0)
    with pytest.raises(CatalogError, match="bus_bytes_per_s"):
        Fabric("mine", "nvlink", {2: bad})


def test_a_slow_storage_and_a_fast_one_are_advised_without_overflow() -> None:
    for bandwidth in (1e-6, 1e6):
        data = {"bandwidth_gb_per_s": bandwidth, "bytes_per_sample": 1e12, "decode_ms": 1, "samples": 10**15}
        estimate = predict_time("resnet50", batch_size=2**24, data=data)
        assert math.isfinite(estimate.step.p90)
        assert str(estimate)
