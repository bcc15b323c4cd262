"""What the page has to know of the program, as a JavaScript module: `python -m precision_time.serve.page.words`.

The form of a job is made from the field table, and labels and names are those of the command line's text, so that page,
documentation and checks cannot differ. A test compares the file with what this module makes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from precision_time.estimate.goodput import LABELS
from precision_time.estimate.text import TERM_LABELS
from precision_time.field_table import TableField, field_table
from precision_time.hardware import default_catalog
from precision_time.hardware.storage import storages
from precision_time.job.datasets import DATASETS
from precision_time.job.precision import PRECISIONS, Precision
from precision_time.plan.goal import OBJECTIVES
from precision_time.plan.walltime import FORMATS
from precision_time.report.write import write_whole
from precision_time.serve.page import static_folder

FILE = static_folder / "words.js"
_SECTIONS = ("job", "run", "data", "lora", "input", "model_config")
_NOT_IN_A_REQUEST = ("device",)
"""Fields that name files, which a server does not open."""


def words() -> dict[str, Any]:
    """Fields by section, names to complete, labels of the parts of a step and of a run."""
    catalog = default_catalog()
    return {
        "fields": list(_fields()),
        "precisions": {name: _precision(each) for name, each in PRECISIONS.items()},
        "nodes": sorted(catalog.nodes),
        "storages": sorted(storages()),
        "datasets": sorted(DATASETS),
        "providers": ["any", *sorted({price.provider for price in catalog.prices.values()})],
        "terms": dict(TERM_LABELS),
        "parts": dict(LABELS),
        "objectives": list(OBJECTIVES),
        "formats": list(FORMATS),
    }


def _fields() -> Iterator[dict[str, Any]]:
    fields = [f for f in field_table() if f.section in _SECTIONS and f.name not in _NOT_IN_A_REQUEST]
    lines = Counter((field.section, field.name) for field in fields)
    for field in fields:
        yield _field(field, several=lines[field.section, field.name] > 1)


def _field(field: TableField, several: bool) -> dict[str, Any]:
    """A field as JSON; `models` only where other models have another range (`several`)."""
    of = field.type
    given: dict[str, Any] = {
        "section": field.section,
        "name": field.name,
        "kind": of.kind,
        "range": of.range,
        "meaning": field.meaning,
        "choices": list(of.choices),
        "models": list(field.models) if several else [],
    }
    return {key: value for key, value in given.items() if value not in ([], "")}


def _precision(precision: Precision) -> str:
    """What the name means, in a line."""
    if precision.name == "torch-fp32":
        return "PyTorch's default: TF32 convolutions, fp32 products"
    if precision.name == "fp8":
        return "fp8 products, bf16 elsewhere, fp32 master weights"
    plain = {"float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
    if precision.compute_dtype == precision.parameter_dtype and not (precision.tf32 or precision.master_weights):
        return f"{plain[precision.compute_dtype]} throughout"
    compute = "TF32 products and convolutions" if precision.tf32 else plain[precision.compute_dtype]
    kind = "autocast " if precision.autocast else ""
    master = "fp32 master weights" if precision.master_weights else f"{plain[precision.parameter_dtype]} weights"
    scaling = ", loss scaling" if precision.loss_scaling else ""
    return f"{kind}{compute}, {master}{scaling}"


def as_module() -> str:
    """The text of the JavaScript module."""
    head = "// Written by python -m precision_time.serve.page.words; do not edit."
    lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in words().items() if key != "fields")
    fields = ",\n".join(f"    {json.dumps(field)}" for field in words()["fields"])
    return f'{head}\nexport default {{\n{lines},\n  "fields": [\n{fields}\n  ]\n}};\n'


if __name__ == "__main__":
    write_whole(FILE, as_module())
