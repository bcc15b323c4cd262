"""The room that runs real code: clocks, benchmarks, processes, the device file they make, real training steps."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import itertools
import json
import math
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from networks import total, trace
from precision_time.capture.graph import OpSignature, Phase, TensorSpec
from precision_time.errors import CatalogError, DataError, MeasureError
from precision_time.hardware.catalog import default_catalog
from precision_time.job import Job
from precision_time.journal import Journal
from precision_time.measure import calibrate as calibrate_module
from precision_time.measure import clock, hosts, kernel_support, machine, rounds, session, suite, train, worker
from precision_time.measure.bench import Bench
from precision_time.measure.calibrate import (
    Calibrated,
    Machine,
    calibrate,
    catalog_of,
    check_output,
    device_name,
    document,
    measure_interference,
    write,
)
from precision_time.measure.clock import summary, timed, timed_for
from precision_time.measure.convolutions import conv_benches
from precision_time.measure.hosts import host_costs
from precision_time.measure.kernel_support import UnsupportedError
from precision_time.measure.launch import launch
from precision_time.measure.point import COLUMNS, Point, largest_work
from precision_time.measure.products import Limits, attention_benches, matmul_benches, spread
from precision_time.measure.scaled import scaled_benches
from precision_time.measure.text import calibration_text
from precision_time.measure.traffic import OPERATORS, traffic_benches
from precision_time.measure.train import Trainer, check
from precision_time.measure.updates import CHAINS, PASSES, chain_times, sweep_of, tensor_sizes
from precision_time.measure.verify import DEFAULT_JOBS, Verification, Verified, jobs_here, verify
from precision_time.prediction import predict
from precision_time.timing.operators import WorkOptions

CPU = torch.device("cpu")
TINY = suite.Scale(0.0005, 4e4, 6, 5, 2, (1 << 10, 1 << 12))
SMALL_LIMITS = Limits(flops=3e6, elements=5e4)

OWN = """
import torch
from torch import nn
from torch.nn import functional as F

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.up, self.down = nn.Embedding(50, 32), nn.Linear(32, 64), nn.Linear(64, 50)

    def forward(self, tokens):
        return self.down(F.gelu(self.up(self.embed(tokens))))

def make_job(batch_size=4):
    tokens = torch.zeros(batch_size, 8, dtype=torch.int64)
    loss = lambda out, target: F.cross_entropy(out.flatten(0, 1), target.flatten())
    return {"model": Net(), "inputs": tokens, "targets": tokens, "loss": loss, "optimizer": "adamw"}
