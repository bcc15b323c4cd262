"""The rows of the tables that are traced: steps, forward passes, parts of steps, and operators alone."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from precision_time.fit.operator_rows import OPERATORS, is_operator, measured_operators
from precision_time.measurements.row import Row, row_of
from precision_time.measurements.table import OPTIONAL, REQUIRED, read_table

OWN = "h100.csv"
"""Table of `measured/` with this project's own steps; those that the host limited say nothing of kernels."""
TABLES = ("measurements.csv", "measurements_more.csv", "timm_train.csv", "torchvision_gpus.csv", OWN)
"""Tables of `published/` and `measured/` with data-parallel steps."""
FORWARD = "timm_forward.csv"
"""Table of `published/` with forward passes of evaluations, which say something about kernels and nothing of steps."""
STEP_PARTS = "h100_parts.csv"
"""Table of `measured/` with seconds of the kernels of some operators of a step, as torch's profiler saw them."""
ALL = (*TABLES, FORWARD, STEP_PARTS, OPERATORS)


_REPARAMETERISED = (
    "efficientvit_m", "fastvit", "levit", "mobileclip", "mobileone", "repghost", "repvgg", "repvit", "tiny_vit",
)  # fmt: skip
_MEASURED_OTHERWISE = {
    "ecaresnext50t_32x4d": "was measured with 26 layers (as long as ecaresnext26t_32x4d); today's timm has 50",
    "ig_resnext101_32x48d": "is resnext101_32x8d in today's timm",
}
"""Start of a timm name -> why its rows cannot be reproduced with today's library."""


def measured_otherwise(row: Row) -> str:
    """Why what was measured is not what today's library runs under that name; empty where it is."""
    return another_today(row.model, row.job.torch or "" if row.job is not None else "", is_forward(row))


def another_today(model: str, version: str, forward: bool = False) -> str:
    """`measured_otherwise` of a model under a version of PyTorch, of a step or of a forward pass."""
    name = model.removeprefix("timm:")
    if name == model:
        return ""
    for start, reason in _MEASURED_OTHERWISE.items():
        if name.startswith(start):
            return f"{model} {reason}"
    if version.startswith("1.") and (name.startswith("tresnet") or "iabn" in name):
        return f"{model} was measured with InPlaceABN, for which timm has batch norm since PyTorch 2.0"
    if forward and version == "2.9" and name.startswith(_REPARAMETERISED):
        return f"{model} was measured with its branches fused (timm's reparameterize_model)"
    if forward and version != "2.9" and name.startswith(_RESIDUAL_STEMS):
        return f"{model} was measured with group norms in half precision and layer norms in single (timm's fast norm)"
    return ""


def is_forward(row: Row) -> bool:
    """Whether a row is a forward pass, not a step."""
    return row.id.startswith(_FORWARD_ID)


def is_step(row: Row) -> bool:
    """Whether a row is a whole step, not a forward pass, a part or an operator."""
    return not row.id.startswith((_FORWARD_ID, _PART_ID)) and not is_operator(row)


def waits_for_others(row: Row) -> bool:
    """Whether a row is of several GPUs in another framework and of trust C. Some of them take 1.3 times as long a
    step on 8 GPUs as on one, in no order of model or precision: input pipelines and Horovod, not kernels. They fit
    factors neither on kernels nor on steps, and are judged as all others."""
    return row.trust == "C" and row.framework != "pytorch" and row.gpus > 1


def part_of(row: Row) -> str:
    """The name of the part that a row of STEP_PARTS is; of an operator its family and variant."""
    return row.id.rpartition(" ")[2]


_FORWARD_ID, _PART_ID = "forward-", "part-"
_TAKEN = {"1.13": "1.13", "2.4": "2.4", "2.91": "2.9"}
"""Versions of PyTorch in FORWARD whose rows are taken, as jobs have them. Times of 2.1 are near to those of 2.4."""


