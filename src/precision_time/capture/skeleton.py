"""A `make_job` for a training script, filled in with what its text says. The script is read, not run.

For a script that trains a model of torchvision, timm or the Hugging Face hub it is a job file instead. What the text
does not say (the shape of a batch, an argument without a default) stands there as `...`.
"""

from __future__ import annotations

import ast
import keyword
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from precision_time.capture.script_models import library_models
from precision_time.checks import show
from precision_time.errors import DataError
from precision_time.reading import read_text

_BASES = ("Module", "PreTrainedModel")
"""Ends of the names of classes that models derive from."""
_OPTIMIZERS = frozenset("SGD Adam AdamW Adagrad RMSprop Adafactor Adamax NAdam RAdam Lion AdamW8bit".split())
_FIELDS = {
    "SGD": "sgd", "Adam": "adam", "AdamW": "adamw", "Adagrad": "adagrad", "RMSprop": "rmsprop",
    "Adafactor": "adafactor", "Lion": "lion", "AdamW8bit": "adamw-8bit",
}  # fmt: skip
"""Classes of optimizers -> the field of a job; others are left to the model's own."""
_LOSSES = {
    "cross_entropy": True, "nll_loss": True, "mse_loss": False, "l1_loss": False, "smooth_l1_loss": False,
    "binary_cross_entropy_with_logits": False, "binary_cross_entropy": False,
    "CrossEntropyLoss": True, "NLLLoss": True, "MSELoss": False, "L1Loss": False, "SmoothL1Loss": False,
    "BCEWithLogitsLoss": False, "BCELoss": False,
}  # fmt: skip
"""Losses -> whether their targets are numbers of classes."""


@dataclass(slots=True)
class Found:
    """What the text of a script says about its training."""

    models: list[ast.ClassDef] = field(default_factory=list)
    optimizers: list[str] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)
    batch_sizes: list[int] = field(default_factory=list)
    epochs: int | None = None
    half: set[str] = field(default_factory=set)
    scales: bool = False
    runs_when_imported: bool = False


def skeleton(path: str | Path) -> str:
    """A file with a `make_job` for the script, or a job file where its model is one of a library.

    Raises `DataError` for a file that is no Python, or has no model.
    """
    text = read_text(path)
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise DataError(f"file {show(str(path))}{line} is no Python that can be read; correct it") from None
    found = _found(tree)
    if not found.models:
        if named := library_models(tree):
            return _job_file(Path(path), named, found)
        raise DataError(
            f"file {show(str(path))} defines no torch.nn.Module and makes no model of torchvision, timm or Hugging "
            "Face; name the file that does, or a model of `precision-time zoo`, torchvision:NAME, timm:NAME, "
            "hf:CONFIG.json"
        )
    return _text(Path(path), found)


def _found(tree: ast.Module) -> Found:
    found = Found()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and any(_last(base).endswith(_BASES) for base in node.bases):
            found.models.append(node)
        elif isinstance(node, ast.Call):
            _call(node, found)
        elif isinstance(node, ast.Attribute) and node.attr in ("float16", "half", "bfloat16"):
            found.half.add("bf16" if node.attr == "bfloat16" else "fp16")
    found.epochs = next(_epochs(tree), None)
    found.models.sort(key=lambda each: each.lineno)
    found.runs_when_imported = any(
        isinstance(node, (ast.For, ast.While, ast.With))
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call))
        for node in tree.body
    )
    return found


