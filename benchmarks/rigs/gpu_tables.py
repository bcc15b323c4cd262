"""The tables of `data/measured/` from a folder that `gpu_day` wrote: `python -m benchmarks.rigs.gpu_tables FOLDER`.

h100.csv        the steps, each with a grade of trust: what the host limited says little of a GPU
h100_parts.csv  seconds of the kernels of some operators of a step, added up over its shapes, as torch's profiler saw
                them; what is left out is too short to be timed
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

from precision_time.measure.whole_steps import COLUMNS
from precision_time.report.table import csv_rows
from precision_time.report.write import write_whole
from precision_time.timing.few_channels import WHOLE_CHANNELS

COMMAND = "python -m benchmarks.rigs.gpu_tables"
GPU_BUSY, GPU_NEARLY = 0.9, 0.8
"""Share of a step that the host's own time may have at most, or profiled kernels must have, in grades A and B."""
IDLE_W, IDLE_HOST = 300.0, 0.7
"""Below this power a GPU waits, if the host takes this share of the step."""
LEAST_S = 2e-4
RAN_OTHERWISE = {
    "mixtral-8x7b": "experts ran one after another, by slices of their weights, not as the grouped products that are "
    "predicted",
    "gemma3-1b": "attention with a window ran written out, not as the kernel that is predicted",
    "efficientdet-d0": "the entry of that time: padding of TensorFlow, loss written out, no average of weights",
    "maskrcnn-r50-fpn": "frozen norms gave single precision, not that of the images",
    "stable-diffusion-v2": "gradients were not clipped",
}
"""Model -> why its step was not the one that is predicted: grade C."""
_OPERATORS = {
    "batch_norm": "cudnn_batch_norm native_batch_norm",
    "batch_norm_backward": "cudnn_batch_norm_backward native_batch_norm_backward",
    "layer_norm": "native_layer_norm",
    "layer_norm_backward": "native_layer_norm_backward",
    "product": "mm addmm bmm baddbmm",
    "softmax": "_softmax _softmax_backward_data _log_softmax _log_softmax_backward_data",
    "pooling": "avg_pool2d avg_pool2d_backward max_pool2d_with_indices max_pool2d_with_indices_backward",
    "reduction": "sum mean linalg_vector_norm",
    "copy": "copy_ cat stack clone roll constant_pad_nd _to_copy",
    "pointwise": "add add_ mul mul_ div div_ sub neg relu relu_ clamp_min clamp_min_ threshold_backward gelu "
    "gelu_backward silu silu_ silu_backward hardswish hardswish_ hardswish_backward hardsigmoid hardsigmoid_backward "
    "hardtanh hardtanh_ hardtanh_backward sigmoid sigmoid_ sigmoid_backward leaky_relu leaky_relu_ "
    "leaky_relu_backward tanh tanh_backward exp rsqrt pow addcmul where masked_fill masked_fill_",
}
PART_OF = {f"aten.{operator}": part for part, names in _OPERATORS.items() for operator in names.split()}
"""Operator -> the part of a step that it belongs to; convolutions are told apart by their shapes (`kind_of`)."""
CONVOLUTIONS = frozenset({"aten.cudnn_convolution", "aten.convolution", "aten._conv_depthwise2d"})
TRANSPOSED, BACKWARD = "aten.cudnn_convolution_transpose", "aten.convolution_backward"
PART_COLUMNS = (
    "part", "model", "model_config", "input", "batch_size", "gpus", "gpu", "precision", "optimizer", "memory_format",
    "torch", "step_time_s",
)  # fmt: skip
SYSTEM = "h100-virtual-machine"
"""The node of data/measured/h100 (hardware/data/nodes.yaml), whose host is slower than a DGX H100's."""
Line = dict[str, str]
Key = tuple[str, str, str, str]


def key_of(line: Mapping[str, str]) -> Key:
    """What names a job in the tables of a folder."""
    return line["model"], line["precision"], line["batch_size"], line["memory_format"]


def kind_of(x: Sequence[int], weight: Sequence[int], half: bool) -> str:
    """Kind of a convolution, from the shapes of its input (N, C, ...) and its weight (outputs, C per group, ...)."""
    if x[1] != weight[1]:
        return "depthwise" if weight[1] == 1 else "grouped"
    if prod(weight[2:]) == 1:
        return "one_tap"
    return "few" if half and len(weight) > 3 and x[1] < WHOLE_CHANNELS else "larger"


