"""One row of the table as a job, and what had to be assumed where the row is silent."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from operator import attrgetter

from precision_time.errors import JobError, PrecisionTimeError
from precision_time.job import Job
from precision_time.job.choices import FRAMEWORK_ALIASES, FRAMEWORKS, NOT_PYTORCH
from precision_time.job.code import CodeRule
from precision_time.job.fields import Value, parse_fields
from precision_time.job.precision import parse_precision
from precision_time.measurements.digest import digest
from precision_time.zoo.catalog import ENTRIES
from precision_time.zoo.names import find
from precision_time.zoo.workload import ZooEntry

_DATA = CodeRule("a row of a table")

_DROPS_OUT = frozenset({"megatron", "megatron-deepspeed"})
"""Frameworks whose default dropout is 0.1 (megatron/training/arguments.py, --hidden-dropout)."""
_SYSTEM_OF = {
    ("megatron-deepspeed", "a100-80gb-sxm"): "hgx-a100-4nic",
    ("internevo", "a100-80gb-sxm"): "hgx-a100-4roce100",
}
"""System of rows that give none, but whose source describes the network: vTrain's nodes have 8 GPUs and 800 Gb/s,
InternEvo's 8 GPUs and 400 Gb/s."""
_TORCH_OF = {"llm-foundry": "2.1", "torchtitan": "2.6"}
"""Version of PyTorch of rows that give none, by the dates of their sources: older than its cuDNN attention."""
_DEEPEP = frozenset({"deepseek-v3", "kimi-k2"})
"""Models whose Megatron-Bridge recipes dispatch tokens by DeepEP; rows of others name the dispatcher if it is one."""
_REDUCED = (("gradients reduced in fp32", "float32"), ("gradients reduced in bf16", "bfloat16"))
"""Phrase in a row's notes -> dtype in which gradients are reduced."""
_SCALINGS = {
    "float8 rowwise": "fp8-rowwise",
    "precision printed mxfp8": "fp8-block",
    "precision printed fp8-mx": "fp8-block",
}
"""Phrase in the notes of a row in fp8 -> precision of its job, as the importers name it."""
_SETTINGS = {"token-drop capacity": "capacity_factor=1", "async tp": "overlap_tp=1"}
"""Phrase in the notes -> setting of the layout. The capacity is the default of Megatron-Bridge's
`apply_moe_token_drop`."""
_ZERO_GROUP = re.compile(r"zero1 group (\d+)")


@dataclass(frozen=True, slots=True)
class Row:
    """One measured job.

    job        None where the row cannot be expressed as a job; `reason` is why
    precision  its name in this package, or the cell's text where there is none
    assumed    "field value" for every field of the job that the row leaves open
    setting    equal in rows that are one job in two precisions, apart from batch size and accumulation
    digest     recognises the row among those that the shipped parameters were fitted on
    """

    id: str
    source: str
    line: int
    trust: str
    framework: str
    model: str
    family: str
    gpu: str
    precision: str
    gpus: int
    measured_s: float
    job: Job | None
    reason: str
    assumed: tuple[str, ...]
    setting: tuple[str, ...]
    digest: str

    @property
    def kernels_of(self) -> str:
        """The framework whose kernels the measured job ran: its own where PyTorch stands for it."""
        if self.job is None or (self.job.framework == "pytorch" and self.framework):
            return self.framework
        return self.job.framework

    def at(self, line: int, name: str) -> Row:
        """A row of equal cells on another line, `name` its id; all values are shared."""
        return Row(name, self.source, line, *_AFTER_LINE(self))


_AFTER_LINE = attrgetter(*[item.name for item in fields(Row)][3:])


