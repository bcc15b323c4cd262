"""The measuring suite: recorded operators, the journal that makes it resumable, the folder it writes."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from precision_time.capture.captured_model import capture_model
from precision_time.capture.graph import OpSignature, TensorSpec
from precision_time.cli.main import main
from precision_time.errors import DataError
from precision_time.job import Job
from precision_time.journal import Journal, read
from precision_time.measure import measurement, optimizers, session, suite, whole_steps
from precision_time.measure.calibrate import Machine, journal_of
from precision_time.measure.clock import Timed
from precision_time.measure.conditions import conditions
from precision_time.measure.measurement import data_card, measure, measure_task, plan_of, write_tables
from precision_time.measure.point import Point
from precision_time.measure.products import Limits
from precision_time.measure.recording import call_of, in_dtype, label, passes, record, tensors_of
from precision_time.measure.replay import bench_of, replay_benches
from precision_time.measure.session import run_plan
from precision_time.measure.suite import Task, interleaved
from precision_time.measure.zoo_operators import MODELS, ZooOperator, recorded_of, zoo_benches, zoo_operators
from precision_time.measurements.table import read_table
from precision_time.timing.operators import WorkOptions, works
from precision_time.zoo.catalog import ENTRIES

CPU = torch.device("cpu")

OWN = """
import torch
from torch import nn
from torch.nn import functional as F

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.head = nn.Embedding(50, 32), nn.LayerNorm(32), nn.Linear(32, 50)
        self.conv = nn.Conv1d(32, 32, 3, padding=2, dilation=2)
        self.rnn = nn.LSTM(32, 16, bidirectional=True, batch_first=True)
        self.rms, self.bias = nn.RMSNorm(32), nn.Parameter(torch.zeros(2, 8, 8))

    def forward(self, tokens):
        x = self.norm(self.embed(tokens))
        x = self.conv(x.transpose(1, 2)).transpose(1, 2)
        x, state = self.rnn(x)
        x = self.rnn(x, state)[0]
        q = x.view(x.shape[0], x.shape[1], 2, 16).transpose(1, 2)
        x = F.scaled_dot_product_attention(q, q, q, is_causal=True).transpose(1, 2).flatten(2)
        q = self.rms(x).view(x.shape[0], x.shape[1], 2, 16).transpose(1, 2)
        x = F.scaled_dot_product_attention(q, q, q, attn_mask=self.bias).transpose(1, 2).flatten(2)
        return self.head(x)

def net():
    tokens = torch.zeros(4, 8, dtype=torch.int64)
    return {"model": Net(), "inputs": {"tokens": tokens}, "loss": lambda out: out.square().mean(), "optimizer": "adamw"}
"""


@pytest.fixture
def own_model(tmp_path: Path) -> str:
    path = tmp_path / "own.py"
    path.write_text(OWN, encoding="utf-8")
    return f"{path}:net"


# --- recorded operators ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["fp32", "amp-bf16", "fp64"])
def test_every_operator_of_a_step_runs_again_by_itself(own_model: str, precision: str) -> None:
    """And is then the very operator that the step's graph has: nothing about it was lost on the way."""
    job = Job(own_model, precision=precision)
    found = record(job, "cpu")
    assert {"aten.convolution", "pt.rnn_backward", "pt.attention_backward", "aten.embedding_dense_backward",
            "aten.native_layer_norm_backward", "aten.addmm"} <= {each.kind.name for each in found}  # fmt: skip
    assert precision == "amp-bf16" or "pt.rms_norm_backward" in {each.kind.name for each in found}
    assert {"precision_time::attention_backward.learned", "precision_time::rnn_backward.states"} <= {
        each.recorded.overload for each in found
    }
    for each in found:
        call_of(each.recorded, CPU)()
    wanted = {kind for kind in capture_model(job, None, "cpu").graph.kinds if kind.inputs}
    seen = {bench_of(each.recorded).kind("cpu") for each in found}
    if precision == "fp64":  # the graph is renamed as a whole, down to statistics that stay in float32
        assert {(k.name, tuple(s.shape for s in k.inputs)) for k in seen} == {
            (k.name, tuple(s.shape for s in k.inputs)) for k in wanted
        }
    else:
        assert seen == wanted


def test_replayed_products_do_the_operations_that_torch_counts(own_model: str) -> None:
    jobs = [Job(own_model, gpu="this-cpu", precision="fp32")]
    for bench in replay_benches(jobs, CPU):
        if bench.operator in ("aten.mm", "aten.addmm", "aten.bmm"):
            call = bench.make(CPU)
            with FlopCounterMode(display=False) as counter:
                call()
            assert bench.work("cpu").flops == counter.get_total_flops()


