"""The operators of training steps of the zoo with all their arguments, to be measured on any machine.

They are recorded once (`python -m precision_time.measure.zoo_operators`, minutes, needs the models extra) and ship with
the package, so that nothing has to be traced where they are measured.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from precision_time.errors import DataError, PrecisionTimeError
from precision_time.job.job import Job
from precision_time.measure.bench import Bench
from precision_time.measure.products import Limits
from precision_time.measure.recording import Recorded, in_dtype, label, passes, record, tensors_of
from precision_time.measure.replay import bench_of, weighed_operators
from precision_time.shipped import shipped_file, write_shipped, writing
from precision_time.timing.operators import WorkOptions, works
from precision_time.zoo.catalog import ENTRIES

DATA = Path(__file__).parent / "data" / "zoo_operators.zip"
MODELS: Sequence[str] = (
    "resnet50", "bert-large", "gpt2", "waveglow", "unet3d", "efficientnet-b0", "dlrm-small", "transformer-xl-base",
    "llama3-8b", "jasper-10x5dr", "tft", "maskrcnn-r50-fpn", "ncf", "vit-b-16", "ssd300-resnet50", "t5-base",
    "convnext-t", "nnunet-2d", "swin-t", "hifigan", "resnext101-32x4d", "bart-large", "mobilenet-v3-large",
    "densenet121", "efficientdet-d0", "graphsage", "vgg16", "quartznet-15x5", "inception-v3", "retinanet-resnext50",
    "efficientnet-b4", "gpunet-0", "vnet", "unet-industrial", "nnunet-3d", "gpt2-xl", "bert-base", "nemotron-8b",
)  # fmt: skip
"""One or two models of every family; the first differ most from each other."""
_LONGER = {"bert-large": 512, "gpt2": 512, "vit-b-16": None}
_SMALLER_BATCH = 8
_LEAST_SHARE = 0.01
_MODES = {"fp32": "float32", "amp-bf16": "bfloat16"}


@dataclass(frozen=True, slots=True)
class ZooOperator:
    """An operator of a model's step, in float32 or under autocast to bfloat16, and its share of the step's time."""

    model: str
    precision: str
    share: float
    flops: float
    recorded: Recorded


def zoo_operators() -> list[ZooOperator]:
    """The shipped operators: the largest of every model first, then the second largest of every model, and so on."""
    with zipfile.ZipFile(shipped_file(f"measure/data/{DATA.name}")) as archive:
        content = json.loads(archive.read("operators.json"))
    return [
        ZooOperator(
            model, precision, share, flops, Recorded(name, overload, tuple(arguments), tuple(map(tuple, keywords)))
        )
        for model, precision, share, flops, name, overload, arguments, keywords in content["operators"]
    ]


def zoo_benches(dtype: torch.dtype, tf32: bool, limits: Limits, device: torch.device) -> list[Bench]:
    """The operators of the zoo within the limits, in one dtype.

    float32 and float64 come from steps in fp32, float16 and bfloat16 from steps under autocast. On a GPU every other
    operator on images in a 16-bit dtype has them stored channels last.
    """
    name = str(dtype).removeprefix("torch.")
    low = name in ("float16", "bfloat16")
    benches: dict[str, Bench] = {}
    for index, each in enumerate(zoo_operators()):
        if (each.precision == "amp-bf16") != low:
            continue
        operator = in_dtype(each.recorded, "bfloat16" if low else "float32", name)
        elements = sum(_elements(shape) for shape, _, _ in tensors_of(operator))
        if elements > limits.elements or each.flops > limits.flops:
            continue
        nhwc = device.type == "cuda" and low and index % 2 == 1 and _has_images(operator)
        for part, one in passes(operator):
            bench = bench_of(one, part, tf32, nhwc)
            benches.setdefault(bench.label, bench)
    return list(benches.values())


def _elements(shape: Sequence[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _has_images(each: Recorded) -> bool:
    return any(len(shape) == 4 for shape, _, _ in tensors_of(each)) and "attention" not in each.operator


def jobs_of(model: str) -> Iterator[Job]:
    """The recorded steps: the model's usual batch and an eighth of it; for some, two sequence lengths."""
    entry = ENTRIES[model]
    batches = sorted({entry.batch_size, max(entry.batch_size // _SMALLER_BATCH, 1)}, reverse=True)
    inputs: list[dict[str, Any]] = [dict(entry.input)]
    if longer := _LONGER.get(model):
        inputs.append({**entry.input, "seq_len": longer})
    for size in inputs:
        for batch in batches:
            for precision in _MODES:
                yield Job(model, precision=precision, batch_size=batch, input=size)


def recorded_of(model: str) -> list[ZooOperator]:
    """Every distinct operator with at least `_LEAST_SHARE` of one of the model's steps, the largest share first."""
    operators: dict[tuple[str, str], ZooOperator] = {}
    for job in jobs_of(model):
        for each, share in weighed_operators(record(job, "cuda"), "cuda"):
            key = (job.precision, label(each.recorded))
            if share >= _LEAST_SHARE and (key not in operators or operators[key].share < share):
                flops = max((work.flops for work in works(each.kind, WorkOptions()) or ()), default=0.0)
                operators[key] = ZooOperator(model, job.precision, round(share, 4), flops, each.recorded)
    return sorted(operators.values(), key=lambda each: -each.share)


def main(arguments: Sequence[str] | None = None) -> int:
    """Record the operators of the zoo and write the shipped file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", default=MODELS, help="record these alone (default: all)")
    options = parser.parse_args(arguments)
    try:
        with writing():
            return _write_operators(options.models)
    except DataError as error:
        print(error, file=sys.stderr)
        return 2


def _write_operators(models: Sequence[str]) -> int:
    """Record the operators of these models; returns the exit code."""
    lists: list[list[ZooOperator]] = []
    for model in models:
        try:
            lists.append(recorded_of(model))
        except PrecisionTimeError as error:
            print(f"{model}: {error}", file=sys.stderr)
            return 1
        print(f"{model}: {len(lists[-1])} operators", file=sys.stderr)
    ranked = [each[place] for place in range(max(map(len, lists))) for each in lists if place < len(each)]
    seen: set[tuple[str, str]] = set()
    rows = []
    for one in ranked:
        key = (one.precision, label(one.recorded))
        if key not in seen:
            seen.add(key)
            r = one.recorded
            rows.append(
                [one.model, one.precision, one.share, one.flops, r.operator, r.overload, r.arguments, r.keywords]
            )
    text = json.dumps({"torch": torch.__version__, "operators": rows}, separators=(",", ":"))
    info = zipfile.ZipInfo("operators.json", (1980, 1, 1, 0, 0, 0))
    info.compress_type = zipfile.ZIP_DEFLATED
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(info, text, compresslevel=9)
    write_shipped(DATA, buffer.getvalue())
    print(f"{DATA.name}: {len(rows)} operators, {DATA.stat().st_size / 1e3:.0f} kB", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
