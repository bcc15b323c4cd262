"""Jobs on calibrated devices: a CPU does one thing after another, its file is checked, its autocast is its own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fakes import HOST, TWO, US, calibrated_catalog, device, device_document, kernel_row, product, traffic
from precision_time.capture.captured_model import capture_model
from precision_time.capture.optimizer import tail
from precision_time.errors import CatalogError, DataError
from precision_time.hardware import load_device_file
from precision_time.job import Job
from precision_time.prediction import predict
from precision_time.timing.calibrated import contention_factors
from precision_time.timing.collectives import collective_seconds
from precision_time.timing.constants import StepConstants
from precision_time.timing.host import RelativeCosts, host_costs, measured_host_costs, relative_costs
from precision_time.timing.kernels import WorkTable
from precision_time.timing.measured_collectives import measured_collective
from precision_time.timing.work import Convolution, conv_work

Row = list[Any]


def calibrated_job(tmp_path: Path, rows: Sequence[Row] = (), **fields: Any) -> Job:
    path = tmp_path / "device.json"
    if rows:
        collectives = {"all_reduce": {"2": [[1e5, 5e-4], [1e8, 0.5]]}, "broadcast": {"2": [[1e3, 1e-6]]}}
        contention = {"2": {"compute": 1.1, "memory": 1.5}}
        document = device_document(rows, host=HOST, collectives=collectives, contention=contention)
        path.write_text(json.dumps(document))
    return Job(**{"model": "resnet50", "batch_size": 8, "gpu": "this-cpu", "device": str(path), **fields})


ROWS = [
    *TWO,
    *(
        kernel_row("aten.mm", work, 10 * US + work.flops / 5e10)
        for work in (product(8, 1000, 2048), product(64, 64, 64))
    ),
    *(
        kernel_row(
            "aten.convolution" if way == "fwd" else "aten.convolution_backward", conv, 20 * US + conv.flops / 4e10
        )
        for width, channels in ((56, 64), (28, 128), (14, 256), (7, 512))
        for way in ("fwd", "dgrad", "wgrad")
        for side in [(width, width)]
        for conv in [
            conv_work(Convolution(8, channels, channels, side, side, (3, 3), (1, 1), 1), "fp32", 4, direction=way)
        ]
    ),
]


def test_a_cpu_does_one_thing_after_another(tmp_path: Path) -> None:
    one = predict(calibrated_job(tmp_path, ROWS))
    assert one.breakdown["host_gaps"] > 100 * US
    assert sum(one.breakdown.values()) == pytest.approx(one.step.p50)
    assert one.sources["learned"] == 0
    two = predict(calibrated_job(tmp_path, gpus=2))
    # gradients of 25,557,032 float32 weights at 5 ns a byte; the statistics and counters of 53 batch norms at 1 ns
    expected = 25_557_032 * 4 * 5e-9 + (53_120 * 4 + 53 * 8) * 1e-9
    assert two.breakdown["communication_exposed"] == pytest.approx(expected, rel=1e-6)
    assert two.communication_hidden_s == pytest.approx(0, abs=1e-12)
    slower = two.breakdown["forward"] / one.breakdown["forward"]
    assert 1.1 < slower < 1.5
    assert two.sources["measured"] > two.breakdown["communication_exposed"] / two.step.p50
    events = [e for e in two.trace_events()["traceEvents"] if e["ph"] == "X"]
    ends = sorted((e["ts"], e["ts"] + e["dur"]) for e in events)
    assert all(end <= start + 1e-6 for (_, end), (start, _) in pairwise(ends))


def test_the_answer_says_that_the_device_was_calibrated(tmp_path: Path) -> None:
    found = predict(calibrated_job(tmp_path, ROWS))
    assert "device calibrated on 2026-11-21, noise 4.0 %" in found.assumptions
    assert not any("energy" in said or "PyTorch on Ampere" in said for said in found.assumptions)
    assert found.energy_j is None
    assert found.memory.capacity_bytes == 16 << 30
    assert 250 << 20 < found.memory.by_category["framework and fragmentation"] < 400 << 20


def test_a_device_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    before = predict(calibrated_job(tmp_path, ROWS)).step.p50
    slower = [[*row[:-2], 3 * row[-2], row[-1]] for row in ROWS]
    assert predict(calibrated_job(tmp_path, slower)).step.p50 > 2 * before


def test_a_noisy_machine_has_a_wider_interval(tmp_path: Path) -> None:
    quiet, noisy = (
        predict(calibrated_job(tmp_path, gpu="this-cpu"), catalog=calibrated_catalog(ROWS, noise=noise)).step
        for noise in (0.01, 0.3)
    )
    assert quiet.p50 == noisy.p50
    assert quiet.p90 / quiet.p50 < noisy.p90 / noisy.p50


def test_factors_fitted_on_other_devices_do_not_touch_measured_kernels(tmp_path: Path) -> None:
    job = calibrated_job(tmp_path, ROWS)
    scaled = StepConstants(scales={"conv|*|*": 3.0}, execution={"eager": 2.0}, host={"tensor": 5.0})
    first, second = (predict(job, constants=constants).step.p50 for constants in (StepConstants(), scaled))
    assert first == pytest.approx(second)


def test_contention_takes_the_nearest_count_not_below() -> None:
    gpu = device(TWO, contention={"8": {"compute": 1.5, "memory": 3.0}, "2": {"compute": 1.1, "memory": 1.2}})
    assert gpu.calibration is not None
    table = WorkTable.from_works([product(8, 8, 8), traffic(1)])
    found = [contention_factors(table, gpu.calibration, ranks).tolist() for ranks in (1, 2, 3, 8, 64)]
    assert found == [[1, 1], [1.1, 1.2], [1.5, 3.0], [1.5, 3.0], [1.5, 3.0]]


def test_collectives_between_measured_sizes() -> None:
    catalog = calibrated_catalog(TWO, collectives={"all_reduce": {"2": [[1e4, 1e-3], [1e6, 1e-1]]}})
    pair = catalog.cluster("this-cpu", 2)
    found = measured_collective("all_reduce", [0, 1e2, 1e5, 1e7], pair)
    assert found is not None
    assert found.seconds == pytest.approx([0, 1e-3, 1e-2, 1.0])
    assert found.source == "measured"
    assert measured_collective("all_reduce", [1e5], catalog.cluster("this-cpu", 4)) is None
    assert measured_collective("broadcast", [1e5], pair) is None
    assert measured_collective("all_reduce", [1e5], catalog.cluster("this-cpu", 2, nodes=1)) is not None
    # where nothing was measured the fabric's bus bandwidth counts, as on PCIe
    assert collective_seconds("broadcast", 1.5e9, pair).seconds == pytest.approx(1.0, rel=0.25)


def test_host_figures_replace_those_that_ship() -> None:
    calibration = device(TWO, host=HOST).calibration
    assert calibration is not None
    assert calibration.host is not None
    eager = measured_host_costs(calibration.host, "eager")
    assert (eager.operator_s, eager.step_s, eager.backward_share) == (4 * US, 100 * US, 0.5)
    assert eager.relative == relative_costs() != RelativeCosts()
    assert measured_host_costs(calibration.host, "eager", False).relative == RelativeCosts()  # of a CPU
    compiled, shipped = measured_host_costs(calibration.host, "compile"), host_costs("compile")
    assert compiled.operator_s / shipped.operator_s == pytest.approx(4.0 / (host_costs("eager").operator_s / US))


# --- the file -----------------------------------------------------------------------------------------------------


def test_equal_calibrations_are_equal_and_others_are_not() -> None:
    same, again, other = device(TWO), device(TWO), device(TWO, noise=0.05)
    assert same is not again
    assert (same, hash(same)) == (again, hash(again))
    assert same != other
    assert hash(same) != hash(other)


GOOD = kernel_row("aten.add", traffic(1), 1e-4)


def row(**changes: Any) -> Row:
    columns = device_document([])["gpus"]["this-cpu"]["calibration"]["kernels"]["columns"]
    return [changes.get(name, value) for name, value in zip(columns, GOOD, strict=True)]


@pytest.mark.parametrize(
    ("calibration", "says"),
    [
        ({"kernels": {"columns": ["operator"], "rows": []}}, "kernels: column family is given 0 times"),
        ({"kernels": {"columns": ["operatr"], "rows": []}}, "unknown column 'operatr'; nearest: operator"),
        ({"kernels": {"rows": []}}, "columns or rows is missing"),
        ({"kernels": None}, "kernels is missing"),
        ({"rows": [GOOD, GOOD[:-1]]}, r"kernels: row 2 is .*give 18 values"),
        ({"rows": [GOOD, row(seconds=0)]}, "row 2: seconds must be a number of seconds from 1e-9 to 1,000,000, not 0"),
        ({"rows": [row(bytes=-4.0)]}, "row 1: bytes must be 0 or a number from 1e-12 to 1e24, not -4.0"),
        ({"rows": [row(flops="many")]}, "row 1: flops must be .* not 'many'"),
        ({"rows": [row(m=None)]}, "row 1: m must be .* not None"),
        ({"rows": [row(k=1e24)]}, "row 1: k must be 0 or a number from 1e-12 to 1e15, not 1e"),
        ({"rows": [row(spread=1000.0)]}, "row 1: spread must be 0 or a number from 1e-12 to 10, not 1000"),
        ({"rows": [GOOD, row(math="fp33")]}, "row 2: math is 'fp33'; use one of vector, fp64"),
        ({"rows": [row(dtype="fp32")]}, "row 1: dtype is 'fp32'; use one of float32"),
        ({"rows": [row(operator=3)]}, "row 1: operator is 3; use a name"),
        ({"rows": [row(math="tf32")]}, "rows in tf32, but tf32_tflops is missing"),
        ({"noise": -1}, "noise must be 0 or a number from 1e-6 to 10, not -1"),
        ({"noise": None}, "noise is missing"),
        ({"nois": 1}, "unknown key 'nois'; nearest: noise"),
        ({"host": {**HOST, "operator_us": "fast"}}, "host: operator_us must be 0 or a number of microseconds .*'fast'"),
        ({"host": {"operator_us": 1}}, "host: view_us is missing"),
        ({"contention": {"2": {"compute": 1.1}}}, "contention: 2: memory is missing"),
        (
            {"contention": {"two": {"compute": 1.1, "memory": 1}}},
            "number of ranks must be a whole number of ranks from 1 to 65,536, not 'two'",
        ),
        ({"collectives": {"all_reduces": {}}}, "unknown collective 'all_reduces'; use one of all_reduce"),
        ({"collectives": {"all_reduce": {"2": [1e5, 1e-3]}}}, r"all_reduce: 2 is \[.*list of \[bytes, seconds\]"),
        (
            {"collectives": {"all_reduce": {"2": [[1e5, 0]]}}},
            "all_reduce: 2: seconds must be a number of seconds .* not 0",
        ),
        ({"device_type": "gpu"}, "device_type 'gpu' is unknown; nearest: cpu"),
    ],
)
def test_a_wrong_calibration_is_refused_in_one_sentence(tmp_path: Path, calibration: dict[str, Any], says: str) -> None:
    given_type = calibration.pop("device_type", "cpu")
    document = device_document(calibration.pop("rows", [GOOD]), given_type, **calibration)
    path = tmp_path / "device.json"
    path.write_text(json.dumps(document))
    with pytest.raises(CatalogError, match=says) as caught:
        load_device_file(path)
    assert str(caught.value).startswith(f"{path}: gpus: this-cpu")
    assert "\n" not in str(caught.value)


def test_a_broken_json_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "device.json"
    path.write_text('{"gpus": ')
    with pytest.raises(DataError, match=r"device.json. is not valid JSON"):
        load_device_file(path)


# --- capture: what a CPU does differently ---------------------------------------------------------------------------

OWN = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(32, 64)

    def forward(self, x):
        return torch.softmax(self.up(x), -1)

def make_job(batch_size=4):
    return Net(), torch.zeros(batch_size, 32), lambda y: y.float().sum(), "adam"
"""