def test_each_replayed_operator_is_one_that_the_prediction_asks_for(own_model: str) -> None:
    """So its point is measured, not interpolated; and the operator that takes most comes first."""
    jobs = [Job(own_model, gpu="this-cpu", precision=p) for p in ("fp32", "amp-bf16")]
    found = replay_benches(jobs, CPU)
    assert len({bench.label for bench in found}) == len(found)
    asked = {
        (kind.name, work.shape)
        for job in jobs
        for kind in capture_model(job, None, "cpu").graph.kinds
        for work in works(kind, WorkOptions()) or ()
    }
    for bench in found:
        assert (bench.operator, bench.work("cpu").shape) in asked
    assert found[0].work("cpu").flops > found[-1].work("cpu").flops


def test_a_convolution_is_replayed_pass_by_pass_without_its_bias(own_model: str) -> None:
    (forward,) = [e.recorded for e in record(Job(own_model), "cpu") if e.kind.name == "aten.convolution"]
    (backward,) = [e.recorded for e in record(Job(own_model), "cpu") if e.kind.name == "aten.convolution_backward"]
    ((_, bare),) = passes(forward)
    assert len(list(tensors_of(forward))) == 3
    assert len(list(tensors_of(bare))) == 2
    parts = dict(passes(backward))
    assert set(parts) == {"dgrad", "wgrad"}
    directions = {bench_of(part).work("cpu").variant for part in parts.values()}
    assert len(directions) == 2


def test_images_can_be_stored_channels_last() -> None:
    (image,) = [
        e.recorded
        for e in record(Job("resnet50", batch_size=1, input={"image_size": 64}), "cpu")
        if e.kind.name == "aten.convolution" and e.kind.inputs[0].shape[1] == 3
    ]
    plain, last = (bench_of(image, nhwc=nhwc) for nhwc in (False, True))
    assert plain.label != last.label
    assert plain.make(CPU)().is_contiguous()
    assert last.make(CPU)().is_contiguous(memory_format=torch.channels_last)


def test_indices_stay_inside_their_tables(own_model: str) -> None:
    (lookup,) = [e.recorded for e in record(Job(own_model), "cpu") if e.kind.name == "aten.embedding"]
    for _ in range(20):
        call_of(lookup, CPU)()  # raises where an index lies outside


def test_the_zoo_operators_cover_every_family_of_kernels() -> None:
    found = zoo_operators()
    assert {each.model for each in found} == set(MODELS)
    told = (Path(__file__).parent.parent / "docs" / "measure.md").read_text(encoding="utf-8")
    assert f"{len(found):,} operators of {len(MODELS)}" in " ".join(told.split())
    assert set(MODELS) <= set(ENTRIES)
    assert {each.precision for each in found} == {"fp32", "amp-bf16"}
    assert [each.model for each in found[:10]] == list(MODELS[:10]), "the largest operator of every model comes first"
    names = {each.recorded.operator for each in found}
    assert {
        "aten.mm", "aten.addmm", "aten.bmm", "aten.convolution", "aten.convolution_backward", "pt.attention",
        "pt.attention_backward", "pt.rnn", "pt.rnn_backward", "aten.native_batch_norm",
        "aten.native_batch_norm_backward", "aten.native_layer_norm_backward", "aten.embedding_dense_backward",
        "aten._softmax", "aten._log_softmax", "aten.max_pool2d_with_indices", "aten._to_copy", "aten.clone", "aten.cat",
    } <= names  # fmt: skip
    shapes = [each.recorded for each in found if each.recorded.operator == "aten.convolution"]
    arguments = [each.arguments for each in shapes]
    assert {len(a[1]["t"][0]) - 2 for a in arguments} == {1, 2, 3}, "1-d, 2-d and 3-d convolutions"
    assert any(max(a[5]) > 1 for a in arguments), "dilated"
    assert any(a[6] for a in arguments), "transposed"
    assert {True, False} <= {a[8] == a[0]["t"][0][1] for a in arguments if a[8] > 1}, "depthwise and grouped"


def _elements(each: ZooOperator) -> int:
    return sum(torch.Size(shape).numel() for shape, _, _ in tensors_of(each.recorded))


def _small(each: ZooOperator) -> bool:
    return _elements(each) < 2e7 and each.flops < 3e9


