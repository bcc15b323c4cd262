"""Details of what a step costs: tiles, waves, layouts, launches, waits and machines, worked out by hand.

docs/details.md lists the details; which operators run is in test_details.py, published rows in test_details_rows.py.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import numpy as np
import pytest

from precision_time.capture.captured_model import capture_model
from precision_time.capture.graph import Parameter, Phase
from precision_time.capture.optimizer import tail
from precision_time.capture.training_step import training_step
from precision_time.estimate.estimate import Estimate
from precision_time.hardware import cluster
from precision_time.hardware.gpu import Gpu
from precision_time.job import Job
from precision_time.job.precision import PRECISIONS
from precision_time.layout.options import Options
from precision_time.layout.segment import OpSignatures, Segment
from precision_time.layout.step_program import step_program
from precision_time.prediction import predict
from precision_time.timeline.simulate import simulate
from precision_time.timeline.timeline import Timeline
from precision_time.timing.constants import StepConstants
from precision_time.timing.curves import INDEX, PARAMETERS, attention_seconds, matmul_seconds
from precision_time.timing.host import host_costs
from precision_time.timing.kernels import TRANSPOSE_SHARE, KernelModel
from precision_time.timing.operators import WorkOptions, works
from precision_time.timing.passes import LAUNCH_LATENCY_S
from precision_time.timing.program_times import TimedProgram, time_program
from precision_time.timing.work import Attention, Convolution, Work, attention_work, conv_work, matmul_work, memory_work

MODEL = KernelModel(scales={})
US = 1e-6
V100, A100 = cluster("v100-16gb-sxm", 1).gpu, cluster("a100-80gb-sxm", 1).gpu
BYTES = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2}


def seconds(work: Work, gpu: Gpu = A100) -> float:
    return float(MODEL.seconds([work], gpu).seconds[0])


def conv(unit: str, n: int, c_in: int, c_out: int, image: int, kernel: int, groups: int = 1, **how: str) -> Work:
    return conv_work(
        Convolution(n, c_in, c_out, (image,) * 2, (image,) * 2, (kernel,) * 2, (1, 1), groups), unit, BYTES[unit], **how
    )


# --- tiles and waves --------------------------------------------------------------------------------------------

SMS, PEAK, BANDWIDTH = 108.0, 312e12, 2e12


def column(**values: float) -> Any:
    """Parameters of one product: nothing but 128 x 128 tiles at 0.8 of the peak, and no splitting, unless said."""
    found = np.full((len(PARAMETERS), 1), 1e-9)
    for name, value in {"e128x128": 0.8, "k0": 0.0, "wave": 0.6, "reduce": 1.0, **values}.items():
        found[INDEX[name]] = value
    return found


def product(m: float, n: float, k: float, p: Any) -> float:
    shape = np.array([[1.0], [m], [n], [k]])
    return float(matmul_seconds(shape, p, np.array([PEAK]), SMS, BANDWIDTH)[0])


def test_one_tile_more_than_multiprocessors_starts_a_second_wave() -> None:
    p, k = column(k0=100.0), 4096
    full = 2 * 128 * 128 * SMS * (k + 100) / (PEAK * 0.8)  # every multiprocessor one tile
    assert product(128 * SMS, 128, k, p) == pytest.approx(full)
    over = 109 / SMS
    assert product(128 * SMS + 1, 128, k, p) == pytest.approx(full * (over + 0.6 * (2 - over)))  # 0.6 of what idles
    assert product(128 * 2 * SMS, 128, k, p) == pytest.approx(2 * full)


def test_attention_fills_waves_of_query_blocks() -> None:
    p = column(wave=1.0, d0=0.0)
    p[INDEX["e256x128"]] = 0.5

    def time(heads: int, queries: int) -> float:
        work = attention_work(Attention(1, heads, heads, queries, queries, 64), "bf16", 2)
        shape = np.array(work.shape)[:, None]
        return float(attention_seconds(shape, np.array([work.flops]), p, np.array([PEAK]), SMS)[0])

    one_wave = 4 * 54 * 256 * 256 * 64 / (PEAK * 0.5)  # 54 heads of 2 blocks on 108 multiprocessors
    assert time(54, 256) == pytest.approx(one_wave)
    assert time(55, 256) == pytest.approx(2 * one_wave)
    assert time(54, 257) == pytest.approx(2 * one_wave * 257 / 256)  # a third block for one query a head


def test_narrow_channels_pay_for_a_whole_tile() -> None:
    """The narrowest tile has 32 columns: 8 channels take its time, and reach a quarter of its utilisation."""
    p = column()
    p[INDEX["e128x128"]], p[INDEX["e64x32"]] = 1e-9, 0.5
    tile = product(1e6, 32, 576, p)
    assert {product(1e6, n, 576, p) for n in (1, 4, 8, 16, 31)} == {tile}
    assert product(1e6, 33, 576, p) == pytest.approx(2 * tile)
    sizes = (112,) * 2, (56,) * 2, (5,) * 2, (2,) * 2
    narrow, wide = (MODEL.seconds([conv_work(Convolution(32, 64, c, *sizes), "fp32", 4)], V100) for c in (8, 32))
    assert narrow.seconds[0] == pytest.approx(wide.seconds[0])
    assert wide.utilisation[0] == pytest.approx(4 * narrow.utilisation[0])


def test_a_weight_gradient_splits_its_long_reduction() -> None:
    """256 x 256 weights over 2^20 positions are four tiles: alone they would keep four multiprocessors of 108 busy."""
    k, tiles = 2**20, 4
    one_step = 2 * 128 * 128 * SMS / (PEAK * 0.8)
    alone = one_step * k * (tiles / SMS + 0.6 * (1 - tiles / SMS))
    assert product(256, 256, k, column()) == pytest.approx(alone)
    # Split over all multiprocessors at 0.9 of their rate, then 108 partial tiles of fp32 written and read.
    split = one_step * k * tiles / SMS / 0.9 + SMS * 128 * 128 * 8 / BANDWIDTH
    assert product(256, 256, k, column(stream=0.9)) == pytest.approx(split)
    assert alone / split > 14
    work = conv("fp16", 64, 64, 256, 56, 3, direction="wgrad")
    assert work.shape == (1, 256, 64 * 9, 64 * 56 * 56)  # the reduction runs over every position of every image


def test_grouped_convolutions_are_narrow_products() -> None:
    """ResNeXt's 32 groups of 4 channels: a 32nd of the dense operations, in tiles of which an eighth is used."""
    dense, grouped = conv("fp32", 64, 128, 128, 28, 3), conv("fp32", 64, 128, 128, 28, 3, 32)
    assert grouped.shape == (32, 64 * 28 * 28, 4, 4 * 9)
    assert grouped.flops * 32 == dense.flops
    assert grouped.floor_flops == grouped.flops  # no Winograd
    p = column()
    p[INDEX["e128x128"]], p[INDEX["e64x32"]] = 1e-9, 0.5
    batched = np.array(grouped.shape)[:, None]
    time = float(matmul_seconds(batched, p, np.array([PEAK]), SMS, BANDWIDTH)[0])
    assert time == pytest.approx(8 * grouped.flops / (PEAK * 0.5), rel=0.01)