def _epochs(tree: ast.Module) -> Iterator[int]:
    """N of `for epoch in range(N)`."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.For) and isinstance(node.target, ast.Name) and "epoch" in node.target.id):
            continue
        made = node.iter
        if isinstance(made, ast.Call) and _last(made.func) == "range" and made.args:
            last = made.args[min(1, len(made.args) - 1)]
            if isinstance(last, ast.Constant) and type(last.value) is int and last.value > 0:
                yield last.value


def _job_file(path: Path, named: list[str], found: Found) -> str:
    """The job as YAML; names that the zoo knows are written as there, so that no torch is needed."""
    from precision_time.zoo.names import find

    known = [find(name.partition(":")[2] if name.startswith("torchvision:") else name) for name in named]
    model = known[0].name if known[0] is not None else named[0]
    if "/" in model:
        model = f"hf:CONFIG.json  # the config of {named[0]}, which is not among the named models"
    also = f"  # also: {', '.join(named[1:])}" if len(named) > 1 else ""
    lines = [
        f"# The job of {path.name!r}, as its text says; --gpu, --gpus and other flags override it:",
        "# precision-time predict THIS_FILE.yaml --gpu h100 --gpus 8",
        f"model: {model}{also}",
        f"precision: {_precision(found)}",
    ]
    if found.batch_sizes:
        lines.append(f"batch_size: {found.batch_sizes[0]}")
    if found.optimizers and (name := _FIELDS.get(found.optimizers[0])):
        lines.append(f"optimizer: {name}")
    if found.epochs:
        lines.append(f"run: {{epochs: {found.epochs}}}  # of the model's usual data set, unless dataset_size is given")
    return "\n".join([*lines, ""])


def _call(node: ast.Call, found: Found) -> None:
    name = _last(node.func)
    if name in _OPTIMIZERS:
        found.optimizers.append(name)
    elif name in _LOSSES:
        found.losses.append(name)
    elif name == "GradScaler":
        found.scales = True
    for word in node.keywords:
        value = word.value.value if isinstance(word.value, ast.Constant) else None
        if word.arg == "batch_size" and type(value) is int and 0 < value < 2**24:
            found.batch_sizes.append(value)
        elif word.arg in ("bf16", "fp16") and value is True:
            found.half.add(word.arg)


def _last(node: ast.expr) -> str:
    """The last name of a dotted one: AdamW of torch.optim.AdamW."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _text(path: Path, found: Found) -> str:
    model = _largest(found.models)
    batch = found.batch_sizes[0] if found.batch_sizes else 32
    loss = found.losses[0] if found.losses else ""
    inputs = ", ".join(_arguments(model, "forward"))
    others = ", ".join(each.name for each in found.models if each is not model)
    also = f"  # also: {others}" if others else ""
    if path.stem.isidentifier() and not keyword.iskeyword(path.stem):
        imports = [f"from {path.stem} import {model.name}{also}"]
    else:
        imports = ["import importlib", "", f"{model.name} = importlib.import_module({path.stem!r}).{model.name}{also}"]
    if found.runs_when_imported:
        imports.insert(0, f'# {path.name!r} runs code when it is imported; put that under if __name__ == "__main__"')
    entries = [
        '"model": model',
        '"inputs": torch.empty(batch_size, ...)',
        *_loss_entries(loss),
        f'"optimizer": {_optimizer(found)}',
    ]
    body = [f"        {entry}," for entry in entries]
    body[1] += f"  # shape of a batch: {model.name}.forward({inputs})"
    return "\n".join([
        f"# The job of {path.name!r} for precision-time. Complete the lines with ...", "",
        "import torch", "from torch import nn", "", *imports, "", "",
        f"def make_job(batch_size={batch}):",
        f"    model = {model.name}({', '.join(f'{name}=...' for name in _arguments(model, '__init__'))})",
        "    return {", *body, "    }", "", "",
        f"# precision-time predict THIS_FILE.py --precision {_precision(found)} --batch-size {batch} --gpu h100", "",
    ])  # fmt: skip


def _largest(models: list[ast.ClassDef]) -> ast.ClassDef:
    """The model that no other one names, the last of several; parts of a model stand before it."""
    named = {
        node.id for model in models for node in ast.walk(model) if isinstance(node, ast.Name) and node.id != model.name
    }
    return next((model for model in reversed(models) if model.name not in named), models[-1])


def _arguments(model: ast.ClassDef, method: str) -> Iterator[str]:
    """Names of a method's arguments; of `__init__` those without a default."""
    for node in model.body:
        if isinstance(node, ast.FunctionDef) and node.name == method:
            given = [*node.args.posonlyargs, *node.args.args][1:]
            if method == "__init__":
                given = given[: len(given) - len(node.args.defaults)] if node.args.defaults else given
                given += [a for a, d in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if d is None]
            yield from (each.arg for each in given)
            return


def _loss_entries(loss: str) -> list[str]:
    if not loss:
        return ['"loss": ...']
    targets = "torch.empty(batch_size, dtype=torch.long)" if _LOSSES[loss] else "torch.empty(batch_size, ...)"
    made = f"nn.{loss}()" if loss[0].isupper() else f"nn.functional.{loss}"
    return [f'"targets": {targets}', f'"loss": {made}']


def _optimizer(found: Found) -> str:
    name = found.optimizers[0] if found.optimizers else "..."
    if name == "AdamW8bit":
        return '"adamw-8bit"'
    if name == "Lion":
        return '"lion"'
    return f"torch.optim.{name}(model.parameters())" if found.optimizers else '"adamw"  # none was found'


def _precision(found: Found) -> str:
    if "bf16" in found.half:
        return "amp-bf16"
    return "amp-fp16" if found.scales or "fp16" in found.half else "torch-fp32"