def row_of(line: int, cells: Mapping[str, str], code: CodeRule = _DATA) -> Row:
    """The row of a line whose numeric cells are numbers or empty (`read_table` has checked them).

    `code`: whether the model of the row may be a Python file, which it may not by default.
    """
    job: Job | None = None
    assumed: tuple[str, ...] = ()
    reason = ""
    try:
        config = parse_fields(cells["model_config"], "model_config")
        entry = _entry(cells["model"], config)
        family = _family(cells["model"], entry)
        if empty := [name for name in ("model", "gpu", "precision") if not cells[name]]:
            reason = f"the row names no {empty[0]}"
        elif not cells["step_time_s"]:
            reason = "no measured time"
        else:
            job, assumed = _job(cells, config, entry, code)
    except PrecisionTimeError as error:
        family, reason = _family(cells["model"], _entry(cells["model"], {})), str(error)
    precision = _precision(cells["precision"])
    return Row(
        id=cells["id"],
        source=cells["source"],
        line=line,
        trust=cells["trust"],
        framework=cells["framework"],
        model=cells["model"],
        family=family,
        gpu=cells["gpu"],
        precision=precision,
        gpus=int(cells["gpus"] or 1),
        measured_s=float(cells["step_time_s"] or math.nan),
        job=job,
        reason=reason,
        assumed=assumed,
        setting=tuple(cells[name].lower() for name in _SETTING),
        digest=digest(cells, precision),
    )


_SETTING = ("model", "model_config", "input", "gpus", "nodes", "gpu", "system", "parallelism", "framework")
"""Not the memory format, optimizer, execution and attention: published full-precision lines drag those along."""


def _precision(text: str) -> str:
    try:
        return parse_precision(text).label
    except JobError:
        return text


def _entry(model: str, config: Mapping[str, Value]) -> ZooEntry | None:
    """The zoo entry of the row's model; a transformer given by its shape is a `gpt`, as in `training_step`."""
    entry = find(model)
    return ENTRIES["gpt"] if entry is None and {"layers", "hidden"} <= set(config) else entry


def _family(model: str, entry: ZooEntry | None) -> str:
    if entry is not None:
        return entry.family
    prefix, colon, _ = model.partition(":")
    return prefix if colon and prefix in ("torchvision", "timm", "hf") else "unknown"


def _layout(text: str, gpus: int, config: Mapping[str, Value]) -> tuple[str, Mapping[str, Value], list[str]]:
    """The row's layout, its model with the rank that `lora=` gives (no degree), and what had to be assumed."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    lora = ";".join(part for part in parts if part.startswith("lora="))
    layout = ",".join(part for part in parts if not part.startswith("lora=")) or "dp"
    config = {**config, **parse_fields(lora, "model_config")}
    degrees = parse_fields(layout.replace(",", ";"), "parallelism") if "=" in layout else {}
    if "etp" not in degrees and all(degrees.get(name, 1) != 1 for name in ("ep", "tp")):
        return f"{layout},etp=1", config, ["etp 1"]  # as published recipes have it; Megatron's own default is tp
    return layout, config, []


def _torch(framework: str, notes: str) -> str | None:
    """The version of PyTorch that notes name (pt112 is 1.12), or that a framework's published runs had."""
    found = re.search(r"\bpt([12])([0-9]{1,2})\b", notes)
    return f"{found[1]}.{int(found[2])}" if found else _TORCH_OF.get(framework)


def _overlaps(framework: str, model: str, notes: str, layout: str) -> list[str]:
    """The overlaps that performance recipes of Megatron-Bridge enable, in addition to the degrees that a row gives."""
    if "no bucket overlap" in notes and "=" in layout:
        return ["overlap_grad_reduce=0"]
    if framework != "megatron-bridge" or "=" not in layout:
        return []
    settings = [setting for setting in ("overlap_grad_reduce=1", "overlap_param_gather=1") if "zero=1" in layout]
    if "sp=1" in layout:
        settings.append("overlap_tp=1")
    if "hybridep" in notes or "deepep" in notes or ("ep=" in layout and model in _DEEPEP):
        settings.append("dispatcher=deepep")
    if "expert all-to-all overlapped" in notes:
        settings.append("overlap_ep=1")
    return settings