def test_small_zoo_operators_run_here() -> None:
    """The smallest operator of every kind, in each precision: arguments that do not fit together would raise."""
    some: dict[tuple[str, str], ZooOperator] = {}
    for each in sorted(filter(_small, zoo_operators()), key=_elements):
        some.setdefault((each.precision, each.recorded.overload), each)
    assert len(some) > 60
    for each in some.values():
        call_of(each.recorded, CPU)()


def test_the_zoo_is_measured_in_the_dtypes_a_device_has() -> None:
    limits = Limits(1e9, 1e7)
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        benches = zoo_benches(dtype, False, limits, CPU)
        assert len(benches) > 20
        assert all(bench.work("cpu").flops <= limits.flops for bench in benches)
    double = next(each for each in zoo_operators() if each.precision == "fp32").recorded
    assert {dtype for _, _, dtype in tensors_of(in_dtype(double, "float32", "float64"))} & {"float64"}


def test_shipped_operators_equal_a_new_recording() -> None:
    """One small model recorded anew: operators that a new definition or torch no longer runs would be missing."""
    shipped = {label(each.recorded) for each in zoo_operators()}
    found = recorded_of("ncf")
    missing = [label(each.recorded) for each in found if label(each.recorded) not in shipped]
    assert len(missing) <= 0.1 * len(found), missing[:5]


HEADER = {"machine": "a", "torch": "1"}


def test_a_point_survives_its_journal() -> None:
    kind = OpSignature(
        "aten.convolution", (TensorSpec((2, 3, 8, 8), "float32"), TensorSpec((4, 3, 3, 3), "float32")),
        (TensorSpec((2, 4, 8, 8), "float32"),), (("stride", (1, 1)), ("transposed", False), ("groups", 1)),
    )  # fmt: skip
    point = Point(kind, WorkOptions(True, False), Timed(1e-3, 0.1, 5, 3e-3))
    said = json.loads(json.dumps(point.to_json()))
    assert said["outlier"], "a sample thrice the median marks the point"
    assert Point.from_json(said) == point
    assert Point.from_json(said).row() == point.row()


# --- working off a plan ---------------------------------------------------------------------------------------------


def _task(name: str, done: list[str], fail: Exception | None = None) -> Task:
    def run(_budget_s: float) -> dict[str, Any]:
        done.append(name)
        if fail:
            raise fail
        return {"value": name}

    return Task(name, run)


def test_finished_tasks_are_not_measured_again(tmp_path: Path) -> None:
    done: list[str] = []
    journal = Journal(tmp_path / "j", HEADER)
    run_plan([_task("a", done), _task("b", done)], journal, CPU, 1e6)
    left_out = run_plan([_task("a", done), _task("c", done)], Journal(tmp_path / "j", HEADER), CPU, 1e6)
    assert done == ["a", "b", "c"]
    assert left_out == []


def test_tasks_without_time_are_listed() -> None:
    done: list[str] = []
    assert run_plan([_task("a", done), _task("b", done)], Journal(), CPU, 0.0) == ["a: no time left", "b: no time left"]
    assert done == []


def test_a_refused_kernel_is_left_out_with_its_reason_and_not_tried_again(tmp_path: Path) -> None:
    done: list[str] = []
    broken = _task("broken", done, RuntimeError("no such kernel\nand a long tail"))
    for _ in range(2):
        assert run_plan([broken], Journal(tmp_path / "j", HEADER), CPU, 1e6) == ["broken: no such kernel"]
    assert done == ["broken"]


def test_an_interruption_loses_the_task_under_way_alone(tmp_path: Path) -> None:
    done: list[str] = []
    plan = [_task("a", done), _task("b", done), Task("stop", _interrupt), _task("c", done)]
    with pytest.raises(KeyboardInterrupt):
        run_plan(plan, Journal(tmp_path / "j", HEADER), CPU, 1e6)
    kept = {name for name in read(tmp_path / "j")[1] if not name.startswith("probe")}
    assert kept == {"a", "b"}


def _interrupt(_budget_s: float) -> dict[str, Any]:
    raise KeyboardInterrupt


def test_families_are_spread_evenly() -> None:
    assert list(interleaved([["a", "b"], [1, 2, 3, 4]])) == [1, "a", 2, 3, "b", 4]


def test_conditions_say_when_and_under_what_load() -> None:
    found = conditions(CPU)
    assert found["at"].endswith("+00:00")
    assert found.get("load", 0.0) >= 0.0