"""


@pytest.fixture
def own_model(tmp_path: Path) -> str:
    path = tmp_path / "own.py"
    path.write_text(OWN, encoding="utf-8")
    return f"{path}:make_job"


# --- clocks ---------------------------------------------------------------------------------------------------------


def test_summary_is_median_and_scaled_median_deviation() -> None:
    found = summary([1.0, 2.0, 3.0, 4.0, 100.0])
    assert found.seconds == 3.0
    assert found.spread == pytest.approx(1.4826 * 1.0 / 3.0)  # deviations 2 1 0 1 97, their median 1
    assert found.samples == 5


class Clock:
    """Seconds that pass only in `call`."""

    def __init__(self, seconds: float) -> None:
        self.now, self.calls, self._seconds = 0.0, 0, seconds

    def perf_counter(self) -> float:
        return self.now

    def call(self) -> None:
        self.calls += 1
        self.now += self._seconds


@pytest.mark.parametrize(
    ("seconds", "budget_s", "samples", "calls"),
    [
        (1e-6, 0.01, 25, 1 + 1 + 25 * 300),  # warm-up, one alone, then groups that last 300 us
        (1e-3, 0.01, 10, 1 + 1 + 10),
        (1e-3, 0.004, 5, 1 + 1 + 5),  # never fewer than five
        (0.02, 0.001, 3, 4),  # slower than the budget: three samples, the first of which decided so
    ],
)
def test_short_calls_are_grouped_and_slow_ones_run_three_times(
    monkeypatch: pytest.MonkeyPatch, seconds: float, budget_s: float, samples: int, calls: int
) -> None:
    fake = Clock(seconds)
    monkeypatch.setattr(clock, "time", fake)
    found = timed(fake.call, CPU, budget_s)
    assert found.seconds == pytest.approx(seconds)
    assert (found.samples, fake.calls) == (samples, calls)


def test_a_window_is_filled_and_has_four_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    for seconds, calls in ((0.01, 1 + 15), (1.0, 1 + 4)):
        fake = Clock(seconds)
        monkeypatch.setattr(clock, "time", fake)
        assert timed_for(fake.call, CPU, 0.145) == pytest.approx(seconds)
        assert fake.calls == calls


# --- shapes ---------------------------------------------------------------------------------------------------------


def test_spread_fills_the_box_evenly_and_is_the_same_every_time() -> None:
    points = list(itertools.islice(spread((1.0, 100.0), (10.0, 1000.0)), 64))
    assert points == list(itertools.islice(spread((1.0, 100.0), (10.0, 1000.0)), 64))
    assert all(1 <= a < 100 and 10 <= b < 1000 for a, b in points)
    quarters = {(a > 10.0, b > 100.0): 0 for a, b in points}
    for a, b in points:
        quarters[(a > 10.0, b > 100.0)] += 1
    assert sorted(quarters.values())[0] >= 12  # 16 each if perfect


@pytest.mark.parametrize("bench", [
    bench
    for bench in (*matmul_benches(torch.float32, 8, SMALL_LIMITS), *conv_benches(torch.float32, 6, SMALL_LIMITS))
    if "wgrad" not in bench.label or bench.label.endswith("g1")  # torch's counter forgets the groups of that pass
], ids=lambda b: b.label)  # fmt: skip
def test_the_work_of_a_product_has_the_flops_that_torch_counts(bench: Bench) -> None:
    call = bench.make(CPU)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        call()
    assert bench.work("cpu").flops == counter.get_total_flops()


@pytest.mark.parametrize("elements", [4e4, 1e5, 3e6, 3e7, 1e8, 1e9])
@pytest.mark.parametrize("rate", [1.0, 1e7, 1e9, 1e12, 1e15])
def test_shapes_are_found_on_processors_of_any_speed(rate: float, elements: float) -> None:
    """A rate measured while the machine stood still must not leave a search without end."""
    for longest_s in (0.0005, 0.02, 0.3):
        limits = Limits.at(rate, longest_s, elements)
        for benches in (
            matmul_benches(torch.float32, 4, limits),
            conv_benches(torch.float32, 4, limits),
            attention_benches(torch.float32, 2, limits),
            scaled_benches(2, limits, "tensorwise"),
        ):
            assert benches


def test_limits_hold() -> None:
    for bench in (*matmul_benches(torch.float32, 10, SMALL_LIMITS), *conv_benches(torch.float32, 10, SMALL_LIMITS)):
        assert bench.work("cpu").flops <= 1.5 * SMALL_LIMITS.flops, bench.label


# --- the suite ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_every_traffic_benchmark_runs_its_operator(name: str, dtype: torch.dtype) -> None:
    for bench in traffic_benches(dtype, [1 << 12]):
        if bench.operator == name:
            assert bench.work("cpu").bytes > 0
            assert bench.time(CPU, 0.0).seconds > 0


@pytest.mark.parametrize("label", sorted(PASSES))
def test_a_sweep_moves_the_bytes_of_its_table(label: str) -> None:
    reads, writes, _ = PASSES[label]
    assert largest_work(sweep_of(label, [100, 28]), WorkOptions()).bytes == (reads + writes) * 128 * 4


@pytest.mark.parametrize("chain", sorted(CHAINS))
def test_a_chain_times_each_of_its_passes(chain: str) -> None:
    found = chain_times(chain, [1 << 12, 100], CPU)
    assert set(found) == {label for label, _ in CHAINS[chain]}
    assert all(time.seconds > 0 for time in found.values())


def test_every_pass_is_in_a_chain_and_every_pass_of_torchs_own_optimizers_is_measured() -> None:
    from precision_time.capture.optimizer import OPTIMIZERS
    from precision_time.measure.train import OPTIMIZERS as REAL

    in_chains = {label for chain in CHAINS.values() for label, _ in chain}
    assert in_chains == set(PASSES)
    assert {step.name for name in REAL for step in OPTIMIZERS[name].passes} <= in_chains


def test_tensor_sizes_add_up() -> None:
    assert tensor_sizes(1000) == [1000]
    assert tensor_sizes(600_000) == [262_144, 262_144, 75_712]


def test_a_benchmark_that_runs_another_operator_is_an_error() -> None:
    wrong = Bench("aten.mm", "wrong", lambda device: torch.ones(3, device=device).exp)
    with pytest.raises(Exception, match=r"benchmark wrong runs no aten\.mm \(it runs aten\.exp\)"):
        wrong.work("cpu")


def test_an_operator_without_a_rule_is_an_error() -> None:
    spec = TensorSpec((4,), "float32")
    with pytest.raises(Exception, match=r"aten\.nonsense has no rule"):
        largest_work(OpSignature("aten.nonsense", (spec,), (spec,)), WorkOptions())


def test_the_suite_gives_a_row_for_every_point_and_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(suite.SCALES, "cpu", TINY)
    monkeypatch.setattr(session, "LONGEST_POINT_S", 1e-4)
    seen: list[tuple[int, int]] = []
    journal = Journal()
    plan = suite.family_tasks(CPU, [torch.float32])
    left_out = session.run_plan(plan, journal, CPU, 1e6, lambda done, total: seen.append((done, total)))
    rows = [point.row() for point in session.points_of(journal.records)]
    assert left_out == []
    assert seen[-1][0] == seen[-1][1] <= len(rows)
    at = {name: i for i, name in enumerate(COLUMNS)}
    assert all(len(row) == len(COLUMNS) and row[at["seconds"]] > 0 for row in rows)
    assert {"matmul", "conv", "attention", "softmax", "optimizer"} <= {row[at["family"]] for row in rows}
    layouts = {row[at["variant"]] for row in rows if row[at["operator"]] == "aten.mm"}
    assert layouts == {"nt", "nn", "tn"}  # forward, data gradient, weight gradient
    assert session.noise_of(journal.records) > 0, "no probe was timed between the points"


def test_host_costs_have_the_fields_of_a_device_file() -> None:
    found = host_costs(CPU)
    fields = {"operator_us", "view_us", "kernel_us", "sweep_us", "list_us", "tensor_us", "step_us"}
    assert set(found) == fields | {"backward_share", "log_spread"}
    assert all(math.isfinite(v) and v >= 0 for v in found.values())


def test_launches_of_small_layers_are_divided_by_the_costs_of_the_operators_that_they_run() -> None:
    graph = trace(lambda: total(hosts.small_layers(3), torch.empty(2, 8, 8, 8)))
    ran = {phase: Counter(graph.kinds[c.kind].name for c in graph.calls if c.phase == phase) for phase in Phase}
    assert ran[Phase.FORWARD] == Counter(f"aten.{name}" for name in hosts.FORWARD * 3)
    assert ran[Phase.LOSS] == Counter({"aten.sum": 1})
    assert ran[Phase.BACKWARD] - Counter(f"aten.{name}" for name in hosts.BACKWARD * 3) == Counter(
        {"aten.ones_like": 1}
    )
    forward, backward = hosts.layer_launches(CPU)
    assert 0 < forward < 1e-3
    assert 0 < backward < 1e-3


# --- processes ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_ranks_train_together_and_the_slowest_counts(own_model: str) -> None:
    task = {
        "task": "train",
        "device": "cpu",
        "job": {"model": own_model, "precision": "amp-bf16"},
        "warmup": 1,
        "steps": 4,
    }
    found = launch(task, ranks=2, threads=1, timeout_s=900)
    assert len(found["steps_s"]) == 4
    assert all(s > 0 for s in found["steps_s"])


def test_a_failing_rank_is_one_sentence(own_model: str) -> None:
    task = {"task": "train", "device": "cpu", "job": {"model": own_model, "precision": "fp8"}, "warmup": 1, "steps": 1}
    with pytest.raises(MeasureError, match=r"precision fp8 needs a library beyond PyTorch"):
        launch(task, ranks=1, threads=1, timeout_s=900)


def test_a_timeout_is_one_sentence() -> None:
    task = {"task": "train", "device": "cpu", "job": {"model": "resnet50"}, "warmup": 500, "steps": 1}
    with pytest.raises(MeasureError, match="gave no result"):
        launch(task, ranks=1, threads=1, timeout_s=1)


# --- training -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["fp32", "fp64", "amp-bf16", "bf16"])
def test_a_step_changes_the_weights_in_the_precision_that_was_asked(own_model: str, precision: str) -> None:
    trainer = Trainer(Job(own_model, precision=precision, grad_accum=2, clip_norm=1.0), CPU)
    dtype = {"fp64": torch.float64, "bf16": torch.bfloat16}.get(precision, torch.float32)
    before = [p.detach().clone() for p in trainer._parameters]
    assert {p.dtype for p in before} == {dtype}
    for _ in range(3):
        trainer.step()
    moved = [not torch.equal(a, b) for a, b in zip(before, trainer._parameters, strict=True)]
    assert any(moved)
    assert all(bool(torch.isfinite(p).all()) for p in trainer._parameters)


def test_autocast_runs_products_in_bfloat16(own_model: str) -> None:
    seen: set[str] = set()
    trainer = Trainer(Job(own_model, precision="amp-bf16"), CPU)
    with torch.profiler.profile(record_shapes=False) as profile:
        trainer.step()
    seen = {event.key for event in profile.key_averages()}
    assert "aten::to" in seen
    assert "aten::addmm" in seen


@pytest.mark.parametrize(
    ("job", "why"),
    [
        (Job("resnet50", precision="fp16-master"), "needs a library beyond PyTorch"),
        (Job("resnet50", execution="cuda_graphs"), "execution cuda_graphs cannot be trained here"),
        (Job("resnet50", precision="amp-fp16", loss_scale="static"), "loss_scale static is apex's"),
        (Job.from_dict({"model": "resnet50", "precision": [{"from_step": 0, "precision": "fp32"},
                                                           {"from_step": 5, "precision": "amp-bf16"}]}), "schedule"),
    ],
)  # fmt: skip
def test_untrainable_jobs_are_refused_before_anything_runs(job: Job, why: str) -> None:
    with pytest.raises(MeasureError, match=why):
        check(job)


def test_an_optimizer_that_torch_lacks_is_refused(own_model: str) -> None:
    with pytest.raises(MeasureError, match="torch has no optimizer lamb"):
        Trainer(Job(own_model, optimizer="lamb"), CPU)


LSTM = """
from torch import nn, zeros

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.rnn(x)[0])