def softmax_dtypes(model: str, precision: str, device_type: str) -> set[str]:
    job = Job(model, precision=precision, attention="math", batch_size=2)
    graph = capture_model(job, device_type=device_type).graph
    return {kind.outputs[0].dtype for kind in graph.kinds if kind.name == "aten._softmax"}


@pytest.mark.parametrize(("precision", "low"), [("amp-bf16", "bfloat16"), ("amp-fp16", "float16")])
@pytest.mark.parametrize("named", [True, False])
def test_autocast_on_a_cpu_follows_its_own_lists(tmp_path: Path, named: bool, precision: str, low: str) -> None:
    """CUDA autocast runs softmax in float32; the CPU's lists leave it in the low precision."""
    pytest.importorskip("torch")
    path = tmp_path / "own.py"
    path.write_text(OWN)
    model = "vit-b-16" if named else f"{path}:make_job"
    assert softmax_dtypes(model, precision, "cuda") == {"float32"}
    assert softmax_dtypes(model, precision, "cpu") == {low}


def host_calls(implementation: str | None, device_type: str) -> set[object]:
    """Host calls of every pass of the optimizer over ResNet-50's 161 tensors."""
    model = capture_model(Job("resnet50", optimizer="sgd", optimizer_impl=implementation), device_type=device_type)
    update = tail(model.graph.parameters, model.precision, model.optimizer, model.implementation)
    return {signature.attr("host_calls") for _, signature in update.operators}


@pytest.mark.parametrize(("implementation", "calls"), [(None, 161), ("foreach", 1)])
def test_optimizers_loop_over_tensors_on_a_cpu(implementation: str | None, calls: int) -> None:
    assert host_calls(implementation, "cpu") == {calls}
    assert host_calls(None, "cuda") == {1}


def test_a_model_file_may_define_dataclasses(tmp_path: Path) -> None:
    """With postponed annotations a dataclass looks its module up while it is made."""
    pytest.importorskip("torch")
    path = tmp_path / "configured.py"
    path.write_text(
        "from __future__ import annotations\n"
        "import dataclasses\n" + OWN + "\n@dataclasses.dataclass\nclass Settings:\n    width: int = 64\n"
    )
    assert capture_model(Job(f"{path}:make_job")).batch_size == 4