def _stated(notes: str, layout: str) -> list[str]:
    """Settings of the layout that notes state."""
    if "=" not in layout:
        return []
    settings = [setting for phrase, setting in _SETTINGS.items() if phrase in notes and setting not in layout]
    group, ranks = _ZERO_GROUP.search(notes), re.search(r"\bdp=(\d+)", layout)
    if group and ranks and int(group[1]) < int(ranks[1]):
        settings.append(f"shard={group[1]}")
    return settings


def _memory_format(framework: str, precision: str, entry: ZooEntry | None) -> str:
    """The memory format of images where the row gives none: PyTorch's default. TensorFlow chooses it itself, channels
    last for images in float16 (tensorflow/compiler/mlir/tensorflow/tests/layout_optimization_layout_assignment_gpu_
    cc_70.mlir says so of GPUs with tensor cores), and keeps volumes channels first."""
    if entry is None or not entry.has_images:
        return ""
    half = parse_precision(precision).compute_dtype == "float16"
    return "nhwc" if framework.startswith("tensorflow") and half and "image_size" in entry.input else "nchw"


_COCO = (800, 1333)
"""Smallest short and largest long side of COCO's images in detectors of two stages."""
_LONG_SIDES = ((1088, 0.55), (1216, 0.40), (1344, 0.05))
"""Long side of these images, padded to a multiple of 32, and the share of images: 640 x 480, 640 x 427 and wider ones,
in shares that are assumed. They make the mean image 0.91 million pixels before padding. Faster R-CNN takes 180 GFLOP
an image of COCO (arXiv:2005.12872, table 1) and 207 at 1280 x 800 (MMDetection's model zoo): 0.89 million."""


def _input(text: str, notes: str, images: int) -> tuple[Mapping[str, Value], list[str]]:
    """The sizes of a row's input, with the mean one of images that vary, and what had to be assumed."""
    sizes = parse_fields(text, "input")
    if "image sizes vary" not in notes or sizes.get("image_size") != _COCO:
        return sizes, []
    long_side = _mean_long_side(images)
    return {**sizes, "image_size": (_COCO[0], long_side)}, [f"input image_size={_COCO[0]}x{long_side}"]


def _mean_long_side(images: int) -> int:
    """Mean long side of batches that are padded to the largest of their images."""
    mean, narrower, reached = 0.0, 0.0, 0.0
    for long_side, share in _LONG_SIDES:
        reached += share
        mean += long_side * (reached**images - narrower)
        narrower = reached**images
    return 32 * round(mean / 32)


def _implementation(
    framework: str, optimizer: str | None, torch: str | None, notes: str, entry: ZooEntry | None
) -> str | None:
    """Optimizer implementation that a row's framework ran, from its notes and the usual one of its time.

    torch.optim updates many tensors in one call from PyTorch 2.0 on, as jobs do by default.
    """
    if framework != "pytorch" or "fused" in notes:
        return "fused"
    if "torchscript lamb" in notes:
        return "scripted"
    old = torch is None or torch.startswith("1.")
    if old and entry and entry.optimizer_impl and optimizer:
        return entry.optimizer_impl
    if optimizer in ("sgd", "rmsprop", "adam", "adamw"):
        return "torch1" if old else None  # torch.optim of 2020-2022 loops over the tensors
    return "fused" if optimizer in ("lamb", "novograd") else None


