"""The per-operator additive model: its four equations by hand, its volumes, its layouts, its twin, its files."""

from __future__ import annotations

import json
from collections import Counter
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.papers.every_layout import degrees, every_layout
from fakes import HOST, device_document, kernel_row, product, traffic
from precision_time.capture.training_step import training_step
from precision_time.errors import DataError, MissingPeakError, PredictorError
from precision_time.hardware import default_catalog
from precision_time.job import Job
from precision_time.layout.options import Options
from precision_time.layout.step_program import step_program
from precision_time.predictors.additive import Additive, BlindAdditive
from precision_time.predictors.additive_equations import Terms, additive, bandwidth, ring_volume
from precision_time.predictors.additive_local import local_step
from precision_time.predictors.interface import Forecast, MeasuredJob, Predictor
from precision_time.predictors.registry import predictor_class


def measured(*jobs: Job) -> list[MeasuredJob]:
    """Their times are never looked at."""
    return [MeasuredJob(f"job {i}", job, float("nan"), "a family") for i, job in enumerate(jobs)]


def fitted(*jobs: Job, kind: type[Additive] = Additive) -> Additive:
    found = kind()
    found.fit(measured(*jobs))
    return found


H100 = Job("bert-base", precision="amp-bf16", gpu="h100-sxm", gpus=8, batch_size=4, input={"seq_len": 128})


# --- the equations ------------------------------------------------------------------------------------------------


def test_the_four_terms_by_hand() -> None:
    """0.2 s of compute, 3 GB at 100 GB/s, 1 GB at 200 GB/s, 4 stages."""
    found = additive(0.2, 3e9, 100e9, 1e9, 200e9, 4)
    assert found == Terms(0.2, pytest.approx(0.03), pytest.approx(0.005), pytest.approx(0.6))
    assert found.seconds == pytest.approx(0.835)


def test_what_is_not_sent_needs_no_bandwidth() -> None:
    assert additive(1.0, 0.0, 0.0, 0.0, 0.0, 1) == Terms(1.0, 0.0, 0.0, 0.0)


@given(st.floats(1e-6, 1e3), st.floats(1.0, 1e12), st.integers(1, 64))
def test_total_is_the_sum_of_the_terms_and_never_below_compute(compute: float, volume: float, pp: int) -> None:
    terms = additive(compute, volume, 1e9, volume, 2e9, pp)
    assert terms.seconds == pytest.approx(pp * compute + 1.5 * volume / 1e9)
    assert terms.seconds >= terms.compute_s


def test_a_ring_sends_each_byte_so_often() -> None:
    assert ring_volume([("all_reduce", 800.0)], 4) == pytest.approx(1200)  # 2 x 3/4
    assert ring_volume([("reduce_scatter", 400.0), ("all_gather", 400.0)], 4) == pytest.approx(600)  # as one all-reduce
    assert ring_volume([("all_reduce", 800.0)], 1) == 0.0
    with pytest.raises(
        PredictorError, match="no volume for all_to_all; it knows all_reduce, all_gather, reduce_scatter"
    ):
        ring_volume([("all_to_all", 1.0)], 2)


def test_bandwidth_is_that_of_the_slowest_link_of_the_ring() -> None:
    one_node = default_catalog().cluster("h100-sxm", 8)
    assert bandwidth(one_node.world) == one_node.intra.bus_bytes_per_s(8)
    two_nodes = default_catalog().cluster("h100-sxm", 16)
    assert bandwidth(two_nodes.world) == min(two_nodes.world.bus_bytes_per_s, two_nodes.world.neighbour_bytes_per_s)


# --- what a rank runs and sends -------------------------------------------------------------------------------------


def test_volume_of_data_parallelism_is_the_gradients_in_the_dtype_reduced() -> None:
    """2 x 7/8 of 25,557,032 gradients: 4 bytes each under autocast as in fp32, 2 with half weights."""
    for precision, width in (("fp32", 4), ("amp-fp16", 4), ("fp16-master", 2), ("bf16", 2)):
        job = Job("resnet50", precision=precision, gpu="a100-80gb-sxm", gpus=8, batch_size=8)
        found = fitted(job).added(job)
        assert found.data_bytes == pytest.approx(2 * 7 / 8 * 25_557_032 * width, rel=1e-12), precision
        assert found.terms.data_s == pytest.approx(found.data_bytes / found.data_bytes_per_s)
        assert found.terms.tensor_s == found.terms.pipeline_s == 0.0


