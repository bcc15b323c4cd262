"""Stored graphs of every family, evaluated at several sizes, against captures at those sizes, operator by operator."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

from precision_time.capture import stored_apart, symbolic, symbolic_fit  # noqa: E402
from precision_time.capture.graph import OpGraph  # noqa: E402
from precision_time.capture.trace import trace_entry  # noqa: E402
from precision_time.errors import CaptureError, JobError  # noqa: E402
from precision_time.job import Job  # noqa: E402
from precision_time.largest_batch import largest_micro_batch, memory_of  # noqa: E402
from precision_time.prediction import predict  # noqa: E402
from precision_time.zoo.catalog import ENTRIES  # noqa: E402
from precision_time.zoo.models.transformer_xl import build  # noqa: E402
from precision_time.zoo.ship import DATA, variants_of  # noqa: E402
from precision_time.zoo.workload import ZooEntry  # noqa: E402

SHIPPED = {name: entry for name, entry in ENTRIES.items() if entry.ships}
SMALLEST = {entry.builder: name for name, entry in sorted(SHIPPED.items(), key=lambda item: -item[1].parameters)}
"""Of each builder, the model with the fewest parameters."""

WITHOUT_GRADIENT = {
    **dict.fromkeys((name for name in SHIPPED if name.startswith("esm2-")), ("esm.contact_head.",)),
    "sam-b": ("prompt_encoder.", "mask_decoder.iou_prediction_head."),
    "tft": ("static_selection.joint.context.weight",),  # a single static variable is selected without a context
}
"""Beginnings of the names of weights that their loss does not reach, by model."""


def sizes_of(entry: ZooEntry) -> Iterator[dict[str, int]]:
    """The usual sizes, the smallest of each symbol, both with a batch of one too, and others; always the same.

    Decoders with a batch of one are those of the templates (tests/test_templates.py).
    """
    source = random.Random(entry.name)
    usual = {s.name: int(entry.input.get(s.name, min(entry.batch_size, 4))) for s in entry.symbols}
    others = [s for s in entry.symbols if s.name != "batch_size"]
    smallest = {s.name: s.apart or 2 * s.multiple_of for s in others}
    one = [s.apart for s in entry.symbols if s.name == "batch_size" and s.apart]
    for batch in (*one, 2, 3, 4):
        yield {**usual, "batch_size": batch}
    for batch in (*one, 2):
        yield {"batch_size": batch, **smallest}
    for s in others:
        yield {**usual, "batch_size": 2, s.name: s.multiple_of * source.randint(2, usual[s.name] // s.multiple_of + 2)}


def check(
    name: str, variant: str, regime: str, attention: str, sizes: dict[str, int], channels_last: bool = False
) -> None:
    """Images stored channels last: to the number of dimensions in which a batch of one is viewed."""
    entry = ENTRIES[name]
    try:
        traced = trace_entry(
            entry, entry.config, {**entry.input, **sizes}, regime, attention, channels_last=channels_last
        )
    except CaptureError as error:
        if "not installed" in str(error) or "operators, the most" in str(error):
            pytest.skip(str(error))  # Llama 3.1 405B with unfused attention is longer than what is traced
        with pytest.raises(JobError, match=r"cannot be trained with batch_size=1"):
            evaluated(name, variant, sizes, channels_last)
        return
    same = symbolic_fit.as_long if channels_last else symbolic_fit.same_step
    assert same(evaluated(name, variant, sizes, channels_last), traced), (name, variant, sizes, channels_last)
    without = [p.name for p in traced.parameters if p.trainable and p.ready < 0]
    assert [each for each in without if not each.startswith(WITHOUT_GRADIENT.get(name, ()))] == []


def evaluated(name: str, variant: str, sizes: dict[str, int], channels_last: bool) -> OpGraph:
    member = stored_apart.member_at(f"zoo/data/{name}.zip", variant, sizes, channels_last)
    return symbolic.evaluate(symbolic.load(DATA / f"{name}.zip", member), sizes)


@pytest.mark.parametrize("builder", sorted(SMALLEST))
def test_one_model_of_each_family_at_two_sizes(builder: str) -> None:
    """Variants and sizes rotate, so that all of them occur; every family is checked with a batch of one."""
    name = SMALLEST[builder]
    number = sorted(SMALLEST).index(builder)
    variants = variants_of(SHIPPED[name])
    others = [sizes for sizes in sizes_of(SHIPPED[name]) if sizes["batch_size"] > 1]
    variant = variants[number % len(variants)]
    check(name, *variant, next(sizes_of(SHIPPED[name])))
    check(name, *variant, others[number % len(others)])


WITH_IMAGES = sorted(name for name in SMALLEST.values() if SHIPPED[name].has_images)


@pytest.mark.parametrize("name", WITH_IMAGES)
def test_one_model_of_each_family_with_images_channels_last(name: str) -> None:
    number = WITH_IMAGES.index(name)
    variants, sizes = variants_of(SHIPPED[name]), list(sizes_of(SHIPPED[name]))
    check(name, *variants[number % len(variants)], sizes[number % len(sizes)], channels_last=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_every_model_and_variant(name: str) -> None:
    """At the usual sizes and the smallest with a batch of one, and at one more, which rotates; images in rows and
    channels last."""
    every = list(sizes_of(SHIPPED[name]))
    single, others = [s for s in every if s["batch_size"] == 1], [s for s in every if s["batch_size"] > 1]
    for number, variant in enumerate(variants_of(SHIPPED[name])):
        for sizes in (*single, others[number % len(others)]):
            for channels_last in (False, True) if SHIPPED[name].has_images else (False,):
                check(name, *variant, sizes, channels_last)


# --- what a batch of one changes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("batch", "clones"), [(1, 6), (4, 18)])
@pytest.mark.parametrize("length", [23, 24, 25])
def test_a_transformer_xl_that_runs_copies_as_the_captured_one(batch: int, clones: int, length: int) -> None:
    """Counted while a small model with a memory of 24 is trained on a CPU: what differs is a batch of one alone."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):
        clones = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            self.clones += function is torch.ops.aten.clone.default
            return function(*args, **(kwargs or {}))

    config = {**ENTRIES["transformer-xl-base"].config, "layers": 3, "hidden": 64, "heads": 4, "ffn": 96,
              "vocab": 300, "cutoffs": (50, 100, 200)}  # fmt: skip
    sizes = {"batch_size": batch, "seq_len": length, "mem_len": 24}
    workload = build(config, sizes)
    words = torch.zeros(length * batch, dtype=torch.long)
    at = 0
    for cluster in range(3):  # the first tokens are the first words of the tail clusters
        count = workload.inputs[f"rows{cluster}"].numel()
        workload.inputs[f"rows{cluster}"] = torch.arange(at, at + count)
        words[at : at + count] = config["cutoffs"][cluster]
        at += count
    workload.inputs |= {"input_ids": words.view(length, batch), "labels": words.view(length, batch)}
    with Count() as count:
        workload.loss(workload.module, workload.inputs).backward()
    traced = trace_entry(ENTRIES["transformer-xl-base"], config, sizes, "full", "flash")
    captured = sum(traced.kinds[call.kind].name == "aten.clone" for call in traced.calls)
    assert count.clones == captured == clones