_RESIDUAL_STEMS = ("vit_tiny_r_s", "vit_small_r26_s", "vit_base_r26_s", "vit_base_r50_s", "vit_large_r50_s")
_TORCH_NORMS = ("timm:vit", "timm:deit", "timm:nest", "timm:jx_nest", "timm:flexivit")
"""Models whose norms are timm's own today and were, all or most, PyTorch's in timm 0.9.2 and 1.0.11."""


def forward_rows(path: Path) -> list[Row]:
    """The eager rows of the table FORWARD, one image size of each model; their `measured_s` is that of the pass.

    Attention is fused from PyTorch 2.0 on. timm's own norms ran in half precision: models that had them then are
    predicted 7 to 23 % too slow without, models that had PyTorch's 1 to 3 % too fast.
    """
    with path.open(newline="") as file:
        cells = [(i, line) for i, line in enumerate(csv.DictReader(file), 2) if line["execution"] == "eager"]
    sizes: dict[str, Counter[str]] = {}
    for _, line in cells:
        sizes.setdefault(line["model"], Counter())[line["image_size"]] += 1
    usual = {model: max(count, key=lambda size: (count[size], -int(size))) for model, count in sizes.items()}
    rows = []
    for number, line in cells:
        if line["image_size"] != usual[line["model"]] or line["torch"] not in _TAKEN:
            continue
        version = _TAKEN[line["torch"]]
        given = {name: line.get(name, "") for name in (*REQUIRED, *OPTIONAL)} | {
            "id": f"{_FORWARD_ID}{number}", "source": path.name, "trust": "A", "framework": "pytorch", "gpus": "1",
            "input": f"image_size={line['image_size']}", "optimizer": "none", "step_time_s": line["forward_s"],
            "attention": "math" if version.startswith("1.") else "flash",
            "torch": version,
        }  # fmt: skip
        if line["precision"].startswith("amp") and (version == "2.9" or not line["model"].startswith(_TORCH_NORMS)):
            given["model_config"] = "fast_norm=true"
        rows.append(row_of(number, given))
    return rows


def table_path(tables: Path, name: str) -> Path:
    """Where a table of ALL is."""
    return tables / ("measured" if name in (OWN, STEP_PARTS, OPERATORS) else "published") / name


def part_rows(path: Path) -> list[Row]:
    """The rows of the table STEP_PARTS; their `measured_s` is that of the part's kernels."""
    rows = []
    with path.open(newline="") as file:
        for number, line in enumerate(csv.DictReader(file), 2):
            given = {name: line.get(name, "") for name in (*REQUIRED, *OPTIONAL)} | {
                "id": f"{_PART_ID}{number} {line['part']}", "source": path.name, "trust": "A", "framework": "pytorch",
            }  # fmt: skip
            rows.append(row_of(number, given))
    return rows


def rows_of(tables: Path, name: str) -> Sequence[Row]:
    path = table_path(tables, name)
    if name == OWN:
        return [row for row in read_table(path).rows if row.trust != "C"]
    if name == OPERATORS:
        return [operator.row for operator in measured_operators(path)]
    of_parts = {FORWARD: forward_rows, STEP_PARTS: part_rows}
    return of_parts[name](path) if name in of_parts else read_table(path).rows


def family_of(model: str, other: str = "") -> str:
    """The family of a model: of timm the module that defines it, of torchvision the like, else `other`."""
    library, colon, name = model.partition(":")
    if library == "timm" and colon:
        from timm.models import get_deprecated_models, model_entrypoint

        current = get_deprecated_models().get(name) or name
        return str(model_entrypoint(current.partition(".")[0]).__module__).rpartition(".")[2]
    if library == "torchvision" and colon:
        return next((family for start, family in _TORCHVISION if name.startswith(start)), name)
    return other


_TORCHVISION = (
    ("resne", "resnet"), ("wide_resnet", "resnet"), ("densenet", "densenet"), ("vgg", "vgg"), ("shuffle", "shufflenet"),
    ("squeeze", "squeezenet"), ("mobilenet", "efficientnet"), ("mnasnet", "efficientnet"),
    ("efficientnet", "efficientnet"), ("inception", "inception_v3"), ("googlenet", "inception_v3"),
)  # fmt: skip
"""Start of a torchvision name -> family."""