def test_depthwise_convolutions_gain_only_their_bytes_from_half_precision() -> None:
    """They run on the vector units in any precision, and are never transposed."""
    half, full = (conv(unit, 64, 96, 96, 56, 3, 96) for unit in ("fp16", "fp32"))
    assert (half.flops, half.serial_bytes, half.launches) == (full.flops, 0, 1)
    assert half.bytes * 2 == full.bytes == 4 * (2 * 64 * 96 * 56 * 56 + 96 * 9)
    assert 1 < seconds(full, V100) / seconds(half, V100) < 2
    wide = matmul_work((1, 8192, 4096, 4096), "fp16", 2), matmul_work((1, 8192, 4096, 4096), "fp32", 4)
    assert seconds(wide[1], V100) / seconds(wide[0], V100) > 4


# --- the memory-bound tail of CNNs ------------------------------------------------------------------------------


def test_batch_norm_and_its_neighbours_gain_at_most_two() -> None:
    """Bytes are all that half precision halves: 3 passes forward, 5 back, at one share of the bandwidth."""
    data = 64 * 256 * 56 * 56
    for family, passes, variant in (("batch_norm", 3, "fwd"), ("batch_norm", 5, "bwd"), ("pointwise", 2, "fwd")):
        full, half = (
            memory_work(family, (passes - 1) * data * w, data * w, variant=variant, dtype=dtype)
            for w, dtype in ((4, "float32"), (2, "float16"))
        )
        gain = seconds(full, V100) / seconds(half, V100)
        assert 1.97 < gain < 2, family  # the start of the kernel does not halve
        assert seconds(half, V100) > passes * data * 2 / 900e9


