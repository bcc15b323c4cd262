"""Operators profiled on the machine at hand: a real CPU, a tiny network, and what a profile file keeps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fakes import HOST, TWO, device_document
from precision_time.capture.graph import OpSignature, TensorSpec
from precision_time.errors import DataError, MeasureError, PredictorError
from precision_time.job import Job
from precision_time.measure.clock import Timed
from precision_time.measure.point import Point
from precision_time.predictors import operator_profile
from precision_time.predictors.additive import Additive
from precision_time.predictors.additive_local import local_step
from precision_time.predictors.interface import MeasuredJob
from precision_time.predictors.operator_profile import BESIDE, OperatorProfile, device_at_hand, profile_operators
from precision_time.timing.operators import WorkOptions

torch = pytest.importorskip("torch")

MODEL = """
import torch
from torch import nn

def make_job(batch_size=4):
    model = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))
    loss = nn.functional.cross_entropy
    return model, torch.randn(batch_size, 3, 8, 8), loss, "sgd", torch.zeros(batch_size, dtype=torch.long)
"""
PLAIN = WorkOptions()


def spec(*shape: int, dtype: str = "float32") -> TensorSpec:
    return TensorSpec(shape, dtype)


def point(kind: OpSignature, seconds: float) -> Point:
    return Point(kind, PLAIN, Timed(seconds, 0.01, 5, seconds))


def product(layout: str | None, dtype: str = "float32") -> OpSignature:
    attrs = (("layout", layout),) if layout else ()
    return OpSignature("aten.mm", (spec(2, 3, dtype=dtype), spec(3, 4, dtype=dtype)), (spec(2, 4, dtype=dtype),), attrs)


def test_an_operator_is_looked_up_by_shape_dtype_and_memory_layout() -> None:
    profile = OperatorProfile("this-cpu", (point(product("nn"), 1.0), point(product("nt"), 2.0)))
    assert [profile.time(product(w), PLAIN).seconds for w in ("nn", "nt")] == [1.0, 2.0]  # type: ignore[union-attr]
    assert profile.time(product(None), PLAIN).seconds == 1.0  # type: ignore[union-attr]  # a graph that does not say
    assert profile.time(product("tn"), PLAIN) is None
    assert profile.time(product("nn", "bfloat16"), PLAIN) is None
    assert profile.time(product("nn"), WorkOptions(True, False)) is None
    again = OperatorProfile.from_json(json.loads(json.dumps(profile.to_json())))
    assert again == profile
    assert again.time(product("nt"), PLAIN) == profile.time(product("nt"), PLAIN)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("profile")
    (path / "net.py").write_text(MODEL)
    here = device_at_hand().partition("(")[2].removesuffix(")")
    (path / "device.json").write_text(json.dumps(device_document(TWO, host=HOST, machine=here)))
    return path


def job_of(folder: Path, precision: str = "fp32") -> Job:
    return Job(str(folder / "net.py") + ":make_job", precision=precision, gpu="this-cpu",
               device=str(folder / "device.json"), batch_size=4)  # fmt: skip


@pytest.mark.slow
def test_a_real_network_end_to_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every operator is measured once, forward and backward, and the four terms are the sum of what was measured."""
    job = job_of(folder)
    model = Additive(budget_s=600.0, journal=folder / "points.jsonl", threads=1)
    model.fit([MeasuredJob("net", job, float("nan"), "own"), MeasuredJob("again", job, float("nan"), "own")])
    added = model.added(job)
    assert added.shares == {"profiled": pytest.approx(1.0)}
    lines = (folder / "points.jsonl").read_text().splitlines()
    points = [Point.from_json(p) for line in lines for p in json.loads(line).get("points", ())]
    profile = OperatorProfile("this-cpu", tuple(points))
    step = local_step(job, "cpu")
    by_hand = sum(n * profile.time(k, PLAIN).seconds for k, n in zip(step.kinds, step.calls[0], strict=True) if n)  # type: ignore[union-attr]
    assert added.terms.compute_s == added.terms.seconds == pytest.approx(by_hand, rel=1e-5)  # points are rounded
    names = [p.kind.name for p in points]
    assert names.count("aten.convolution") == names.count("aten.convolution_backward") == 1
    cost = model.cost()
    assert cost.runs == len(points) == len({p.kind for p in points})
    assert cost.measured_s > 0
    assert cost.fit_s > 0
    model.save(folder / "saved")
    assert Additive.load(folder / "saved").predict(job) == model.predict(job)
    # In another precision nothing was profiled: the device file stands in, and the forecast says so.
    assert "profiled" not in model.added(job_of(folder, "bf16")).shares
    # Again, with nothing to spend: everything comes from the journal.
    before = (folder / "points.jsonl").read_text()
    again = Additive(budget_s=1e-6, journal=folder / "points.jsonl", threads=1)
    again.fit([MeasuredJob("net", job, 1.0, "own")])
    assert again.predict(job) == model.predict(job)
    assert again.cost().measured_s == cost.measured_s
    assert (folder / "points.jsonl").read_text() == before
    # A profile beside the device file is taken without being asked for; another machine's is not.
    other = OperatorProfile("this-cpu (another)", profile.points, 1.0)
    other.write(folder / BESIDE)
    beside = Additive()
    beside.fit([MeasuredJob("net", job, 1.0, "own")])
    assert "profiled" not in beside.added(job).shares
    OperatorProfile(device_at_hand(), profile.points, 1.5).write(folder / BESIDE)
    beside.fit([MeasuredJob("net", job, 1.0, "own")])
    assert beside.predict(job).seconds == pytest.approx(model.predict(job).seconds, rel=1e-5)
    assert beside.cost().measured_s == 1.5
    (folder / BESIDE).write_bytes(b"no profile")
    with pytest.raises(DataError, match=r"operators.zip\' is no archive with operators.json \(BadZipFile\)"):
        beside.fit([MeasuredJob("net", job, 1.0, "own")])
    (folder / BESIDE).unlink()


