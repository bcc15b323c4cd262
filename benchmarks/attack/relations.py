"""Relations between the estimates of related jobs, which physics or arithmetic demands.

A relation takes a job and its estimate and returns what is wrong, or "" where it holds. It raises `PrecisionTimeError`
where the related job cannot be: then it says nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from precision_time.capture.training_step import training_step
from precision_time.estimate.estimate import Estimate
from precision_time.estimate.interval import Interval
from precision_time.estimate.memory import ACTIVATIONS, GRADIENTS
from precision_time.hardware.catalog import default_catalog
from precision_time.hardware.fields import PEAKS
from precision_time.hardware.gpu import Gpu
from precision_time.job import Job
from precision_time.largest_batch import largest_micro_batch, memory_of
from precision_time.placement import cluster_of
from precision_time.prediction import predict

Relation = Callable[[Job, Estimate], str]

TOLERANCE = 1e-6
"""Relative. Sums of floats differ in their last digits."""


def _not_less(name: str, larger: float, smaller: float, tolerance: float = TOLERANCE) -> str:
    if larger >= smaller * (1.0 - tolerance):
        return ""
    return f"{name}: {larger:.6g} is below {smaller:.6g} ({100 * (larger / smaller - 1):.2f} %)"


def consistent(job: Job, estimate: Estimate) -> str:
    """Numbers are finite, quantiles ordered and above the floor; parts make up totals."""
    intervals = {name: getattr(estimate, name) for name in ("step", "epoch", "run", "cost_usd", "energy_j")}
    for name, interval in intervals.items():
        if isinstance(interval, Interval) and not 0.0 <= interval.p10 <= interval.p50 <= interval.p90 < math.inf:
            return f"{name} is not ordered or not finite: {interval}"
    if estimate.step.p10 < estimate.floor_s * (1 - TOLERANCE):
        return f"P10 {estimate.step.p10:.6g} is below the floor {estimate.floor_s:.6g}"
    parts = sum(estimate.breakdown.values())
    if not math.isclose(parts, estimate.step.p50, rel_tol=1e-6) or min(estimate.breakdown.values()) < -1e-12:
        return f"the breakdown has {parts:.6g} of {estimate.step.p50:.6g}"
    if not math.isclose(sum(estimate.sources.values()), 1.0, rel_tol=1e-6):
        return f"shares of sources add up to {sum(estimate.sources.values()):.6g}"
    memory = estimate.memory
    low, middle, high = memory.peak_interval
    if not 0 <= low <= middle <= high or not 0.0 < memory.fit_probability < 1.0:
        return f"peak memory is not ordered: {memory.peak_interval}, fits with {memory.fit_probability}"
    if memory.fits != (memory.fit_probability >= 0.5):
        return f"the job fits: {memory.fits}, with a probability of {memory.fit_probability}"
    return ""


def same_after_json(job: Job, estimate: Estimate) -> str:
    """A job and its estimate survive JSON, and the job read back has the same estimate."""
    text = json.dumps(estimate.to_dict(), allow_nan=False)
    back = Estimate.from_dict(json.loads(text))
    if back.job != job:
        return f"the job read back differs: {back.job}"
    again = predict(Job.from_dict(json.loads(json.dumps(job.to_dict()))))
    if again.step != estimate.step or again.memory != estimate.memory or back.step != estimate.step:
        return "the estimate read back differs"
    return ""


def _over_whole_epochs(job: Job, estimate: Estimate) -> tuple[Job, Estimate]:
    """The job over whole epochs where it reads data: of more samples, as many steps cover more epochs, and later ones
    read from the cache."""
    if not job.data or not estimate.steps or not estimate.steps_per_epoch:
        return job, estimate
    job = job.replace(epochs=max(1, round(estimate.steps / estimate.steps_per_epoch)))
    return job, predict(job)


def _without_cache(job: Job, estimate: Estimate) -> tuple[Job, Estimate]:
    """The job that reads every sample anew."""
    if not job.data:
        return job, estimate
    job = job.replace(data=replace(job.data, cache="none", cache_gib=None, cache_policy=None, cached=None))
    return job, predict(job)


def _comparable(job: Job, estimate: Estimate, gpus: int) -> tuple[Job, Estimate]:
    """The job as it can be compared with itself on another number of GPUs.

    As many steps on more GPUs cover more epochs, so one that reads data runs over whole epochs. The caches of several
    nodes, each with other samples in every epoch, hit more than that of one, which reads all in every epoch; so where
    the number of nodes differs, too, the job reads every sample anew.
    """
    if cluster_of(job).nodes != cluster_of(job.replace(gpus=gpus, nodes=None)).nodes:
        return _without_cache(job, estimate)
    return _over_whole_epochs(job, estimate)


def same_work_on_more_gpus(job: Job, estimate: Estimate) -> str:
    """Data parallelism adds work, never removes any."""
    if job.layout != "dp" and not job.layout.startswith("dp="):
        return ""
    if job.layout_spec.zero or job.gpus == 1:
        return ""
    job, estimate = _comparable(job, estimate, 1)
    one = predict(job.replace(gpus=1, nodes=None))
    return _not_less(f"{job.gpus} GPUs against one", estimate.step.p50, one.step.p50)


def one_more_gpu(job: Job, estimate: Estimate) -> str:
    if job.layout_spec.zero or job.layout_spec.pp * job.layout_spec.tp > 1 or job.nodes is not None:
        return ""
    here, cluster = cluster_of(job), cluster_of(job.replace(gpus=job.gpus + 1))
    rates = [cluster.intra.bus_bytes_per_s(count) for count in (job.gpus, job.gpus + 1)] if here.domains == 1 else []
    if cluster.domains == 1 and rates[1] > rates[0]:
        return ""  # a GPU of a mesh brings links of its own, of which rings use more at some counts
    job, estimate = _comparable(job, estimate, job.gpus + 1)
    more = predict(job.replace(gpus=job.gpus + 1))
    # The second and third domain change the algorithm: of two as fast at the size of a message, the new one may slow
    # compute less. Racks share out their nodes anew.
    settled = here.domains >= 3 and here.gpus_per_domain == cluster.gpus_per_domain
    tolerance = TOLERANCE if settled or here.domains == cluster.domains else 1e-3
    return _not_less(f"{job.gpus + 1} GPUs against {job.gpus}", more.step.p50, estimate.step.p50, tolerance)


def twice_the_batch(job: Job, estimate: Estimate) -> str:
    job, estimate = _over_whole_epochs(job, estimate)
    more = predict(job.replace(batch_size=2 * (job.batch_size or 1)))
    return _not_less("batch x2", more.step.p50, estimate.step.p50)


def one_more_sample(job: Job, estimate: Estimate) -> str:
    job, estimate = _over_whole_epochs(job, estimate)
    more = predict(job.replace(batch_size=(job.batch_size or 1) + 1))
    return _not_less("batch +1", more.step.p50, estimate.step.p50, 2e-3)


def one_more_micro_step(job: Job, estimate: Estimate) -> str:
    job, estimate = _over_whole_epochs(job, estimate)
    more = predict(job.replace(grad_accum=job.grad_accum + 1))
    return _not_less("grad_accum +1", more.step.p50, estimate.step.p50)


def steady_micro_steps(job: Job, estimate: Estimate) -> str:
    """Micro-steps of a long accumulation cost the same: the second thousand as the third.

    Not where the host begins to rule only then: until it has used up its lead, the device does.
    """
    job, estimate = _over_whole_epochs(job, estimate)
    found = [predict(job.replace(grad_accum=n)) for n in (1000, 2000, 3000)]
    if len({each.breakdown["host_gaps"] > TOLERANCE * each.step.p50 for each in found}) > 1:
        return ""
    seconds = [each.step.p50 for each in found]
    first, second = seconds[1] - seconds[0], seconds[2] - seconds[1]
    return "" if math.isclose(first, second, rel_tol=1e-3) else f"1,000 micro-steps cost {first:.6g} and {second:.6g}"


def larger_cache(job: Job, estimate: Estimate) -> str:
    """A cache of twice the size never slows a run, nor does any cache that costs nothing to fill."""
    if not job.data or job.data.cache in (None, "none"):
        return ""
    if job.data.cache_gib is not None:
        more = predict(job.replace(data=replace(job.data, cache_gib=2 * job.data.cache_gib)))
        if wrong := _not_less("the cache against one of twice the size", estimate.step.p50, more.step.p50):
            return wrong
    if job.data.keep_ms:
        return ""
    without, _ = _without_cache(job, estimate)
    return _not_less("no cache against a cache", predict(without).step.p50, estimate.step.p50)


def reduced_once(job: Job, estimate: Estimate) -> str:
    """Gradients reduced after every micro-step take no less time than reduced once."""
    if job.grad_accum == 1 or job.gpus == 1:
        return ""
    every, once = (predict(job.replace(no_sync=no_sync)).step.p50 for no_sync in (False, True))
    return _not_less("a reduction after every micro-step against one", every, once)


def an_update_costs(job: Job, estimate: Estimate) -> str:
    """A step takes no less time than its forward and backward passes."""
    none = predict(job.replace(optimizer="none", optimizer_impl=None))
    return _not_less("a step against its passes", estimate.step.p50, none.step.p50)


def schedule_of_one(job: Job, estimate: Estimate) -> str:
    """A schedule of one precision, in one or two entries, is that precision."""
    single = predict(job.replace(schedule=[{"from_step": 0, "precision": job.precision}]))
    if single.step != estimate.step or single.run != estimate.run:
        return f"a schedule of one entry takes {single.step}, the precision {estimate.step}"
    if estimate.run is None or not estimate.steps or estimate.steps < 2:
        return ""
    entries = [{"from_step": at, "precision": job.precision} for at in (0, estimate.steps // 2)]
    double = predict(job.replace(schedule=entries))
    assert double.run is not None
    close = math.isclose(double.run.p50, estimate.run.p50, rel_tol=1e-9)
    return "" if close else f"a schedule that changes nothing takes {double.run.p50:.6g} s, not {estimate.run.p50:.6g}"


def tf32_not_slower(job: Job, estimate: Estimate) -> str:
    """TF32 in convolutions alone lies between fp32 and TF32 everywhere."""
    fp32, default, tf32 = (predict(job.replace(precision=name)).step.p50 for name in ("fp32", "torch-fp32", "tf32"))
    return _not_less("fp32 against torch-fp32", fp32, default) or _not_less("torch-fp32 against tf32", default, tf32)


def parts_of_the_run(job: Job, estimate: Estimate) -> str:
    """Medians of the parts add up; probabilities are ordered; failures and longer checkpoints never shorten a run."""
    run = estimate.goodput
    if run is None:
        return ""
    total = run.from_submission().interval.p50
    if not math.isclose(sum(part.p50 for part in run.parts.values()), total, rel_tol=1e-6):
        return f"the parts of the run add up to {sum(part.p50 for part in run.parts.values()):.6g}, not {total:.6g}"
    times = [run.wall.quantile(p) for p in (0.01, 0.3, 0.5, 0.8, 0.97)]
    chances = [run.wall.probability(t) for t in times]
    if times != sorted(times) or chances != sorted(chances):
        return f"quantiles or probabilities of the run are not ordered: {times}, {chances}"
    failing = {"gpu_hours_per_failure": 50.0, "failure_prior": None, "failures_seen": None, "failures_gpu_hours": None}
    if job.run.gpu_hours_per_failure is None and not job.run.knows_failures:
        worse = predict(job.replace(**failing))
        if worse.run is not None and estimate.run is not None:
            return _not_less("with failures", worse.run.p50, estimate.run.p50, 1e-3)
    return ""


def longer_run(job: Job, estimate: Estimate) -> str:
    if estimate.run is None or not estimate.steps:
        return ""
    longer = predict(
        job.replace(steps=estimate.steps * 2, dataset=None) if job.run.epochs else job.replace(steps=2 * estimate.steps)
    )
    assert longer.run is not None
    return _not_less("twice the steps", longer.run.p50, estimate.run.p50)


def faster_gpu(job: Job, estimate: Estimate) -> str:
    """One GPU whose peaks and bandwidth are 10 % higher is not slower."""
    name = cluster_of(job).gpu.name
    document = {"gpus": {f"times-{factor}": _raised(name, factor) for factor in (1.0, 1.1)}}
    catalog = default_catalog().with_document(document)
    alone = job.replace(gpus=1, nodes=None, node=None, system=None, layout="dp", anchors="none")
    usual, fast = (predict(alone.replace(gpu=gpu), catalog=catalog) for gpu in document["gpus"])
    return _not_less("the GPU against one of 1.1 x its figures", usual.step.p50, fast.step.p50, 1e-3)


def _raised(name: str, factor: float) -> dict[str, Any]:
    gpu = default_catalog().gpu(name)
    peaks = {column: gpu.peaks[key] / 1e12 * factor for column, key in PEAKS.items() if key in gpu.peaks}
    return {"based_on": name, "mem_bw_gbs": gpu.memory_bytes_per_s / 1e9 * factor, **peaks}


def faster_gpu_of_the_catalog(job: Job, estimate: Estimate) -> str:
    """One GPU that is as good in every figure as another of its architecture is not slower."""
    known = default_catalog().gpus
    mine = cluster_of(job).gpu
    alone = job.replace(gpus=1, nodes=None, node=None, system=None, layout="dp", anchors="none")
    own_s = None
    for other in known.values():
        if other.name != mine.name and other.arch == mine.arch and _dominates(other, mine):
            own_s = own_s or predict(alone).step.p50
            wrong = _not_less(
                f"{mine.name} against {other.name}", own_s, predict(alone.replace(gpu=other.name)).step.p50, 1e-3
            )
            if wrong:
                return wrong
    return ""


def _dominates(better: Gpu, worse: Gpu) -> bool:
    figures = ("memory_bytes_per_s", "sm_count", "top_hz", "l2_bytes", "tdp_w")
    pairs = [(getattr(better, name), getattr(worse, name)) for name in figures]
    pairs += [(better.peaks.get(key), peak) for key, peak in worse.peaks.items()]
    return all(more is not None and less is not None and more >= less for more, less in pairs)


def recompute_saves_memory(job: Job, estimate: Estimate) -> str:
    """Not where no block recurs: the second run of the largest holds most of what all would have kept, and the
    gradient of its output besides. A pipeline's stage may hold such blocks alone where most blocks occur once.
    Nor where gradients outweigh activations: beside all of them, the second run of one block may be the fullest moment.
    """
    order = training_step(job).layers.order
    most = max(order.count(unit) for unit in order)
    if most == 1 or (job.layout_spec.pp > 1 and 2 * most < len(order)):
        return ""
    kept, again = job.replace(recompute="none", recompute_layers=None), job.replace(recompute="full")
    rows = memory_of(kept).by_category
    saves = rows[ACTIVATIONS] >= rows[GRADIENTS]
    if saves and memory_of(again).peak_bytes > memory_of(kept).peak_bytes * (1 + TOLERANCE):
        return f"recompute full needs {memory_of(again).peak_bytes:,} bytes, none {memory_of(kept).peak_bytes:,}"
    kept_s, again_s = (predict(each).step.p50 for each in (kept, again))
    return _not_less("recompute full against none", again_s, kept_s)


def largest_batch_fits(job: Job, estimate: Estimate) -> str:
    """The largest batch fits, the next does not, and memory grows with the batch."""
    largest = largest_micro_batch(job)
    if largest and not memory_of(job.replace(batch_size=largest)).fits:
        return f"the largest batch, {largest}, does not fit"
    if memory_of(job.replace(batch_size=largest + 1)).fits and largest < 1 << 20:
        return f"{largest + 1} fits, though {largest} is the largest batch"
    sizes = sorted({1, max(1, largest // 7), max(1, largest // 3), max(1, largest - 1), largest or 1, largest + 1})
    peaks = [memory_of(job.replace(batch_size=size)).peak_bytes for size in sizes]
    return "" if peaks == sorted(peaks) else f"memory falls with the batch: {dict(zip(sizes, peaks, strict=True))}"


def larger_input(job: Job, estimate: Estimate) -> str:
    """Twice the sequence, or an image of twice the side, takes no less time."""
    from precision_time.zoo.catalog import ENTRIES

    sizes: dict[str, Any] = {"image_size": 224, **job.input}
    if job.model in ENTRIES:
        sizes = {**ENTRIES[job.model].input, **job.input}
    for key in ("seq_len", "image_size"):
        if isinstance(sizes.get(key), int):
            more = predict(job.replace(input={**job.input, key: 2 * sizes[key]}))
            return _not_less(f"twice the {key}", more.step.p50, estimate.step.p50)
    return ""


def more_layers(job: Job, estimate: Estimate) -> str:
    from precision_time.zoo.catalog import ENTRIES

    layers = {**ENTRIES[job.model].config, **job.model_config}.get("layers") if job.model in ENTRIES else None
    if not isinstance(layers, int):
        return ""
    order = training_step(job).layers.order
    if job.layout_spec.pp > 1 and sum(order.count(unit) > 1 for unit in set(order)) > 1:
        return ""  # layers of several kinds fall to other stages, and a lighter one to the slowest
    for number in (layers + 1, 2 * layers):
        more = predict(job.replace(model_config={**job.model_config, "layers": number}))
        wrong = _not_less(f"{number} layers against {layers}", more.step.p50, estimate.step.p50)
        if wrong:
            return wrong
    return ""


RELATIONS: tuple[Relation, ...] = (
    consistent, same_after_json, same_work_on_more_gpus, one_more_gpu, twice_the_batch, one_more_sample,
    one_more_micro_step, steady_micro_steps, larger_cache, reduced_once, an_update_costs, schedule_of_one,
    tf32_not_slower, longer_run, parts_of_the_run, faster_gpu, faster_gpu_of_the_catalog, recompute_saves_memory,
    largest_batch_fits, larger_input, more_layers,
)  # fmt: skip