def part_of(line: Line) -> str:
    """The part of a step that a profiled operator belongs to; empty for none.

    A transposed convolution, which is the gradient of one, counts with the gradients of larger filters, and so does all
    of its own gradient, whose weight has its inputs first.
    """
    operator, backward = line["operator"], line["operator"] == BACKWARD
    if operator == TRANSPOSED:
        return "convolution_larger_backward"
    if operator not in CONVOLUTIONS and not backward:
        return PART_OF.get(operator, "")
    of_each = [[int(size) for size in shape.split("x")] for shape in line["shapes"].split(";")[: 2 + backward]]
    x, weight = of_each[-2:]
    transposed = backward and of_each[0][1] != weight[0]
    kind = "larger" if transposed else kind_of(x, weight, "16" in line["precision"])
    return f"convolution_{kind}_backward" if backward else f"convolution_{kind}"


def seconds_by_part(profiled: Sequence[Line]) -> dict[Key, dict[str, float]]:
    """Of every profiled job the seconds by part, "" for all operators together."""
    found: dict[Key, dict[str, float]] = {}
    for line in profiled:
        of_job, seconds = found.setdefault(key_of(line), {"": 0.0}), float(line["us"]) / 1e6
        of_job[""] += seconds
        if part := part_of(line):
            of_job[part] = of_job.get(part, 0.0) + seconds
    return found


def trust(step: Line, usage: Line, kernels_s: float | None) -> str:
    """A where the GPU limits a step, B where the host takes nearly as long, C where it may be the host.

    `kernels_s`: the profiled time of all kernels. Without it the host's time counts, which is that of the whole step
    where a loss scaler waits for the GPU.
    """
    step_s = float(step["step_time_s"])
    if kernels_s is not None:
        return "A" if kernels_s > GPU_BUSY * step_s else "B" if kernels_s > GPU_NEARLY * step_s else "C"
    host_s = float(usage["host_s"])
    waits = float(usage["power_w"] or IDLE_W) < IDLE_W and host_s > IDLE_HOST * step_s
    if step["precision"] == "amp-fp16" or host_s > GPU_BUSY * step_s or waits:
        return "C"
    return "B" if host_s > GPU_NEARLY * step_s else "A"


def step_lines(folder: Path, name: str, system: str) -> list[Line]:
    """The steps of a folder as rows of the measurement table on `system`, with their trust."""
    parts = seconds_by_part(_read(folder / "profiled.csv"))
    usage = {line["id"]: line for line in _read(folder / "usage.csv")}
    lines = []
    for line in _read(folder / "steps.csv"):
        grade = trust(line, usage[line["id"]], parts.get(key_of(line), {}).get(""))
        why = {"B": "; the host takes nearly as long", "C": "; perhaps limited by the host"}.get(grade, "")
        if reason := RAN_OTHERWISE.get(line["model"]):
            grade, why = "C", f"{why}; {reason}"
        lines.append(line | {"id": f"{name}-{line['id'].replace('timm:', '')}", "source": "this project, data/measured",
                             "system": system, "trust": grade, "notes": line["notes"] + why})  # fmt: skip
    return lines


def part_lines(folder: Path, steps: Sequence[Line]) -> list[Line]:
    """The parts of the profiled steps as rows of h100_parts.csv."""
    of_job = {key_of(line): line for line in steps}
    lines = []
    for key, parts in seconds_by_part(_read(folder / "profiled.csv")).items():
        for part, seconds in parts.items():
            if part and key in of_job and seconds >= LEAST_S:
                same = {name: of_job[key][name] for name in PART_COLUMNS[1:-1]}
                lines.append({"part": part, **same, "step_time_s": f"{seconds:.6g}"})
    return lines


def _read(path: Path) -> list[Line]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the tables; returns the exit code."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="what gpu_day wrote")
    parser.add_argument("--output", type=Path, default=Path("data/measured"), help="default data/measured")
    parser.add_argument("--name", default="h100", help="of the GPU in the names of files and rows (default h100)")
    parser.add_argument("--system", default=SYSTEM, help=f"node of the rows (default {SYSTEM})")
    given = parser.parse_args(arguments)
    try:
        steps = step_lines(given.folder, given.name, given.system)
    except OSError as error:
        print(
            f"{parser.prog}: {error.filename}: {error.strerror}; name a folder of gpu_day with steps", file=sys.stderr
        )
        return 2
    tables: dict[str, tuple[Sequence[str], Sequence[Mapping[str, Any]]]] = {
        given.name: (COLUMNS, steps),
        f"{given.name}_parts": (PART_COLUMNS, part_lines(given.folder, steps)),
    }
    for name, (columns, lines) in tables.items():
        write_whole(given.output / f"{name}.csv", csv_rows(columns, lines).encode())
        print(f"{given.output / name}.csv: {len(lines)} rows")
    return 0


if __name__ == "__main__":
    sys.exit(main())