def test_an_old_calibration_is_begun_anew(tmp_path: Path) -> None:
    import os
    import time

    output = tmp_path / "machine.json"
    journal = tmp_path / "machine.points.jsonl"
    journal.write_text("x", encoding="utf-8")
    assert journal_of(output) == journal
    assert journal.exists()
    os.utime(journal, (time.time() - 25 * 3600,) * 2)
    assert not journal_of(output).exists()


# --- the whole suite ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_plan_names_every_task_once_and_begins_with_the_job(own_model: str) -> None:
    jobs = [Job(own_model, gpu="this-cpu")]
    plan = plan_of(CPU, measurement.KINDS, jobs)
    labels = [task.label for task in plan]
    assert len(set(labels)) == len(labels) > 1000
    own = {bench.label for bench in replay_benches(jobs, CPU)}
    assert labels[0] == "host"
    assert set(labels[1 : 1 + len(own)]) == own
    early = labels[: len(labels) // 4]
    assert any(name.startswith("step ") for name in early)
    assert any(name.startswith("update ") for name in early)
    assert [task.label for task in plan_of(CPU, ["steps"])] == [task.label for task in whole_steps.step_tasks(CPU)]


def test_no_two_tasks_share_a_label(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second would be taken for done: the same sizes in another dtype, with TF32 or stored channels last."""
    gpu = torch.device("cuda")
    dtypes = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
    monkeypatch.setattr(suite, "modes", lambda *_: [*((dtype, False) for dtype in dtypes), (torch.float32, True)])
    monkeypatch.setattr(suite, "limits_of", lambda *_: Limits(5e10, 1e9))
    monkeypatch.setattr(suite, "refused", lambda *_: None)
    monkeypatch.setattr(suite, "fp8_rate", lambda _: 1e13)
    labels = [task.label for task in suite.family_tasks(gpu, dtypes, fp8=True)]
    assert len(set(labels)) == len(labels) > 2000


def test_an_update_is_timed_until_the_host_is_free() -> None:
    tasks = {task.label: task for task in optimizers.update_tasks(CPU)}
    assert len(tasks) == 5 * 3 + 3 * 3 * 2 + 2 + 1  # in float32, in either half, LAMB, clipping
    found = tasks["update adamw foreach of mobilenet-v3-large"].run(0.0)
    assert found["tensors"] == len(capture_model(Job("mobilenet-v3-large")).graph.parameters)
    assert 0 < found["host_s"] <= found["seconds"]  # each host sample ends before its device sample
    half = tasks["update adamw fused of mobilenet-v3-large in bfloat16"].run(0.0)
    assert (half["dtype"], half["elements"]) == ("bfloat16", found["elements"])
    assert tasks["update lamb foreach of mobilenet-v3-large"].run(0.0)["seconds"] > 0
    assert not any("lamb fused" in label for label in tasks), "torch has none"
    assert "torch has no LAMB" in measurement.data_card({}, {"u": {"update": "lamb single"}}, [])


def test_whole_steps_are_rows_that_evaluate_reads(tmp_path: Path) -> None:
    jobs = [whole_steps.trainable_job({**words, "precision": "fp32"}) for words in whole_steps.JOBS["cuda"]]
    rows = [whole_steps.row_of(job, CPU, [0.3, 0.2, 0.4]) for job in jobs]
    path = tmp_path / "steps.csv"
    path.write_text(measurement._csv(rows, whole_steps.COLUMNS), encoding="utf-8")
    table = read_table(path)
    assert not table.warnings
    assert [row.measured_s for row in table.rows] == [0.3] * len(jobs)
    for row, job in zip(table.rows, jobs, strict=True):
        assert row.job is not None, row.reason
        assert (row.job.model, row.job.batch_size, row.job.optimizer) == (job.model, job.batch_size, job.optimizer)


def test_at_least_twelve_models_are_trained_on_a_gpu() -> None:
    assert len({words["model"] for words in whole_steps.JOBS["cuda"]}) >= 12


def test_the_folder_has_a_table_for_each_kind_and_a_card(tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    point = Point(
        OpSignature("aten.relu", (TensorSpec((4, 4), "float32"),), (TensorSpec((4, 4), "float32"),)),
        WorkOptions(), Timed(1e-6, 0.0, 5, 1e-6),
    )  # fmt: skip
    records = {
        "a": {"points": [point.to_json()]},
        "b": {"refused": "no such kernel"},
        "c": {"probe_s": 1e-3, "at": "2026-01-02T03:04:05+00:00"},
        "d": {"host": {"operator_us": 1.0}},
        "e": {"update": "sgd single", "model": "m", "seconds": 1.0},
    }
    head = {"gpu": "a-gpu", "machine": "a box", "threads": 1, "torch": "9"}
    names = write_tables(tmp_path, head, records)
    assert names == ["operators.parquet", "updates.csv", "conditions.csv", "other.json", "README.md"]
    (row,) = pq.read_table(tmp_path / "operators.parquet").to_pylist()
    assert (row["operator"], row["inputs"], row["seconds"]) == ("aten.relu", "float32[4,4]", 1e-6)
    card = data_card(head, records, names)
    assert card.startswith("# Measurements on a-gpu")
    for word in ("a box", "torch 9", "2026-01-02", "1 x no such kernel", "1 operators, 1 updates, 1 host"):
        assert word in card
    with (tmp_path / "updates.csv").open(encoding="utf-8") as file:
        assert next(csv.DictReader(file))["update"] == "sgd single"


class Clock:
    """Seconds that pass only when a task says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def task(self, name: str, seconds: float, required: bool = False) -> Task:
        def run(_budget_s: float) -> dict[str, Any]:
            self.now += seconds
            return {"value": name}

        return Task(name, run, required)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(session, "time", found)
    return found


def test_required_tasks_run_when_the_budget_is_spent(clock: Clock) -> None:
    """A machine so busy that one task takes the whole budget still gets its products."""
    plan = [clock.task("slow", 9.0), clock.task("product", 5.0, required=True), clock.task("other", 1.0)]
    journal = Journal()
    assert run_plan(plan, journal, CPU, 6.0) == ["other: no time left"]
    assert {"slow", "product"} <= set(journal.records)


def test_a_plan_begins_with_a_product_and_a_large_addition_in_every_dtype() -> None:
    tasks = suite.family_tasks(CPU, [torch.float32, torch.bfloat16])
    assert [task.required for task in tasks[:5]] == [True] * 4 + [False]
    points = [Point.from_json(task.run(0.0)["points"][0]) for task in tasks[:4]]
    assert [(point.operator, point.work.math) for point in points] == [
        ("aten.mm", "fp32"), ("aten.add", "vector"), ("aten.mm", "bf16"), ("aten.add", "vector"),
    ]  # fmt: skip
    assert points[1].work.bytes == 3 * 4 * suite.SCALES["cpu"].traffic[-1]


def test_a_measurement_continues_where_its_budget_ended(
    own_model: str, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`measure` in this process, on a clock on which each real measurement takes a second."""
    monkeypatch.setattr(measurement, "time", clock)
    monkeypatch.setattr(suite, "SCALES", {"cpu": suite.Scale(0.001, 1e5, 2, 1, 1, (1 << 11,))})
    monkeypatch.setattr(measurement, "zoo_benches", lambda *_: [])
    monkeypatch.setattr(measurement, "launch", lambda task, *, report, **_: measure_task(task, CPU, report))
    whole = session._record

    def slow(task: Task, *rest: Any) -> dict[str, Any]:
        clock.now += 1.0
        return whole(task, *rest)

    monkeypatch.setattr(session, "_record", slow)
    folder, here = tmp_path / "found", Machine("cpu", 1, 1)
    jobs = [Job(own_model, gpu="this-cpu")]
    required = 3 * 2  # in float32, bfloat16 and float64
    first = measure(here, folder, 20.5, jobs, ["operators"])
    assert (first.continued, first.counts["operators"]) == (0, 21 + required)
    assert "the same command again continues" in str(first)
    second = measure(here, folder, 10.5, jobs, ["operators"])
    assert second.counts["operators"] == first.counts["operators"] + 11
    assert second.continued >= 21 + required  # probes are records too
    assert second.unfinished == first.unfinished - 11
    assert json.loads(json.dumps(second.to_dict()))["unfinished"] == second.unfinished
    assert len(session.points_of(read(folder / measurement.JOURNAL)[1])) == second.counts["operators"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["measure", "--only", "stepps"], "nearest: steps"),
        (["measure", "--budget", "1h"], "give between 5s and 10min|give seconds or minutes"),
        (["measure", "--on", "tpu"], "use cpu or cuda"),
        (["measure", "--output", "nowhere/at/all"], "make it first"),
    ],
)
def test_bad_arguments_are_one_sentence(words: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    import re

    assert main(words) == 2
    said = capsys.readouterr().err.strip()
    assert re.search(why, said), said
    assert said.count("\n") == 0


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("", encoding="utf-8")
    with pytest.raises(DataError, match="is a file; name a folder"):
        measure(Machine("cpu", 1, 1), tmp_path / "x", 5.0)
