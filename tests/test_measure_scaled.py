"""fp8 in the measuring suite: each point stands for the operator that a captured step has, and runs for real."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from precision_time.capture.captured_model import capture_model
from precision_time.capture.graph import OpSignature, Phase
from precision_time.capture.tracer import Tracer
from precision_time.job import Job
from precision_time.journal import Journal
from precision_time.measure import measurement, scaled, suite
from precision_time.measure.measurement import data_card
from precision_time.measure.point import largest_work
from precision_time.measure.products import Limits
from precision_time.measure.scaled import cast_benches, scaled_benches, scaled_cast, scaled_mm
from precision_time.measure.session import points_of, run_plan
from precision_time.measure.tensors import random
from precision_time.timing.operators import WorkOptions, operator_key, works

CPU = torch.device("cpu")
PLAIN = WorkOptions()
TOKENS, INPUTS, OUTPUTS = 64, 256, 512
OWN = f"""
import torch
from torch import nn

def net():
    model = nn.Sequential(nn.Linear({INPUTS}, {OUTPUTS}), nn.GELU(), nn.Linear({OUTPUTS}, {INPUTS}))
    x = torch.zeros({TOKENS}, {INPUTS})
    return {{"model": model, "inputs": x, "loss": lambda out: out.square().mean(), "optimizer": "adamw"}}
"""


@pytest.fixture(params=["tensorwise", "rowwise"])
def scaling(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def captured(folder: Path, scaling: str) -> Iterator[tuple[Phase, OpSignature]]:
    path = folder / "own.py"
    path.write_text(OWN, encoding="utf-8")
    graph = capture_model(Job(f"{path}:net", precision=f"fp8-{scaling}")).graph
    for call in graph.calls:
        yield call.phase, graph.kinds[call.kind]


def test_a_point_is_the_product_of_a_captured_step(
    tmp_path: Path, scaling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three passes of two layers, without the gradient of the first layer's input: the very operators, equal works."""
    shapes = [(TOKENS, INPUTS, OUTPUTS), (TOKENS, OUTPUTS, INPUTS)]
    monkeypatch.setattr(scaled, "layer_shapes", lambda count, limits: shapes[:count])
    found = {bench.kind("cuda"): bench for bench in scaled_benches(2, Limits(1e9, 1e9), scaling)}
    step = [kind for _, kind in captured(tmp_path, scaling) if kind.name == "pt.scaled_mm"]
    assert len(step) == 5
    assert set(step) < set(found)
    for kind in step:
        bench = found[kind]
        (work,) = works(kind, PLAIN) or []
        assert bench.work("cuda") == work
        assert bench.work("cpu") == work
        assert (work.math, work.dtype_class, operator_key(kind)) == ("fp8", "fp8", bench.operator)
        assert work.variant == ("" if scaling == "tensorwise" else scaling)


def test_the_written_product_is_the_one_that_runs(scaling: str) -> None:
    """What the tracer makes of the real call has the same work, whatever the scales, and the same result."""
    with torch.device("meta"), Tracer() as tracer:
        scaled_mm(64, 32, 128, scaling, True)(torch.device("meta"))()
    (traced,) = [kind for kind in tracer.kinds if kind.name == "aten._scaled_mm"]
    assert [s.dtype for s in traced.inputs[:2]] == ["float8_e5m2", "float8_e4m3fn"]
    work = largest_work(traced, PLAIN)
    assert (work.shape, work.flops, work.math) == ((1, 64, 32, 128), 2.0 * 64 * 32 * 128, "fp8")
    assert (work.bytes_read, work.bytes_written) == (128 * (64 + 32), 2 * 64 * 32)
    assert scaled_mm(64, 32, 128, scaling, True)(CPU)().shape == (64, 32)


def test_a_point_is_the_cast_of_a_captured_step(tmp_path: Path, scaling: str) -> None:
    step = [kind for _, kind in captured(tmp_path, scaling) if kind.name == "pt.quantize"]
    (bench,) = cast_benches([TOKENS * 1024], scaling)
    assert bench.kind("cuda").attrs == step[0].attrs
    assert bench.kind("cuda").inputs[0].dtype == step[0].inputs[0].dtype
    (ours,) = works(bench.kind("cuda"), PLAIN) or []
    (theirs,) = works(step[0], PLAIN) or []
    assert (ours.key, ours.launches, ours.bytes / (TOKENS * 1024)) == (
        theirs.key, theirs.launches, theirs.bytes / step[0].inputs[0].numel
    )  # fmt: skip
    assert {b.kind("cuda").outputs[0].dtype for b in cast_benches([1 << 12, 1 << 14], scaling)} == {
        "float8_e4m3fn", "float8_e5m2"
    }  # fmt: skip


@pytest.mark.parametrize("gradient", [False, True])
def test_a_cast_uses_the_whole_range(scaling: str, gradient: bool) -> None:
    low, scale = scaled_cast(32, 64, scaling, gradient)(CPU)()
    largest = 57344.0 if gradient else 448.0
    assert low.float().abs().max() == largest
    assert scale.shape == ((32, 1) if scaling == "rowwise" else ())
    error = (low.float() / scale - random(CPU, torch.bfloat16, 32, 64).float()).abs()
    assert float(error.mean()) < (0.07 if gradient else 0.035)  # 2 and 3 bits of mantissa


def test_sizes_are_those_that_capture_puts_into_fp8() -> None:
    benches = scaled_benches(24, Limits(1e9, 1e8), "tensorwise")
    sizes = {size for bench in benches for spec in bench.kind("cpu").inputs for size in spec.shape}
    assert len(benches) > 40
    assert all(size % 16 == 0 for size in sizes)


@pytest.mark.slow
def test_the_suite_measures_fp8_where_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(suite.SCALES, "cpu", suite.Scale(0.001, 1e5, 2, 1, 1, (1 << 11,)))
    journal = Journal()
    assert run_plan(suite.family_tasks(CPU, [], fp8=True), journal, CPU, 1e6) == []
    names = {point.operator for point in points_of(journal.records)}
    assert {"pt.scaled_mm", "pt.quantize"} <= names
    before = {task.label for task in suite.family_tasks(CPU, [])}
    assert not any("scaled_mm" in label or "quantize" in label for label in before)


def test_a_device_without_fp8_is_named_in_the_data_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, not for every size; and the data card has it."""

    def broken(*_: object, **__: object) -> torch.Tensor:
        raise RuntimeError("no such unit\nand a long tail")

    monkeypatch.setattr(torch, "_scaled_mm", broken)
    plan = measurement.plan_of(CPU, ["operators"])
    fp8 = [task for task in plan if task.label.startswith(("fp8", "scaled_mm", "quantize"))]
    assert [task.label for task in fp8] == ["fp8 tensorwise", "fp8 rowwise"]
    journal = Journal()
    run_plan(fp8, journal, CPU, 1e6)
    card = data_card({}, journal.records, [])
    assert "Left out: no fp8 with tensorwise scaling: no such unit." in card
    assert "long tail" not in card


@pytest.mark.parametrize(("capability", "said"), [((8, 0), "8.9, this GPU has 8.0"), ((7, 5), "8.9, this GPU has 7.5")])
def test_older_gpus_are_not_even_tried(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], said: str) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert said in str(scaled.refused(torch.device("cuda"), "tensorwise"))