def timed(job: Job, ranks: int = 1) -> TimedProgram:
    """Without the factors fitted on whole steps, so that the hand-set host costs stand as they are."""
    job = job.replace(gpus=ranks)
    program = step_program(training_step(job), job.layout_spec, Options.of(job))
    options = WorkOptions(tf32=job.precision == "tf32", channels_last=job.memory_format == "nhwc")
    return time_program(program, cluster(job.gpu, ranks), options, job.execution, StepConstants())


def passes_of(found: TimedProgram) -> list[tuple[Segment, int]]:
    """The forward and backward passes of a micro-batch and how often each runs in it."""
    units = found.program.units
    runs = found.program.stages[0].chunks[0].units
    return [(s, repeat) for unit, repeat, _ in runs for s in (units[unit].forward, units[unit].backward)]


def micro_calls(found: TimedProgram) -> Any:
    """How often each kind runs in a micro-batch."""
    total = np.zeros(len(found.program.kinds))
    for segment, repeat in passes_of(found):
        np.add.at(total, segment.kind, repeat)
    return total


def by_family(found: TimedProgram) -> Counter[str]:
    """Device seconds of a micro-step by family of kernels."""
    calls = micro_calls(found)
    spent: Counter[str] = Counter()
    for work, owner in enumerate(found.works.owner):
        spent[found.works.family[work].partition("_")[0]] += float(calls[owner] * found.work_s[work])
    return spent


def test_the_tail_bounds_what_a_resnet_gains() -> None:
    """Convolutions gain more than three times, all between them some two, with casts and NCHW's slow batch norms."""
    spent = [
        by_family(timed(Job("resnet50", precision=p, batch_size=64, gpu="v100-16gb-sxm", memory_format=layout)))
        for p, layout in (("fp32", "nchw"), ("amp-fp16", "nhwc"))
    ]
    products = [found["conv"] + found["matmul"] for found in spent]
    tails = [sum(found.values()) - part for found, part in zip(spent, products, strict=True)]
    assert products[0] > 3 * products[1]
    assert 1.5 < tails[0] / tails[1] < 2.2
    assert tails[0] / sum(spent[0].values()) < 0.4 < tails[1] / sum(spent[1].values())


# --- layouts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", ["fwd", "dgrad", "wgrad"])
def test_nchw_on_tensor_cores_costs_exactly_its_transposes(direction: str) -> None:
    """Input and output are read and written once more, by two more kernels; channels last has neither."""
    nchw, nhwc = (conv("fp16", 64, 256, 64, 56, 1, direction=direction, layout=x) for x in ("nchw", "nhwc"))
    moved = 2 * 2 * (64 * 256 * 56 * 56 + 64 * 64 * 56 * 56)
    assert nhwc.serial_bytes == 0
    assert (nchw.serial_bytes, nchw.launches, nhwc.launches) == (moved, 3, 1)
    starts = 2 * seconds(memory_work("pointwise", 0, 1e-9))
    extra = seconds(nchw) - seconds(nhwc)
    assert extra == pytest.approx(moved / (A100.memory_bytes_per_s * TRANSPOSE_SHARE) + starts, rel=0.01)
    assert (nchw.flops, nchw.bytes) == (nhwc.flops, nhwc.bytes)


def test_a_resnet_in_nchw_moves_two_trips_of_every_convolution_more() -> None:
    jobs = [Job("resnet50", precision="amp-bf16", batch_size=32, memory_format=x) for x in ("nchw", "nhwc")]
    graph = capture_model(jobs[0]).graph
    trips = 0
    for call in graph.calls:
        kind = graph.kinds[call.kind]
        if kind.name == "aten.convolution":
            trips += kind.inputs[0].nbytes + kind.outputs[0].nbytes
        elif kind.name == "aten.convolution_backward":
            mask = kind.attr("output_mask")
            assert isinstance(mask, tuple)
            trips += (kind.inputs[0].nbytes + kind.inputs[1].nbytes) * sum(map(bool, mask[:2]))
    first, last = (timed(job) for job in jobs)
    calls = micro_calls(first)[first.works.owner]
    assert float((first.works.table.serial_bytes * calls).sum()) == 2 * trips
    of_convolutions = np.array([family == "conv" for family, *_ in last.works.table.classes])[last.works.table.class_of]
    assert float(last.works.table.serial_bytes[of_convolutions].sum()) == 0


# --- the host ---------------------------------------------------------------------------------------------------