def test_a_profile_goes_on_where_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker's own task, in this process, with a clock that says the budget is spent after two operators."""
    from precision_time.journal import read
    from precision_time.measure import profile, session

    (tmp_path / "net.py").write_text(MODEL)
    job = Job(str(tmp_path / "net.py") + ":make_job", batch_size=4)
    task: dict[str, Any] = {"jobs": [job.to_dict()], "budget_s": 1e9, "journal": str(tmp_path / "points.jsonl")}
    cpu = torch.device("cpu")
    seen: list[tuple[int, int]] = []
    monkeypatch.setattr(session, "LONGEST_POINT_S", 1e-4)
    whole = session.run_plan

    def two(plan: Any, *rest: Any) -> list[str]:
        whole(plan[:2], *rest)
        return ["the rest: no time left"]

    monkeypatch.setattr(profile, "run_plan", two)
    first = profile.profile_task(task, cpu, lambda done, total: seen.append((done, total)))
    assert first["left_out"]
    assert first["spent_s"] > 0
    begun = {label for label, record in read(task["journal"])[1].items() if "points" in record}
    assert len(begun) == 2
    monkeypatch.setattr(profile, "run_plan", whole)
    second = profile.profile_task(task, cpu, lambda done, total: seen.append((done, total)))
    records = read(task["journal"])[1]
    labels = {label for label, record in records.items() if "points" in record}
    assert begun < labels
    assert not second["left_out"]
    third = profile.profile_task(task, cpu, lambda done, total: None)
    assert third["spent_s"] == 0.0
    assert read(task["journal"])[1] == records


def test_local_shapes_of_a_tensor_parallel_rank_are_recorded() -> None:
    """Every operator that a rank's program runs has a recorded call; random numbers (arange) have no tensor to time."""
    from precision_time.measure.profile import record_local

    config = {"layers": 2, "hidden": 32, "heads": 4, "ffn": 64, "vocab": 256}
    job = Job("gpt", model_config=config, input={"seq_len": 16}, gpus=4, layout="tp=2,dp=2,sp=1", batch_size=2)
    recorded = {_bare(each.kind) for each in record_local(job, "cuda")}
    step = local_step(job, "cuda")
    lacking = {k.name for k, n in zip(step.kinds, step.calls[0], strict=True) if n and _bare(k) not in recorded}
    assert lacking <= {"aten.arange", "aten.full", "aten.ones"}
    whole = {_bare(each.kind) for each in record_local(job.replace(layout="dp"), "cuda")}
    assert recorded - whole


def _bare(kind: OpSignature) -> OpSignature:
    return OpSignature(kind.name, kind.inputs, kind.outputs, tuple(a for a in kind.attrs if a[0] != "layout"))


def test_what_cannot_be_profiled_here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = Job("resnet50", gpu="a100-80gb-sxm", batch_size=8)
    with pytest.raises(PredictorError, match=r"budget of 1 s to profile operators on this-.*, but no job is on it"):
        Additive(budget_s=1.0).fit([MeasuredJob("x", elsewhere, 1.0, "cnn")])
    (folder / "other.jsonl").write_text(json.dumps({"header": {"format": 1, "machine": "another"}}) + "\n")
    with pytest.raises(MeasureError, match="was begun with machine 'another'"):
        profile_operators([job_of(folder)], 1.0, folder / "other.jsonl", threads=1)
    assert operator_profile.OperatorProfile().time(product("nn"), PLAIN) is None


def test_the_profile_of_the_real_runs() -> None:
    """It lies beside their device file, is of the same machine and holds every operator of a network."""
    folder = Path(__file__).parents[1] / "data" / "small_networks"
    profile = OperatorProfile.read(folder / BESIDE)
    assert len(profile) > 10_000
    assert profile.spent_s > 100
    job = Job("small-resnet20", model_config={"classes": 10}, input={"image_size": 32}, precision="amp-bf16",
              batch_size=16, gpu="this-cpu", device=str(folder / "device.json"))  # fmt: skip
    model = Additive()
    model.fit([MeasuredJob("run", job, float("nan"), "resnet")])
    assert model.added(job).shares["profiled"] > 0.99
    assert model.cost().runs == len(profile)
