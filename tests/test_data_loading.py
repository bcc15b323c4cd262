"""The loader in the whole line: first and later epochs, stalls in the breakdown, what is said, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import HOST, TWO, calibrated_catalog
from precision_time import Estimate, compare, predict, predict_time
from precision_time.cli.main import main
from precision_time.comparison import cross
from precision_time.errors import CatalogError, IngestError, JobError
from precision_time.hardware.storage import Storage, write_storage
from precision_time.job import Job

JOB: dict[str, Any] = {
    "model": "resnet50", "precision": "amp-fp16", "gpus": 8, "batch_size": 256, "epochs": 90, "dataset": "imagenet",
    "price_per_gpu_hour": 2.0, "start_up_s": 0,
}  # fmt: skip
NFS = {"bandwidth_gb_per_s": 1.0, "workers": 16, "decode_ms": 3}
"""A file server of 1 GB/s."""


def told(**data: Any) -> Estimate:
    return predict_time(**JOB, data=data)


def test_imagenet_on_eight_a100_from_a_file_server() -> None:
    plain, found = predict_time(**JOB), told(**NFS)
    loading = found.loading
    assert loading is not None
    assert loading.first_loader_s == pytest.approx(2048 * 110e3 / 1e9)  # 0.225 s, by hand in test_loader.py
    assert loading.first_step.p50 == pytest.approx(0.22528)
    assert loading.first_stall_s == pytest.approx(0.22528 - plain.step.p50)
    assert loading.first_binding == "storage bandwidth"
    assert loading.gb_per_s_to_hide == pytest.approx(2048 * 110e3 / 1e9 / plain.step.p50)
    assert loading.workers_to_hide is None
    # later epochs come from the page cache: 138 GiB of 819
    assert (loading.first_miss, loading.later_miss, loading.steady) == (1.0, 0.0, "later")
    assert found.step == plain.step
    assert found.breakdown == plain.breakdown
    assert loading.first_epoch is not None
    assert loading.later_epoch is not None
    assert found.run is not None
    assert loading.first_epoch.p50 > 626 * 0.22528
    assert found.epoch == loading.later_epoch
    assert found.epoch.p50 == pytest.approx(626 * plain.step.p50, rel=0.05)
    for q in ("p10", "p50", "p90"):
        whole = getattr(loading.first_epoch, q) + 89 * getattr(loading.later_epoch, q)
        assert getattr(found.run, q) == pytest.approx(whole)
    assert found.cost_usd is not None
    assert found.cost_usd.p50 == pytest.approx(found.run.p50 * 8 * 2 / 3600)
    text = " ".join(str(found).split())
    assert "first epoch of 626 steps" in text
    assert "later epoch of 626 steps" in text
    stall, hiding = loading.first_stall_s / 0.22528, loading.gb_per_s_to_hide
    assert f"first epoch: loader-bound by storage bandwidth, {stall:.0%} of a step; {hiding:.3g} GB/s would" in text
    assert "keeps up" not in "".join(found.assumptions)
    assert "data loading keeps up" in "".join(plain.assumptions)


def test_without_a_cache_every_step_waits() -> None:
    plain, found = predict_time(**JOB), told(**NFS, cache="none")
    stall = 2048 * 110e3 / 1e9 - plain.step.p50
    assert found.breakdown["loader_stall"] == pytest.approx(stall)
    assert sum(found.breakdown.values()) == pytest.approx(found.step.p50)
    assert found.samples_per_s == pytest.approx(1e9 / 110e3)  # the server's rate
    assert sum(found.sources.values()) == pytest.approx(1)
    assert found.sources["assumed"] > plain.sources["assumed"]
    assert found.loading is not None
    assert found.loading.first_epoch == found.loading.later_epoch
    assert found.loading.verdict.startswith("every epoch: loader-bound by storage bandwidth")
    assert "waiting for data" in str(found)
    # GPUs that wait draw less: the energy grows less than the time
    assert found.energy_j is not None
    assert plain.energy_j is not None
    assert found.run is not None
    assert plain.run is not None
    assert 1 < found.energy_j.p50 / plain.energy_j.p50 < found.run.p50 / plain.run.p50


def test_a_run_of_one_epoch_is_cold() -> None:
    short = {**JOB, "epochs": 1}
    found = predict_time(**short, data=NFS)
    assert found.loading is not None
    assert found.loading.steady == "first"
    assert found.step == found.loading.first_step
    assert found.epoch == found.loading.first_epoch
    assert found.run is not None
    for quantile in ("p10", "p50", "p90"):
        assert getattr(found.run, quantile) == pytest.approx(getattr(found.epoch, quantile))
    assert found.loading.verdict.startswith("first epoch: loader-bound")
    assert "later" not in found.loading.verdict
    steps = predict_time(**{**short, "epochs": None}, steps=100, data=NFS)
    assert steps.loading is not None
    assert steps.loading.steady == "first"
    assert steps.run is not None
    assert steps.run.p50 == pytest.approx(100 * 0.22528, rel=0.06)
    unknown = predict_time(**{**short, "epochs": None}, data=NFS)  # no length: the steady step, with the first beside
    assert unknown.loading is not None
    assert unknown.loading.steady == "later"
    assert unknown.run is None


def test_a_warm_cache_and_a_small_one() -> None:
    assert told(**NFS, cached=1.0).loading.first_stall_s == 0.0  # type: ignore[union-attr]
    half = 110e3 * 1_281_167 / 2**30 / 2
    lru, kept = (told(**NFS, cache_gib=half, cache_policy=policy).loading for policy in ("lru", "no-eviction"))
    assert lru is not None
    assert kept is not None
    assert kept.later_miss == pytest.approx(0.5)
    assert lru.later_miss == pytest.approx(1 - 0.153, abs=1e-3)  # 0.5 + 0.5 ln 0.5
    assert lru.later_step.p50 > kept.later_step.p50


def test_spread_is_that_of_what_binds() -> None:
    plain, slow = predict_time(**JOB), told(**NFS, cache="none")
    assert slow.step.p90 / slow.step.p50 == pytest.approx(1.469, abs=0.01)  # e^(1.2816 x 0.3): a storage of the catalog
    assert plain.step.p90 / plain.step.p50 < 1.25
    near = told(**{**NFS, "bandwidth_gb_per_s": 1.7}, cache="none")  # keeps up, but not surely
    assert near.step.p50 == plain.step.p50
    assert near.step.p90 > plain.step.p90


def test_a_measured_storage(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    write_storage(path, Storage("mine", 1e9, 1e9, 0.0, source="measured on a day"))
    found = told(storage=str(path), workers=16, decode_ms=3, cache="none")
    assert found.step.p50 == pytest.approx(0.22528)
    assert found.step.p90 / found.step.p50 == pytest.approx(1.137, abs=0.01)  # e^(1.2816 x 0.1)
    assert found.sources["measured"] > told(**NFS, cache="none").sources["measured"]
    assert "storage as usual" not in " ".join(found.assumptions)


def test_a_faster_precision_gains_nothing_where_the_loader_binds() -> None:
    base = Job.from_dict({**JOB, "data": {"storage": "sata-ssd", "cache": "none", "workers": 16}})
    tf32, half = (row.estimate for row in compare(cross(base, precision=["tf32", "amp-fp16"])).rows)
    assert tf32 is not None
    assert half is not None
    assert tf32.samples_per_s == pytest.approx(half.samples_per_s)
    text = " ".join(str(compare(cross(base, precision=["tf32", "amp-fp16"]))).split())
    assert "hardly faster than tf32, 1.00x" in text
    assert "the GPU waits for data during" in text
    assert "loader-bound by storage bandwidth" in text
    assert " data " in text


def test_json_reads_back(capsys: pytest.CaptureFixture[str]) -> None:
    for found in (told(**NFS), predict_time(**JOB)):
        assert Estimate.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    flags = "--gpus 8 --batch-size 256 --precision amp-fp16 --epochs 2 --dataset imagenet --json".split()
    assert main(["predict", "resnet50", "--data", "storage=nfs;workers=16", *flags]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["loading"]["storage"] == "nfs-10gbe"
    assert content["job"]["data"] == {"storage": "nfs", "workers": 16}


def test_flags_override_single_words_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.json"
    data = {"storage": "nfs-10gbe", "workers": 4, "decode_ms": 3}
    path.write_text(json.dumps({**JOB, "data": data}), encoding="utf-8")
    assert main(["predict", str(path), "--data", "workers=16;samples_per_s_per_worker=100", "--json"]) == 0
    kept = json.loads(capsys.readouterr().out)["job"]["data"]
    assert kept == {"storage": "nfs-10gbe", "workers": 16, "samples_per_s_per_worker": 100.0}


def test_the_words_round_trip() -> None:
    words = {"storage": "s3", "samples": 10, "workers": 0, "pin_memory": False, "cached": 0.5, "cache": "page-cache"}
    job = Job("resnet50", data=words)  # type: ignore[arg-type]
    assert Job.from_dict(json.loads(json.dumps(job.to_dict()))) == job
    assert job.to_dict()["data"] == words
    text = Job("resnet50", data="storage=s3;samples=10;workers=0;pin-memory=no;cached=.5;cache=page_cache")  # type: ignore[arg-type]
    assert text == job
    for nothing in ({}, None, ""):
        assert Job("resnet50", data=nothing) == Job("resnet50")
        assert not Job("resnet50").data
    assert "data" not in Job("resnet50").to_dict()


def test_trace_shows_the_loader() -> None:
    found = told(**NFS, cache="none")
    events = found.trace_events()["traceEvents"]
    named = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    lanes = {named[e["tid"]]: e for e in events if e["ph"] == "X" and e["cat"] == "loader"}
    assert lanes["loader"]["dur"] == pytest.approx(225_280)
    wait = lanes["loader stall"]
    assert wait["ts"] + wait["dur"] == pytest.approx(225_280)
    last = max(e["ts"] + e["dur"] for e in events if e["ph"] == "X" and e["cat"] != "loader")
    assert last <= wait["ts"] * 1.001
    assert not [e for e in predict_time(**JOB).trace_events()["traceEvents"] if e.get("cat") == "loader"]


def test_a_schedule_adds_up() -> None:
    words = {**JOB, "epochs": 2, "data": {"storage": "nfs", "cache": "none", "workers": 16}}
    parts = [{"from_step": 0, "precision": "fp32"}, {"from_step": 1000, "precision": "amp-fp16"}]
    fp32, half = (predict(Job.from_dict({**words, "precision": name})) for name in ("fp32", "amp-fp16"))
    both = predict(Job.from_dict({**words, "precision": parts}))
    assert both.run is not None
    assert half.run is not None
    filling = half.run.p50 - 1252 * half.step.p50  # of the queues, at the start of both epochs
    by_hand = 1000 * fp32.step.p50 + 252 * half.step.p50
    assert 0 < filling < 10
    assert both.run.p50 == pytest.approx(by_hand + filling)
    cached = {**words, "data": {"storage": "nfs", "workers": 16}}
    turned = [{"from_step": 0, "precision": "amp-fp16"}, {"from_step": 1000, "precision": "fp32"}]
    both, first = (predict(Job.from_dict({**cached, "precision": p})) for p in (turned, "amp-fp16"))
    slow = predict(Job.from_dict({**cached, "precision": "fp32"}))
    assert both.run is not None
    assert first.loading is not None
    assert slow.run is not None
    # the first 626 steps wait for the server, 374 of the second epoch are from the cache
    by_hand = 626 * first.loading.first_step.p50 + 374 * first.step.p50 + 252 * slow.step.p50
    assert both.run.p50 == pytest.approx(by_hand + slow.run.p50 - 1252 * slow.step.p50)


def test_language_models_in_layouts() -> None:
    words = {"model": "llama3-8b", "gpu": "h100-80gb-sxm", "gpus": 16, "precision": "bf16-master", "batch_size": 1,
             "layout": "tp=2,pp=2,zero=1", "grad_accum": 8, "dataset": "openwebtext", "epochs": 2}  # fmt: skip
    plain, fast = predict_time(**words), predict_time(**words, data={"storage": "lustre"})
    assert fast.step == plain.step
    assert fast.breakdown == plain.breakdown
    assert fast.loading is not None
    assert fast.loading.verdict.startswith("data loading keeps up")
    assert "sizes" not in fast.loading.verdict
    # four replicas load: 32 samples a step, 8,192 tokens of two bytes each
    slow = predict_time(**words, data={"bandwidth_gb_per_s": 1e-4, "shared": True, "cache": "none"})
    assert slow.step.p50 == pytest.approx(32 * 8192 * 2 / 1e5)
    assert sum(slow.breakdown.values()) == pytest.approx(slow.step.p50)


def test_a_cpu_shares_its_cores() -> None:
    catalog = calibrated_catalog(TWO, host=HOST, threads=2)
    job = Job.from_dict({"model": "resnet50", "gpu": "this-cpu", "batch_size": 8, "dataset": "imagenet", "epochs": 2})
    plain = predict(job, catalog=catalog)
    found = predict(job.replace(data={"storage": "nvme", "decode_ms": 10}), catalog=catalog)
    assert found.loading is not None
    assert found.loading.binding == "cores shared with training"
    assert found.step.p50 == pytest.approx(plain.step.p50 + 8 * 10e-3 / 2)  # 80 ms of one core, on both
    assert "cores would hide it" in found.loading.verdict
    assert found.loading.later_miss > 0.3  # 103 GiB of its memory hold three quarters of 131 GiB, in no order
    spare = predict(job.replace(data={"storage": "nvme", "decode_ms": 10, "cores": 4}), catalog=catalog)
    assert spare.step.p50 == plain.step.p50


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"data": {"storage": "nvme-gen9"}}, CatalogError, "unknown storage 'nvme-gen9'; nearest: .*nvme-gen4"),
        ({"data": {"storage": "gone.yaml"}}, Exception, "cannot be read"),
        ({"data": {"storage": "nfs"}, "dataset": "xsum"}, IngestError, "no bytes_per_sample, and dataset 'xsum'"),
        ({"data": {"storage": "nfs", "bytes_per_sample": 9}, "dataset": "xsum"}, IngestError, "neither format nor"),
        (
            {"data": {"storage": "nfs"}, "gpu": "l4", "gpus": 1, "batch_size": 8},
            IngestError,
            "does not know the memory of pcie4-server; add cache_gib",
        ),
        ({"data": {"workers": 4}}, JobError, "add storage"),
        (
            {"data": {"storage": "nfs", "samples": 0}},
            JobError,
            r"data\.samples must be a whole number of samples from 1 to 1e15",
        ),
        (
            {"data": {"storage": "nfs", "reader_efficiency": 0}},
            JobError,
            "reader_efficiency must be a number from 0.001 to 1, not 0; for example reader_efficiency: 0.5",
        ),
    ],
)
def test_what_is_refused(change: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        predict_time(**{**JOB, **change})


def test_a_cache_needs_the_number_of_samples() -> None:
    words = {"model": "resnet50", "gpus": 8, "dataset": "mine", "dataset_size": 1000}
    data = {"storage": "nfs", "bytes_per_sample": 1e5, "format": "jpeg"}
    assert predict_time(**words, data=data).loading is not None
    assert predict_time("resnet50", data={**data, "samples": 1000}, epochs=2).steps_per_epoch == 4


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["nfs", "s3", "disk", "nvme", "lustre", "gp3", "sata"]),
    st.integers(0, 24),
    st.sampled_from([None, "none", "page-cache"]),
    st.floats(0.5, 5),
    st.sampled_from([1, 8, 16]),
)
def test_every_estimate_holds_together(storage: str, workers: int, cache: str | None, epochs: float, gpus: int) -> None:
    data = {"storage": storage, "workers": workers, "cache": cache}
    found = predict_time(**{**JOB, "epochs": epochs, "gpus": gpus}, data=data)
    loading, run = found.loading, found.run
    assert loading is not None
    assert run is not None
    assert loading.first_epoch is not None
    assert loading.later_epoch is not None
    assert sum(found.breakdown.values()) == pytest.approx(found.step.p50, rel=1e-9)
    assert min(found.breakdown.values()) >= 0
    for interval in (found.step, found.epoch, run, loading.first_step, loading.later_step, loading.first_epoch):
        assert interval is not None
        assert 0 < interval.p10 < interval.p50 < interval.p90
    assert loading.later_step.p50 <= loading.first_step.p50 * (1 + 1e-9)
    assert loading.later_epoch.p50 <= loading.first_epoch.p50 * (1 + 1e-9)
    per_epoch = found.steps_per_epoch
    assert per_epoch is not None
    assert found.steps is not None
    if epochs >= 1:
        later = (found.steps / per_epoch - 1) * loading.later_epoch.p50
        assert run.p50 == pytest.approx(loading.first_epoch.p50 + later)
    assert sum(found.sources.values()) == pytest.approx(1)
