"""Rules that are recorded at some sizes and repeated at others give the same bits as rules run there."""

from __future__ import annotations

import math
from dataclasses import fields
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from precision_time.capture.captured_model import capture_model
from precision_time.capture.kinds import SizedKinds
from precision_time.job import Job
from precision_time.layout.segment import OpSignatures
from precision_time.timing.kind_works import KindWorks, kind_works
from precision_time.timing.operators import WorkOptions
from precision_time.timing.recording import Recording, Repeatable, log2

SIZE = st.integers(1, 5000)


def formula(n: Any, k: Any, sides: tuple[Any, ...]) -> list[Any]:
    """Every operation that rules use, and comparisons of sizes."""
    padded = -(-n // 16) * 16
    larger, smaller = max(n, k), min(n * 3, k)
    kept = [side for side in sides if side > 1]
    return [
        2.0 * n * k * math.prod(sides), padded - 1, 1 - n, 7 / k, n / k, larger, smaller, sum(kept), 3, 0.5,
        log2(n * k), n * k if k >= n else n - k, k + k, bool(n - k), -n,
    ]  # fmt: skip


def recorded(n: int, k: int, sides: tuple[int, ...]) -> Repeatable:
    recording = Recording()
    amounts = [recording.input(place, value) for place, value in enumerate((n, k, *sides))]
    return recording.finish(formula(amounts[0], amounts[1], tuple(amounts[2:])))


@given(st.tuples(SIZE, SIZE, SIZE, SIZE), st.tuples(SIZE, SIZE, SIZE, SIZE))
def test_a_repeated_recording_equals_the_rule_or_says_that_it_does_not_hold(
    there: tuple[int, int, int, int], here: tuple[int, int, int, int]
) -> None:
    repeatable = recorded(*there[:2], there[2:])
    again = repeatable.at(np.array(there, dtype=np.float64))
    assert again is not None
    assert again.tolist() == formula(*there[:2], there[2:])
    found = repeatable.at(np.array(here, dtype=np.float64))
    if found is not None:
        assert found.tolist() == formula(*here[:2], here[2:])


def test_sizes_on_the_same_side_of_every_comparison_need_no_other_recording() -> None:
    repeatable = recorded(10, 20, (3, 4))
    assert repeatable.at(np.array([400.0, 900.0, 2.0, 7.0])) is not None
    assert repeatable.at(np.array([20.0, 10.0, 3.0, 4.0])) is None  # k < n
    assert repeatable.at(np.array([10.0, 20.0, 1.0, 4.0])) is None  # a side is no longer above 1


def test_a_branch_that_is_not_taken_may_divide_by_nothing() -> None:
    recording = Recording()
    amount = recording.input(0, 6)
    repeatable = recording.finish([7 / (amount - 3) if amount > 3 else 0])
    assert repeatable.at(np.array([3.0])) is None


@pytest.mark.parametrize("taken", [int, float, hash, range], ids=lambda taken: taken.__name__)
def test_an_amount_taken_as_a_plain_number_holds_for_that_number_alone(taken: Any) -> None:
    recording = Recording()
    amount = recording.input(0, 6)
    assert taken(amount) == taken(6)
    repeatable = recording.finish([amount * 2])
    assert repeatable.at(np.array([6.0])) is not None
    assert repeatable.at(np.array([7.0])) is None


MODELS = ("resnet50", "efficientnet-b0", "t5-base", "transformer-xl-base", "ssd300-resnet34", "waveglow", "gpt2")


@cache
def operators(model: str, precision: str, memory_format: str = "nchw") -> SizedKinds:
    kinds = capture_model(Job(model, precision=precision, memory_format=memory_format)).graph.kinds
    assert isinstance(kinds, SizedKinds)
    return kinds


def flat(works: KindWorks) -> dict[str, Any]:
    """Every number and name of works."""
    found: dict[str, Any] = {}
    for item in fields(works):
        value = getattr(works, item.name)
        parts = (
            {f.name: getattr(value, f.name) for f in fields(value)}
            if item.name in ("table", "with_rivals")
            else {"": value}
        )
        for name, part in parts.items():
            found[f"{item.name}.{name}"] = part.tolist() if isinstance(part, np.ndarray) else part
    return found


PRECISIONS = ("fp32", "amp-bf16", "bf16", "amp-fp16", "fp16")
"""Of which the last two take the works of bfloat16, where their operators are the same."""


@pytest.mark.parametrize("model", MODELS)
@settings(max_examples=10)
@given(
    batch=st.integers(2, 700),
    precision=st.sampled_from(PRECISIONS),
    memory_format=st.sampled_from(("nchw", "nhwc")),
    tf32=st.booleans(),
)
@example(batch=9, precision="amp-fp16", memory_format="nhwc", tf32=False)
def test_works_of_a_stored_step_are_those_of_its_operators(
    model: str, batch: int, precision: str, memory_format: str, tf32: bool
) -> None:
    options = WorkOptions(tf32=tf32 and precision == "fp32", channels_last=memory_format == "nhwc")
    kind_works(OpSignatures(_sized(model, precision, memory_format, 9)), options)  # recorded
    sized = _sized(model, precision, memory_format, batch)
    assert flat(kind_works(OpSignatures(sized), options)) == flat(kind_works(OpSignatures(tuple(sized)), options))


def test_float16_shares_the_works_of_bfloat16() -> None:
    assert operators("resnet50", "fp16").form.in_bfloat16 is operators("resnet50", "bf16").form
    assert operators("resnet50", "bf16").form.in_bfloat16 is None
    assert operators("resnet50", "fp64").form.in_bfloat16 is None


def _sized(model: str, precision: str, memory_format: str, batch: int) -> SizedKinds:
    kinds = capture_model(Job(model, precision=precision, memory_format=memory_format, batch_size=batch)).graph.kinds
    assert isinstance(kinds, SizedKinds)
    return kinds
