"""The rig for a GPU that is there for a short time, in miniature on the CPU."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.rigs import gpu_day
from benchmarks.rigs.gpu_captured import calls_of_trace, compared
from benchmarks.rigs.gpu_kernels import few_channels, large_depthwise, odd_groups, squeezed
from precision_time.errors import MeasureError
from precision_time.fit.measured_points import read_folders
from precision_time.journal import Journal, Record, read
from precision_time.measure.measurement import write_tables
from precision_time.measure.suite import Task
from precision_time.measurements.table import read_table

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parent.parent
BARE = """
import sys
for name in ("torchvision", "timm", "transformers", "pandas", "scipy", "pyarrow", "hypothesis", "matplotlib", "shtab"):
    sys.modules[name] = None
from benchmarks.rigs.gpu_day import main
sys.exit(main(sys.argv[1:]))
"""
"""Runs the rig where only torch, numpy and PyYAML are installed."""


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the miniature wrote in a process of its own."""
    folder = tmp_path_factory.mktemp("gpu-day") / "h100"
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", BARE, "--output", str(folder), "--device", "cpu", "--minutes", "5", "--small"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    return folder


def test_a_bare_machine_is_enough(day: Path) -> None:
    files = {path.name for path in day.iterdir()}
    assert {"journal.jsonl", "operators.csv", "steps.csv", "captured.csv", "other.json", "README.md"} <= files
    card = (day / "README.md").read_text(encoding="utf-8")
    assert "python -m benchmarks.rigs.gpu_day" in card
    assert "captured.csv | an operator of a traced step" in card


def test_every_kind_of_kernel_is_measured(day: Path) -> None:
    labels = read(day / "journal.jsonl")[1]
    for word in (
        "conv fwd", "bfloat16 nhwc", "float64", "scaled_mm rowwise", "quantize", "grouped_mm", "native_layer_norm",
        "cat", "bmm", "step llama3-8b", "step resnet50", "captured gpt",
    ):  # fmt: skip
        assert any(word in label for label in labels), word


def test_steps_are_rows_that_evaluate_reads(day: Path) -> None:
    table = read_table(day / "steps.csv")
    assert not table.warnings
    assert len({row.id for row in table.rows}) == len(table.rows) == 4
    assert all(row.job is not None for row in table.rows)
    assert {row.job.memory_format for row in table.rows if row.job and row.model == "resnet50"} == {"nchw", "nhwc"}


def test_operators_are_points_that_a_fit_reads(day: Path, tmp_path: Path) -> None:
    """In a folder of a GPU of the catalog: the miniature of this test ran on a CPU."""
    head, records, _ = read(day / "journal.jsonl")
    folder = tmp_path / "as-gpu"
    folder.mkdir()
    journal = Journal(folder / "journal.jsonl", {**head, "gpu": "h100-80gb-sxm"})
    for label, record in records.items():
        journal.add(label, record)
    write_tables(folder, {**head, "gpu": "h100-80gb-sxm"}, records)
    assert read_folders([str(folder)])


def test_traced_operators_and_dtypes_are_those_that_ran(day: Path) -> None:
    with (day / "captured.csv").open(newline="", encoding="utf-8") as file:
        rows = {(row["operator"], row["dtype"]): row for row in csv.DictReader(file)}
    for operator, dtype in (("aten.addmm", "bfloat16"), ("aten.mm", "bfloat16"), ("aten.native_layer_norm", "float32"),
                            ("aten.gelu_backward", "bfloat16"), ("aten.nll_loss_forward", "float32")):  # fmt: skip
        row = rows[operator, dtype]
        assert int(row["traced_calls"]) == int(row["seen_calls"]) > 0


def test_the_same_command_continues(day: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = [label for label in read(day / "journal.jsonl")[1] if not label.startswith("probe")]
    asked: list[str] = []
    monkeypatch.setattr(gpu_day, "_guarded", lambda task, _journal: asked.append(task.label) or task)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    gpu_day.measure_day(day, 60.0, torch.device("cpu"), small=True)
    after = [label for label in read(day / "journal.jsonl")[1] if not label.startswith("probe")]
    assert after == before
    assert set(asked) <= set(before)


def test_a_task_that_fails_in_any_way_does_not_end_the_day() -> None:
    def fails(_budget_s: float) -> Record:
        raise KeyError("of a library")

    with pytest.raises(MeasureError, match="of a library"):
        gpu_day._guarded(Task("x", fails), Journal()).run(1.0)


def test_after_an_error_of_the_gpu_the_run_ends_and_the_task_is_not_tried_again() -> None:
    def fails(_budget_s: float) -> Record:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore")

    journal = Journal()
    with pytest.raises(SystemExit, match="continues after it"):
        gpu_day._guarded(Task("x", fails), journal).run(1.0)
    assert "illegal memory access" in journal.records["x"]["refused"]


def test_twelve_models_run_in_every_precision_and_memory_format() -> None:
    jobs = gpu_day.step_jobs()
    assert len({job.model for job in jobs}) == 12
    assert {job.precision for job in jobs} == {*gpu_day.PRECISIONS, "fp64"}
    resnet = {(job.precision, job.memory_format) for job in jobs if job.model == "resnet50"}
    assert {("amp-fp16", "nhwc"), ("amp-fp16", "nchw"), ("fp64", "nchw")} <= resnet
    assert len({repr(job) for job in jobs}) == len(jobs)


def test_kernels_are_those_that_open_families_lack() -> None:
    assert all(shape.groups == shape.c_in and shape.kernel >= 5 for shape in large_depthwise())
    assert {shape.c_in // shape.groups for shape in odd_groups()} >= {2, 12, 24, 40, 56, 112}
    assert min(shape.c_in for shape in few_channels()) == 1
    assert all(shape.side == 1 for shape in squeezed())


def test_a_trace_is_counted_by_operator_and_dtype() -> None:
    events = [
        {"cat": "cpu_op", "name": "aten::mm", "args": {"Input type": ["c10::Half", "c10::Half"]}},
        {"cat": "cpu_op", "name": "aten::mm", "args": {"Input type": ["float", "float"]}},
        {"cat": "cpu_op", "name": "aten::relu", "args": {"Input type": ["", "float"]}},
        {"cat": "kernel", "name": "gemm", "args": {}},
    ]
    seen = calls_of_trace(events)
    assert seen == {("aten.mm", "float16"): 1, ("aten.mm", "float32"): 1, ("aten.relu", "float32"): 1}
    rows = compared(type(seen)({("aten.mm", "float16"): 2}), seen)
    assert [(row["dtype"], row["traced_calls"], row["seen_calls"]) for row in rows] == [
        ("float16", 2, 1), ("float32", 0, 1),
    ]  # fmt: skip