def make_job(batch_size=2):
    x = zeros(batch_size, 3, 8)
    return {"model": Net(), "inputs": x, "loss": lambda out: out.square().mean(), "optimizer": "sgd"}
"""


def test_a_kernel_that_the_cpu_lacks_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lstm.py"
    path.write_text(LSTM, encoding="utf-8")
    monkeypatch.setattr(kernel_support, "autocast_lstm_error", lambda dtype: f"no {dtype} primitive")
    Trainer(Job(f"{path}:make_job", precision="fp32"), CPU).step()
    with pytest.raises(
        UnsupportedError, match=r"no LSTM in bfloat16 here, which needs AVX-512 \(no bfloat16 prim.*fp32"
    ):
        Trainer(Job(f"{path}:make_job", precision="amp-bf16"), CPU)


def test_the_probe_agrees_with_torch() -> None:
    """Whatever this CPU is: training works exactly where the probe says so."""
    reason = kernel_support.autocast_lstm_error("bfloat16")
    x = torch.ones(2, 3, 16, requires_grad=True)
    with contextlib.nullcontext() if reason is None else pytest.raises(RuntimeError, match="LSTM"):  # noqa: SIM117
        with torch.autocast("cpu", dtype=torch.bfloat16):
            torch.nn.LSTM(16, 4, batch_first=True)(x)


# --- the device file ------------------------------------------------------------------------------------------------


HOST = {"operator_us": 1.0, "view_us": 0.5, "kernel_us": 0.0, "sweep_us": 3.0, "list_us": 0.2, "tensor_us": 2.0,
        "step_us": 100.0, "backward_share": 0.8, "log_spread": 0.2}  # fmt: skip


@pytest.fixture(scope="module")
def kernels() -> dict[str, Any]:
    """A calibration as the worker returns it, with invented times: products at 50 GFLOP/s, traffic at 10 GB/s."""
    rows = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(suite.SCALES, "cpu", dataclasses.replace(TINY, elements=1e6, longest_call_s=0.01))
        for task in suite.family_tasks(CPU, [torch.float32]):
            for fields in task.run(0.0)["points"]:
                point = Point.from_json(fields)
                work = point.work
                seconds = 1e-6 + (work.bytes / 10e9 if work.math == "vector" else work.flops / 50e9)
                rows.append(dataclasses.replace(point, time=summary([seconds] * 3)).row())
    return {"rows": rows, "left_out": ["one"], "host": HOST, "noise": 0.03, "unfinished": True, "continued": 0}


INTERFERENCE = {
    "collectives": {
        "all_reduce": [[1024.0, 1e-4], [1048576.0, 1e-3], [67108864.0, 6.4e-2]],
        "broadcast": [[1024.0, 1e-4], [67108864.0, 3e-2]],
    },
    "contention": {
        "matmul fp32": [1.1, 1.1],
        "conv fp32": [1.4] * 8,
        "matmul half": [0.5] * 2,
        "pointwise fp32": [1.5],
    },
}


@pytest.fixture
def measured(kernels: dict[str, Any]) -> dict[str, Any]:
    return document(Machine("cpu", 2, 1), copy.deepcopy(kernels), INTERFERENCE)


def test_a_written_calibration_predicts_jobs(measured: dict[str, Any], own_model: str, tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    write(path, measured)
    assert json.loads(path.read_text(encoding="utf-8")) == measured
    gpu = default_catalog().with_file(path).gpu("this-cpu")
    assert gpu.peak("fp32") == pytest.approx(50e9, rel=0.05)
    assert gpu.calibration is not None
    contention = gpu.calibration.contention_of(2)
    common = (1.1**2 * 1.4**8 * 0.5**2) ** (1 / 12)
    assert (contention.compute, contention.memory) == (pytest.approx(common, abs=1e-4), 1.5)
    assert contention.of("conv", "fp32", compute=True) == pytest.approx((1.4**8 * common**2) ** 0.1, abs=1e-4)
    assert contention.of("matmul", "half", compute=True) == 1.0  # a factor is never below one
    assert contention.of("attention", "half", compute=True) == contention.compute
    job = Job(own_model, gpu="this-cpu", device=str(path), batch_size=64)
    one, two = predict(job), predict(job.replace(gpus=2))
    assert one.sources["measured"] + one.sources["interpolated"] > 0.8
    assert sum(one.breakdown.values()) == pytest.approx(one.step.p50)
    assert two.breakdown["communication_exposed"] > 0
    assert two.step.p50 > one.step.p50


def test_the_same_calibration_without_a_file(measured: dict[str, Any], own_model: str) -> None:
    job = Job(own_model, gpu="this-cpu", batch_size=64)
    assert predict(job, catalog=catalog_of(measured)).step.p50 > 0


def test_device_files_with_the_old_name_of_contention_are_read(measured: dict[str, Any]) -> None:
    content = copy.deepcopy(measured)
    calibration = content["gpus"]["this-cpu"]["calibration"]
    calibration["crowding"] = calibration.pop("contention")
    old, new = (catalog_of(each).gpu("this-cpu").calibration for each in (content, measured))
    assert old == new
    assert old is not None
    assert old.contention
    calibration["contention"] = calibration["crowding"]
    with pytest.raises(CatalogError, match="crowding is the old name of contention"):
        catalog_of(content)


@pytest.mark.parametrize(
    ("left_out", "reason"),
    [
        ([], "none was planned"),
        (["mm: no time left", "add: no time left"], r"2 benchmarks found no time\. Stop other .* raise --budget"),
        (["mm: no such kernel"], "1 were refused by the device, the first: mm: no such kernel"),
    ],
)
def test_a_calibration_without_products_says_why_and_what_to_do(left_out: list[str], reason: str) -> None:
    empty = {"rows": [], "left_out": left_out, "host": {}, "noise": 0.0}
    with pytest.raises(MeasureError, match=f"no matrix product could be timed, so peaks are unknown: {reason}"):
        document(Machine("cpu", 1, 1), empty, None)


def test_calibration_text_says_how_to_use_it_and_when_the_machine_is_noisy(measured: dict[str, Any]) -> None:
    text = calibration_text(measured, ["bench: no time left"], "machine.json")
    assert "precision-time predict MODEL --device machine.json --gpu this-cpu" in text
    assert "1 left out (bench: no time left)" in text
    assert "noisy" not in text
    (entry,) = measured["gpus"].values()
    entry["calibration"]["noise"] = 0.3
    assert "30.0% between equal measurements - a noisy machine" in calibration_text(measured, [], None)


def test_a_machine_too_noisy_to_measure_has_a_file_that_can_be_read(kernels: dict[str, Any]) -> None:
    """Half of 29 ms, between the quantiles of probes of 1 and 30 ms, is 14.5 times their median."""
    probes = {str(n): {"probe_s": 1e-3 if n < 85 else 30e-3} for n in range(100)}
    noise = session.noise_of(probes)
    content = document(Machine("cpu", 1, 1), {**kernels, "noise": noise}, None)
    calibration = catalog_of(content).gpu("this-cpu").calibration
    assert calibration is not None
    assert calibration.noise == noise == 10.0
    assert "1000% or more between equal measurements - this machine is too noisy" in calibration_text(content, [], None)


def test_output_is_checked_before_minutes_of_work(tmp_path: Path) -> None:
    with pytest.raises(MeasureError, match=r"end it in \.json"):
        check_output("device.yaml")
    with pytest.raises(DataError, match="there is no folder"):
        check_output(tmp_path / "nowhere" / "device.json")


def test_machine_here_refuses_absent_devices_and_cores() -> None:
    cores = machine.cores()
    assert Machine.here("cpu", 1, 1) == Machine("cpu", 1, 1)
    with pytest.raises(MeasureError, match="cannot be measured"):
        Machine.here("tpu")
    with pytest.raises(MeasureError, match=f"has {cores} cores"):
        Machine.here("cpu", cores + 1)
    with pytest.raises(MeasureError, match="use at most 1"):
        Machine.here("cpu", cores, 2)
    if not torch.cuda.is_available():
        with pytest.raises(MeasureError, match="has no CUDA device"):
            Machine.here("cuda")


def test_facts_of_the_cpu_are_a_device_entry() -> None:
    facts = machine.facts("cpu", 2)
    assert facts["mem_gb"] * 2 * 2**30 == pytest.approx(machine.memory_bytes(), rel=0.01)
    assert machine.description("cpu").endswith(sys.platform)


# --- verify ---------------------------------------------------------------------------------------------------------


def test_default_jobs_are_a_cnn_and_a_transformer_in_both_precisions_alone_and_together() -> None:
    jobs = jobs_here(Machine("cpu", 2, 1), [])
    assert [(j.model, j.precision, j.gpus) for j in jobs] == [
        (model, precision, ranks)
        for model in ("resnet50", "gpt")
        for precision in ("fp32", "amp-bf16")
        for ranks in (1, 2)
    ]
    assert all(j.gpu == "this-cpu" for j in jobs)
    assert len(jobs_here(Machine("cpu", 1, 1), [])) == 4
    for words in DEFAULT_JOBS["cuda"]:
        check(Job.from_dict(words))


def test_more_ranks_than_calibrated_are_refused() -> None:
    with pytest.raises(MeasureError, match="use at most 2"):
        jobs_here(Machine("cpu", 2, 1), [], ranks=[4])


def test_verification_counts_errors_and_noise_by_hand(measured: dict[str, Any], own_model: str) -> None:
    job = Job(own_model, gpu="this-cpu", batch_size=8)
    estimate = predict(job, catalog=catalog_of(measured))
    p50 = estimate.step.p50
    rows = (Verified(job, estimate, (p50, p50 * 1.02, p50 * 0.99), 0.01), Verified(job, estimate, (p50 / 2,) * 3, 0.01))
    found = Verification(rows, "a machine", 0.02)
    assert [row.error for row in found.rows] == pytest.approx([0.0, 1.0])
    assert found.rows[0].inside
    assert not found.rows[1].inside
    assert found.mape == pytest.approx(0.5)
    assert not found.noisy
    assert "mean error 50.0%, largest 100.0%" in str(found)
    assert "noisy" not in str(found)
    noisy = Verification((Verified(job, estimate, (p50, p50 * 1.5), 0.0),), "a machine", 0.02)
    assert "This machine is noisy" in str(noisy)
    assert json.loads(json.dumps(found.to_dict()))["n"] == 2


def test_calibrate_predict_and_train(own_model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stage gives what the next one needs. Accuracy is measured by benchmarks/verify.py, not here."""
    monkeypatch.setitem(suite.SCALES, "cpu", suite.Scale(0.0005, 4e4, 3, 2, 1, (1 << 12,)))
    monkeypatch.setattr(session, "LONGEST_POINT_S", 1e-4)
    monkeypatch.setattr(calibrate_module, "dtypes_of", lambda _: ["float32"])
    monkeypatch.setattr(
        calibrate_module, "launch", lambda task, *, report, **_: worker.run_task(task, CPU, report)
    )  # in this process: a plan this small is finished long before its budget
    here = Machine("cpu", 1, 1)
    found = calibrate(here, budget_s=600.0)
    assert found.left_out == ()
    jobs = jobs_here(here, [Job(own_model, batch_size=16)], ["fp32"], [1])
    result = verify(jobs, here, catalog_of(found.content), runs=1, steps=5)
    (row,) = result.rows
    assert row.measured_s > 0
    assert row.estimate.sources["measured"] + row.estimate.sources["interpolated"] > 0.5
    assert device_name(here) == row.job.gpu
    with pytest.raises(CatalogError):
        default_catalog().gpu("this-cpu")