def test_a_small_batch_is_host_bound_and_autocast_makes_it_slower() -> None:
    """One small picture on an H100 takes what its launches take. Autocast launches 57 casts each way beside them: 54
    weights, a bias, image and logits; the gradients of weights and bias, and two of the smoothed loss."""
    steps: dict[tuple[str, int], Timeline] = {}
    for precision in ("fp32", "amp-bf16"):
        for batch in (1, 256):
            job = Job("resnet50", precision=precision, batch_size=batch, gpu="h100-80gb-sxm", memory_format="nhwc",
                      optimizer_impl="fused", input={"image_size": 128 if batch == 1 else 224})  # fmt: skip
            steps[precision, batch] = simulate(timed(job))
    for precision in ("fp32", "amp-bf16"):
        assert steps[precision, 1].step_s == pytest.approx(steps[precision, 1].host_s)
        assert steps[precision, 256].step_s > 1.5 * steps[precision, 256].host_s
    costs = host_costs("eager", cluster("h100-80gb-sxm", 1).node.host_factor)
    casts = 57 * costs.operator_s * (1 + costs.backward_share)
    assert steps["amp-bf16", 1].step_s - steps["fp32", 1].step_s == pytest.approx(casts)
    assert steps["fp32", 256].step_s > 2 * steps["amp-bf16", 256].step_s


def test_an_old_tower_launches_slower_than_one_of_today() -> None:
    """A batch of one waits for the host: twice a DGX A100's launch costs with an RTX 2080 Ti, 0.6 with an RTX 3090."""
    job = Job("resnet50", precision="fp32", batch_size=1, optimizer_impl="fused", input={"image_size": 96})
    host = {
        name: simulate(timed(job.replace(gpu=name))).host_s for name in ("a100-80gb-sxm", "rtx-2080-ti", "rtx-3090")
    }
    contention = {name: cluster(name, 1).gpus_per_node for name in host}
    assert set(contention.values()) == {1}
    assert host["rtx-2080-ti"] == pytest.approx(2.0 * host["a100-80gb-sxm"])
    assert host["rtx-3090"] == pytest.approx(0.6 * host["a100-80gb-sxm"])


def host_of_update(how: str, tensors: int, elements: int) -> tuple[float, float, float]:
    """Host seconds, kernel launches and bytes of Adam's sweeps over equal tensors."""
    parameters = tuple(Parameter(f"p{i}", (elements,), "float32", "float32", i) for i in range(tensors))
    kinds = [kind for _, kind in tail(parameters, PRECISIONS["fp32"], "adam", how).operators]
    found = [(works(kind, WorkOptions()) or [])[0] for kind in kinds]
    launches = np.array([work.launches for work in found])
    host = float(host_costs("eager").per_kind(OpSignatures(kinds), launches).sum())
    return host, float(launches.sum()), sum(work.bytes for work in found)


def test_a_loop_over_tensors_costs_the_host_by_the_tensor() -> None:
    """Seven passes. Tensor by tensor: 10 us a tensor and pass. Listed: 25 us a pass and 0.8 us a tensor on its list."""
    once, twice = host_of_update("single", 100, 1000), host_of_update("single", 200, 500)
    assert once == pytest.approx((7 * 100 * 10 * US, 7 * 100, once[2]))
    assert twice == pytest.approx((2 * once[0], 2 * once[1], once[2]))  # the same weights in twice the tensors
    assert host_of_update("foreach", 100, 1000)[0] == pytest.approx(7 * (25 + 0.8 * 100) * US)
    assert host_of_update("foreach", 100, 1000)[2] == once[2]
    assert host_of_update("fused", 100, 1000)[0] == pytest.approx((25 + 0.8 * 100) * US)


def bert(how: str, precision: str = "amp-fp16", loss_scale: str = "dynamic") -> TimedProgram:
    job = Job("bert-large", precision=precision, batch_size=64, optimizer_impl=how, clip_norm=0, loss_scale=loss_scale)
    return timed(job)


def without_wait(found: TimedProgram) -> Timeline:
    """The same update launched in one go."""
    (stage,), (sweeps,) = found.program.stages, found.sweeps
    segments = [np.concatenate([getattr(tail, name) for tail in stage.tails]) for name in Segment.__slots__]
    first, rest = sweeps.tails
    stage = dataclasses.replace(stage, tails=(Segment(*segments),))
    program = dataclasses.replace(found.program, stages=(stage,))
    sweeps = dataclasses.replace(sweeps, tails=(first.then(rest),))
    return simulate(dataclasses.replace(found, program=program, sweeps=(sweeps,)))