def _job(
    cells: Mapping[str, str], config: Mapping[str, Value], entry: ZooEntry | None, code: CodeRule
) -> tuple[Job, tuple[str, ...]]:
    """The job, with the likeliest default of its framework in every field left empty, and those defaults."""
    notes = cells["notes"].lower()
    framework = FRAMEWORK_ALIASES.get(cells["framework"], cells["framework"])
    optimizer = cells["optimizer"] or None
    torch = cells["torch"] or _torch(cells["framework"], notes)
    implementation = cells["optimizer_impl"] or _implementation(cells["framework"], optimizer, torch, notes, entry)
    taken = {
        "batch_size": str(entry.batch_size) if entry else "",
        "grad_accum": "1",
        "gpus": "1",
        "parallelism": "dp",
        "optimizer": entry.optimizer if entry else "",
        "memory_format": _memory_format(framework, cells["precision"], entry),
        "attention": "flash" if entry and entry.attention else "",
        "recompute": "none",
        "execution": "static_graph" if framework in NOT_PYTORCH else "eager",
    }
    assumed = [f"{name} {value}" for name, value in taken.items() if value and not cells[name]]
    if implementation is not None and optimizer != "none" and not cells["optimizer_impl"]:
        assumed.append(f"optimizer_impl {implementation}")
    if entry and entry.ema and optimizer != "none" and not cells["ema"]:
        assumed.append(f"ema {entry.ema}")
    system = cells["system"] or _SYSTEM_OF.get((cells["framework"], cells["gpu"]))
    if not cells["system"]:
        assumed.append(f"system {system}" if system else "system: the usual one of that GPU")
    if torch and not cells["torch"]:
        assumed.append(f"torch {torch}")
    if unscaled := "no gradscaler" in notes:
        assumed.append("loss_scale none")
    if triton := "flash-style triton" in notes:
        assumed.append("attention triton")
    if not cells["no_sync"] and "no no_sync" in notes:
        assumed.append("no_sync false")
    reduced = cells["communication_dtype"] or next((dtype for phrase, dtype in _REDUCED if phrase in notes), None)
    if reduced and not cells["communication_dtype"]:
        assumed.append(f"communication_dtype {reduced}")
    layout, config, implied = _layout(cells["parallelism"], int(cells["gpus"] or 1), config)
    assumed += implied
    settings = [*_overlaps(cells["framework"], cells["model"], notes, layout), *_stated(notes, layout)]
    if settings:
        layout = ",".join((layout, *settings))
        assumed += [name.replace("=", " ") for name in settings]
    precision = cells["precision"]
    if scaling := next((name for phrase, name in _SCALINGS.items() if precision == "fp8" and phrase in notes), None):
        precision = scaling
        assumed.append(f"precision {scaling}")
    execution = cells["execution"] or taken["execution"]
    if execution == "cuda_graphs" and "partial cuda graphs (transformer_engine" in notes:
        execution = "eager"  # attention or the router is in the graph, experts never are
        assumed.append("execution eager")
    if framework not in FRAMEWORKS:
        framework = "pytorch"
        assumed.append("framework pytorch")
    if framework in _DROPS_OUT and entry is not None and "dropout" in entry.config and "dropout" not in config:
        config = {**config, "dropout": 0.1}
        assumed.append("dropout 0.1")
    sizes, implied = _input(cells["input"], notes, int(cells["batch_size"] or 1))
    assumed += implied
    job = Job(
        cells["model"],
        model_config=config,
        input=sizes,
        precision=precision,
        batch_size=int(cells["batch_size"]) if cells["batch_size"] else None,
        grad_accum=int(cells["grad_accum"] or 1),
        gpu=cells["gpu"],
        gpus=int(cells["gpus"] or 1),
        nodes=int(cells["nodes"]) if cells["nodes"] else None,
        system=system,
        layout=layout,
        optimizer=optimizer,
        optimizer_impl=implementation,
        ema=cells["ema"] or None,
        loss_scale="none" if unscaled else "dynamic",
        memory_format=cells["memory_format"] or taken["memory_format"] or "nchw",
        attention="triton" if triton else cells["attention"] or "flash",
        recompute=cells["recompute"] or "none",
        execution=execution,
        framework=framework,
        torch=torch,
        no_sync=cells["no_sync"] or "no no_sync" not in notes,  # type: ignore[arg-type]
        communication_dtype=reduced,
        code=code,
    )
    return job, tuple(assumed)