def test_accumulation_repeats_compute_and_not_the_reduction() -> None:
    one = Job("resnet50", gpu="a100-80gb-sxm", gpus=8, batch_size=8)
    four = one.replace(grad_accum=4)
    every = four.replace(no_sync=False)
    model = fitted(one)
    assert model.added(four).terms.compute_s == pytest.approx(4 * model.added(one).terms.compute_s)
    assert model.added(four).data_bytes == model.added(one).data_bytes
    assert model.added(every).data_bytes == 4 * model.added(one).data_bytes


def test_sharded_states_exchange_the_bytes_of_an_all_reduce() -> None:
    """A reduce-scatter and an all-gather. Neither changes what the model computes."""
    plain = fitted(H100).added(H100)
    sharded = fitted(H100).added(H100.replace(layout="zero1"))
    assert sharded.data_bytes == pytest.approx(plain.data_bytes, rel=1e-6)
    assert sharded.terms.compute_s == pytest.approx(plain.terms.compute_s, rel=1e-12)


def test_volumes_of_tensor_parallelism_are_those_of_the_layout() -> None:
    job = H100.replace(layout="tp=2,pp=2,dp=2", grad_accum=3)
    program = step_program(training_step(job), job.layout_spec, Options.of(job))
    by_stage = []
    for stage in program.stages:
        sent = 0.0
        for chunk in stage.chunks:
            for unit, times, _ in chunk.units:
                exchanges = (*program.units[unit].forward_collectives, *program.units[unit].backward_collectives)
                sent += times * sum(e.nbytes * e.times for e in exchanges)
        by_stage.append(sent * 3)  # all-reduces between two ranks: each sends the buffer once
    assert fitted(job).added(job).tensor_bytes == pytest.approx(max(by_stage))
    gradients = max(s.dense_trainable for s in program.stages) * 4
    assert fitted(job).added(job).data_bytes == pytest.approx(gradients)


def test_shapes_are_local() -> None:
    """Each of two tensor-parallel ranks does half of the products of a block."""
    whole, half = (local_step(H100.replace(layout=f"tp={tp},dp={8 // tp},zero=1"), "cuda") for tp in (1, 2))
    flops = []
    for step in (whole, half):
        kinds = zip(step.kinds, step.calls[0], strict=True)
        flops.append(
            sum(n * 2 * prod(k.outputs[0].shape) * k.inputs[-2].shape[-1] for k, n in kinds if k.name == "aten.mm")
        )
    assert flops[1] / flops[0] == pytest.approx(0.5, rel=0.02)


def test_neither_optimizer_nor_casts_count() -> None:
    job = H100.replace(gpus=1)
    without = fitted(job).added(job.replace(optimizer="none")).terms.seconds
    assert fitted(job).added(job).terms.seconds == pytest.approx(without, rel=1e-12)
    step = local_step(job, "cuda")
    names = Counter({k.name: n for k, n in zip(step.kinds, step.calls[0], strict=True) if n})
    assert names["aten._to_copy"] > 0  # in the graph, and left out of the sum
    assert "pt.sweep" not in names


def test_unknown_to_the_paper() -> None:
    job = Job("llama3-8b", gpu="h100-sxm", gpus=8, batch_size=1, layout="cp=2,dp=4", input={"seq_len": 2048})
    with pytest.raises(
        PredictorError, match="layout cp=2 is not in the additive model, which knows dp, tp and pp; set cp"
    ):
        fitted(job).added(job)
    with pytest.raises(PredictorError, match="one precision, not a schedule"):
        fitted(H100).predict(H100.replace(precision=[{"from_step": 0, "precision": "fp32"},
                                                     {"from_step": 5, "precision": "amp-bf16"}]))  # fmt: skip