@pytest.mark.parametrize("precision", ["bf16", "amp-bf16"])
def test_a_named_length_costs_as_the_lengths_beside_it(precision: str) -> None:
    """A length other than the named one is captured when it is asked for. Products of 384 keys fill tiles better."""
    named = {"seq_len": 384}
    job = Job("transformer-xl-large", precision=precision, gpu="h100-80gb-sxm", gpus=1, batch_size=1, input=named,
              anchors="none")  # fmt: skip
    shorter, usual, longer = (predict(job.replace(input={"seq_len": n})).step.p50 for n in (376, 384, 392))
    assert usual == pytest.approx((shorter + longer) / 2, rel=6e-3)


def test_a_model_that_cannot_train_with_one_sample_is_refused() -> None:
    job = Job("inception-v3", precision="fp32", gpu="h100-80gb-sxm", gpus=1, batch_size=1)
    with pytest.raises(JobError, match=r"more than 1 value per channel when training.*raise batch_size"):
        predict(job)
    with pytest.raises(JobError, match="batch_size=1 and image_size=32"):
        predict(Job("resnet50", gpu="h100-80gb-sxm", gpus=1, batch_size=1, input={"image_size": 32}))
    predict(job.replace(batch_size=2))
    largest = largest_micro_batch(job)
    assert memory_of(job.replace(batch_size=largest)).fits


def test_a_step_without_free_sizes_is_predicted_again_and_again() -> None:
    """U-Net has no other symbol than its batch, so a batch of one leaves nothing that varies."""
    job = Job("unet3d-medical", precision="fp32", batch_size=1)
    seconds = [predict(job.replace(gpu=gpu)).step.p50 for gpu in ("h100-80gb-sxm", "a100-80gb-sxm", "l4")]
    assert seconds == sorted(seconds)


def test_the_step_with_most_of_the_sizes_is_taken() -> None:
    known = [(("a", 1),), (("b", 1),), (("a", 1), ("b", 1))]
    assert stored_apart.closest(known, {"a": 1, "b": 1}) == (("a", 1), ("b", 1))
    assert stored_apart.closest(known[:2], {"a": 1, "b": 1}) == (("a", 1),)
    assert stored_apart.closest(known, {"a": 2, "b": 1}) == (("b", 1),)
    assert stored_apart.closest(known, {"a": 2, "b": 2}) == ()
    assert stored_apart.member_of("half", ()) == "half"
    assert stored_apart.member_of("half", known[2]) == "half@a=1,b=1"