@pytest.mark.slow
def test_ranks_of_this_machine_are_measured() -> None:
    if machine.cores() < 2:
        pytest.skip("needs two cores")
    found = measure_interference(Machine("cpu", 2, 1), ["float32"], time.monotonic() + 60.0)
    assert {"all_reduce", "broadcast"} == set(found["collectives"])
    assert all(seconds > 0 for points in found["collectives"].values() for _, seconds in points)
    assert {"matmul fp32", "conv fp32", "attention fp32"} <= set(found["contention"])


def test_the_help_names_the_precisions_that_are_trained() -> None:
    from precision_time.cli.measuring_arguments import VERIFY_PRECISIONS
    from precision_time.measure.verify import DEFAULT_PRECISIONS

    assert ",".join(DEFAULT_PRECISIONS) == VERIFY_PRECISIONS


def test_ranks_agree_on_a_count_in_one_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank may count in whole steps and another in parts of one; gloo refuses to reduce an int with a float."""
    sent: list[torch.dtype] = []
    monkeypatch.setattr(train.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(train.dist, "all_reduce", lambda tensor, op: sent.append(tensor.dtype))
    assert [train._agreed(count, CPU) for count in (3, 4.7, -1)] == [3, 4, 0]
    assert set(sent) == {torch.float64}


def test_rounds_take_the_median_of_every_point(monkeypatch: pytest.MonkeyPatch, measured: dict[str, Any]) -> None:
    """Three rounds of times 1, 4 and 2 are worth 2; points that no further round has stay as they are."""
    at = COLUMNS.index("seconds")
    content = json.loads(json.dumps(measured))
    kernels = content["gpus"]["this-cpu"]["calibration"]["kernels"]
    first, second = kernels["rows"][:2]
    first[at] = 1.0
    kept = second[at]
    answers = iter([4.0, 2.0])

    def again(*_: Any, **__: Any) -> dict[str, Any]:
        row = list(first)
        row[at] = next(answers)
        return {"rows": [row], "host": HOST}

    monkeypatch.setattr(rounds, "calibrate", lambda *_: Calibrated(content, ()))
    monkeypatch.setattr(rounds, "measure_kernels", again)
    found = rounds.Rounds(Machine("cpu", 2, 1), [], 1.0)
    found.again()
    assert first[at] == pytest.approx(2.5)
    found.again()
    assert (first[at], second[at]) == (2.0, kept)
    assert found.catalog().gpu("this-cpu").calibration is not None


def test_weights_and_state_are_as_in_a_long_training(own_model: str) -> None:
    """Tied embeddings of scale one make logits whose softmax underflows; rows never named would keep a zero state."""
    trainer = Trainer(Job(own_model, precision="fp32", optimizer="adamw"), CPU)
    trainer.step()
    embedding = next(m for m in trainer._whole.modules() if isinstance(m, torch.nn.Embedding))
    assert 0.01 < float(embedding.weight.detach().std()) < 0.03
    second = trainer._optimizer.state[embedding.weight]["exp_avg_sq"]
    assert bool((second > 0).all())