def test_the_scalers_question_drains_the_launch_queue() -> None:
    """The host stands still until the device has unscaled. Then the device idles until the first sweep is launched."""
    listed = bert("foreach")
    _, rest = listed.program.stages[0].tails
    tensors = listed.program.kinds[rest.kind[0]].int_attr("tensors", 0)
    launch = (25 + 0.8 * tensors) * US + LAUNCH_LATENCY_S
    assert simulate(listed).host_gap_s == pytest.approx(launch)
    assert without_wait(listed).host_gap_s == pytest.approx(0, abs=1e-12)
    # A loop over tensors is launched more slowly than it runs: with nothing queued, all of the difference shows.
    looped = bert("single")
    assert simulate(looped).host_gap_s > 10 * launch
    assert without_wait(looped).host_gap_s == pytest.approx(0, abs=1e-12)
    for how, precision in (("fused", "amp-fp16"), ("foreach", "amp-bf16")):
        assert simulate(bert(how, precision)).host_gap_s == pytest.approx(0, abs=1e-12)


def test_a_static_loss_scale_unscales_without_a_question() -> None:
    """As apex does with a number: the same operators, and the launch queue never drains."""
    asking, static = bert("foreach"), bert("foreach", loss_scale="static")
    assert list(static.program.kinds) == list(asking.program.kinds)
    assert simulate(static).busy == simulate(asking).busy
    assert simulate(static).host_gap_s == pytest.approx(0, abs=1e-12)
    assert simulate(static).step_s < simulate(asking).step_s
    master = [timed(Job("resnet50", precision="fp16-master", optimizer_impl="foreach", loss_scale=scale))
              for scale in ("dynamic", "static")]  # fmt: skip
    assert [len(found.program.stages[0].tails) for found in master] == [2, 1]


# --- accumulation -----------------------------------------------------------------------------------------------


def test_accumulation_repeats_the_micro_step_and_shares_what_follows() -> None:
    def run(grad_accum: int, no_sync: bool = True) -> tuple[Timeline, TimedProgram]:
        job = Job("resnet50", precision="amp-bf16", batch_size=64, grad_accum=grad_accum, no_sync=no_sync)
        found = timed(job, 8)
        return simulate(found), found

    once, program = run(1)
    often, _ = run(8)
    each_time, _ = run(8, no_sync=False)
    assert often.busy[Phase.FORWARD] == pytest.approx(8 * once.busy[Phase.FORWARD])
    assert often.casts_s == pytest.approx(8 * once.casts_s)  # every micro-step casts the weights anew
    assert often.busy[Phase.OPTIMIZER] == pytest.approx(once.busy[Phase.OPTIMIZER])
    (stage,) = program.program.stages
    micro = sum(repeat * float(program.device_seconds(s).sum()) for s, repeat in passes_of(program))
    copies = sum(float(program.device_seconds(s).sum()) for s in (stage.into_buckets, stage.out_of_buckets))
    backward = once.busy[Phase.BACKWARD] - copies
    elements = 25_557_032
    added = seconds(memory_work("optimizer", 8 * elements, 4 * elements, 161))
    assert often.busy[Phase.BACKWARD] == pytest.approx(8 * backward + copies + 7 * added)
    assert micro == pytest.approx(once.busy[Phase.FORWARD] + once.busy[Phase.LOSS] + backward + once.casts_s)
    wire = once.communication_hidden_s + once.communication_exposed_s
    assert often.communication_hidden_s + often.communication_exposed_s == pytest.approx(wire)
    assert each_time.communication_hidden_s + each_time.communication_exposed_s == pytest.approx(8 * wire)


# --- machines ---------------------------------------------------------------------------------------------------


def watts_of(estimate: Estimate) -> float:
    assert estimate.energy_j is not None
    assert estimate.run is not None
    return estimate.energy_j.p50 / estimate.run.p50


def test_the_clock_of_a_machine_speeds_every_kernel_and_its_power_counts() -> None:
    """The same boards at 300, 350 and 450 W."""
    found = {
        s: predict(Job("bert-large", precision="fp32", batch_size=8, gpu="v100-32gb-sxm", system=s, clip_norm=0,
                       optimizer_impl="fused", anchors="none", run={"steps": 1000, "start_up_s": 0}))
        for s in ("DGX-1", "DGX-2", "DGX-2H")
    }  # fmt: skip
    for system, clock, watts in (("DGX-2", 1.08, 350), ("DGX-2H", 1.16, 450)):
        for term in ("forward", "backward", "optimizer"):
            slow, fast = found["DGX-1"].breakdown[term], found[system].breakdown[term]
            assert slow / fast == pytest.approx(clock)
        assert watts_of(found[system]) / watts_of(found["DGX-1"]) == pytest.approx(watts / 300, rel=1e-3)