# --- every layout -----------------------------------------------------------------------------------------------------


@given(st.integers(1, 256))
def test_every_layout_once(world: int) -> None:
    found = list(degrees(world))
    by_hand = {(a, b, c) for a in range(1, world + 1) if world % a == 0
               for b in range(1, world // a + 1) if (world // a) % b == 0 for c in [world // a // b]}  # fmt: skip
    assert len(found) == len(set(found))
    assert set(found) == by_hand


def test_every_layout_of_a_job() -> None:
    found = every_layout(H100, 8)
    assert [each.label for each in found] == [f"dp={d},tp={t},pp={p}" for d, t, p in degrees(8)]
    for each in found:
        assert (each.job is None) == bool(each.why)
        if each.added and each.job and each.forecast:
            assert each.job.batch_size == 32 // each.dp  # a step has 32 samples in all of them
            terms = each.added.terms
            assert terms.pipeline_s == pytest.approx((each.pp - 1) * terms.compute_s)
            assert (terms.data_s > 0) == (each.dp > 1)
            assert (terms.tensor_s > 0) == (each.tp > 1)
            assert each.forecast.seconds == pytest.approx(terms.seconds)
    tp8 = next(each for each in found if each.tp == 8)
    assert "does not divide heads=12" in tp8.why  # bert-base has 12 heads
    assert [each.label for each in found if each.why] == [tp8.label]


def test_samples_that_cannot_be_shared_out() -> None:
    found = every_layout(H100.replace(gpus=1, batch_size=6), 4)
    why = {each.label: each.why for each in found}
    assert why["dp=4,tp=1,pp=1"] == "6 samples a step are not shared out evenly over dp=4 x 1 micro-steps"
    assert not why["dp=2,tp=2,pp=1"]
    with pytest.raises(PredictorError, match="world size 0"):
        every_layout(H100, 0)


def test_a_model_that_cannot_be_divided_raises() -> None:
    found = every_layout(Job("resnet50", gpu="h100-sxm", gpus=2, batch_size=8), 2)
    assert next(each.label for each in found if not each.why) == "dp=2,tp=1,pp=1"
    assert "needs a model whose parts are known" in next(each.why for each in found if each.tp == 2)


# --- the twin -------------------------------------------------------------------------------------------------------


def test_the_twin_does_not_see_precision() -> None:
    jobs = [H100.replace(precision=p) for p in ("fp32", "amp-bf16", "bf16", "tf32")]
    twin = fitted(*jobs[:1], kind=BlindAdditive)
    assert isinstance(twin, BlindAdditive)
    assert twin.precision == "fp32"
    aware = fitted(*jobs)
    assert len({twin.predict(job).seconds for job in jobs}) == 1
    assert twin.predict(jobs[1]).seconds == aware.predict(jobs[0]).seconds
    assert len({aware.predict(job).seconds for job in jobs}) == 4


def test_the_twin_takes_the_precision_of_most_jobs_or_the_given_one() -> None:
    jobs = [H100.replace(precision=p) for p in ("fp32", "amp-bf16", "amp-bf16")]
    twin = BlindAdditive()
    twin.fit(measured(*jobs))
    assert twin.precision == "amp-bf16"
    twin.freeze("mixed")
    twin.fit(measured(*jobs))
    assert twin.precision == "amp-fp16"
    twin.freeze("fp8")
    twin.fit(measured(H100.replace(gpu="v100-sxm2-16gb")))
    with pytest.raises(MissingPeakError):
        twin.predict(H100.replace(gpu="v100-sxm2-16gb"))


# --- the predictor ----------------------------------------------------------------------------------------------------


def test_interface_and_names() -> None:
    assert predictor_class("additive") is Additive
    assert predictor_class("additive", blind=True) is BlindAdditive
    assert isinstance(Additive(), Predictor)
    assert isinstance(BlindAdditive(), Predictor)


def test_it_answers_without_training_for_gpus_of_the_kernel_benchmarks() -> None:
    assert Additive().predict(H100) == fitted(H100).predict(H100)
    with pytest.raises(PredictorError, match=r"no operator times for gpu mi300x: .* know none of architecture cdna3"):
        Additive().predict(H100.replace(gpu="mi300x"))


def test_seconds_are_those_of_the_run_asked_for() -> None:
    model = fitted(H100)
    step = model.predict(H100)
    run = model.predict(H100.replace(samples=8 * 4 * 10 + 1))
    assert run.seconds == pytest.approx(11 * step.seconds)
    assert step.p10_s < step.seconds < step.p90_s
    assert any("kernel benchmarks know" in note and "matmul half" in note for note in step.notes)
    piped = model.predict(H100.replace(layout="pp=2,dp=4", grad_accum=4))
    assert any("(pp - 1) = 1 times the compute; with 4 micro-batches a pipeline idles 1/4" in n for n in piped.notes)


@pytest.mark.parametrize("kind", [Additive, BlindAdditive])
def test_saved_and_read_back(tmp_path: Path, kind: type[Additive]) -> None:
    model = fitted(H100.replace(precision="fp32"), kind=kind)
    model.save(tmp_path / "saved")
    again = kind.load(tmp_path / "saved")
    assert again.predict(H100) == model.predict(H100)
    assert again.cost() == model.cost()
    assert [p.suffix for p in (tmp_path / "saved").iterdir()] == [".json"]
    other = BlindAdditive if kind is Additive else Additive
    with pytest.raises(DataError, match=f"holds predictor {kind.name} in format 2, not {other.name}"):
        other.load(tmp_path / "saved")
    (tmp_path / "saved" / "additive.json").write_text("{}")
    with pytest.raises(DataError, match="is no saved"):
        kind.load(tmp_path / "saved")


# --- calibrated devices -----------------------------------------------------------------------------------------------


def calibrated(tmp_path: Path, rows: list[list[Any]]) -> Job:
    path = tmp_path / "device.json"
    contention = {"2": {"compute": 3.0, "memory": 3.0}}
    path.write_text(json.dumps(device_document(rows, host=HOST, contention=contention)))
    return Job("resnet50", gpu="this-cpu", device=str(path), batch_size=8, optimizer="none")


def test_operators_of_a_device_file(tmp_path: Path) -> None:
    """The head of resnet50 in its own shape, 8 x 2048 by 2048 x 1000, is measured; its cost is charged once."""
    rows = [kernel_row("aten.addmm", product(8, 1000, 2048), 4e-3), kernel_row("aten.add", traffic(1), 1e-4)]
    job = calibrated(tmp_path, rows)
    model = fitted(job, job.replace(batch_size=16), job)
    found = model.added(job)
    assert found.shares["measured"] > 0
    assert "profiled" not in found.shares
    step = local_step(job, "cpu")
    head = [n for k, n in zip(step.kinds, step.calls[0], strict=True) if k.name == "aten.addmm" and n]
    assert head == [1.0]
    assert found.shares["measured"] * found.terms.compute_s >= 4e-3
    assert model.cost().runs >= 1
    assert model.cost().measured_s == pytest.approx(0.1 * model.cost().runs)
    assert fitted(job).cost().runs == fitted(job, job).cost().runs


def test_operators_are_profiled_alone_and_sent_over_the_measured_bus(tmp_path: Path) -> None:
    rows = [kernel_row("aten.addmm", product(8, 1000, 2048), 4e-3), kernel_row("aten.add", traffic(1), 1e-4)]
    one = calibrated(tmp_path, rows)
    two = one.replace(gpus=2)
    model = fitted(one)
    assert model.added(two).terms.compute_s == pytest.approx(model.added(one).terms.compute_s)  # no contention
    assert model.added(two).terms.data_s == pytest.approx(25_557_032 * 4 / 1.5e9)  # one whole buffer each at 1.5 GB/s


def test_times_of_jobs_are_never_looked_at() -> None:
    one, other = Additive(), Additive()
    one.fit([MeasuredJob("a", H100, 1.0, "x")])
    other.fit([MeasuredJob("a", H100, 1e9, "y")])
    assert one.predict(H100) == other.predict(H100)
    assert isinstance(one.predict(H100), Forecast)
    assert np.isfinite(one.predict(H100).seconds)
