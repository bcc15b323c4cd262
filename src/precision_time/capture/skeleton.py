"""The job of a training script as its text says it: a job file where its model has a name, else a `make_job`.

The script is read, not run. Lines say where a value is from; what the text leaves open stands there as `...`, or is
listed by name.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from precision_time.capture.make_job import make_job
from precision_time.checks import show
from precision_time.errors import DataError, JobError
from precision_time.job import Job
from precision_time.job.run import RUN_FIELDS
from precision_time.job.scripts import Facts, facts_of, read_script
from precision_time.job.scripts.facts import Reading
from precision_time.job.scripts.models import Library, library_models, trained_model
from precision_time.job.scripts.shapes import Shape, shape_of
from precision_time.job.scripts.values import Values

_GPUS = 8
"""GPUs of the printed command where the script runs on several and does not say how many."""
_PRETRAINING = "(LMHeadModel|For(CausalLM|PreTraining|MaskedLM|ConditionalGeneration|Seq2SeqLM))$"
"""Heads that the named models of transformers have."""
_CONFIG = "the config.json"
_FLAGS = {
    "batch_size": "give --batch-size", "precision": "give --precision", "optimizer": "give --optimizer",
    "layout": "give --layout", "grad_accum": "give --grad-accum", "gpus": "give --gpus",
    "run": "give --epochs or --steps",
    "input": "give --input", "image_size": "give --input image_size=N", "seq_len": "give --input seq_len=N",
    "lora": "give --lora", "quantized": "give --quantized", "recompute": "give --recompute",
    "clip_norm": "give --clip-norm",
    "dataset": "give --dataset or --dataset-size", "execution": "give --execution", "global_batch": "give --grad-accum",
}  # fmt: skip


def skeleton(path: str | Path) -> str:
    """A file with a `make_job` for the script, or a job file where its model is one of a library.

    Raises `DataError` for a file that is no Python, or has no model.
    """
    try:
        return _skeleton(Path(path))
    except RecursionError:
        raise DataError(f"file {show(str(path))} is no Python that can be read; correct it") from None


def _skeleton(path: Path) -> str:
    script = read_script(path)
    facts = facts_of(script)
    values = Values(script)
    reading = Reading(script, values, values.calls(), facts, script)
    model = trained_model(reading)
    if model is None:
        raise DataError(
            f"file {show(str(path))} defines no torch.nn.Module and makes no model of torchvision, timm or Hugging "
            "Face; name the file that does, or a model of `precision-time zoo`, torchvision:NAME, timm:NAME, "
            "hf:CONFIG.json"
        )
    shape = shape_of(reading)
    if isinstance(model, Library):
        return _job_file(reading, model, shape)
    _add_run(facts, shape)
    settled = _settled(facts)
    flags = {name: value for name, value in settled.items() if name not in ("optimizer", "input")}
    command = _command("THIS_FILE.py", flags, facts)
    says = [f"{name} {_flag(value)}: {facts.where[name]}" for name, value in settled.items() if name in facts.where]
    return make_job(reading, model, shape, [*says, *_left_open(facts), "", command])


def _job_file(reading: Reading, model: Library, shape: Shape) -> str:
    """The job as YAML; names that the zoo knows are written as there, so that no torch is needed."""
    facts = reading.facts
    name, comment = _named(model.name)
    others = [each.name for each in library_models(reading) if each.name != model.name]
    also = f"; also: {', '.join(others)}" if others else ""
    _head(facts, model, name)
    _add_sizes(facts, name, shape)
    _add_run(facts, shape)
    settled = _settled(facts)
    lines = [
        f"# The job of {reading.script.path.name!r}, as its text says; it was not run. Flags override this file:",
        f"# precision-time predict THIS_FILE.yaml --gpu h100 --gpus {_gpus(facts)}",
    ]
    if not comment.startswith(_CONFIG):
        lines += ["# The same without this file:", f"# {_command(name, settled, facts)}"]
    lines.append(f"model: {name}  # {comment}{model.name}, {reading.place(model.call)}{also}")
    if "precision" not in settled:
        lines.append(f"precision: ...  # {facts.missing['precision']}")
    lines += [f"{field}: {_yaml(value)}{_where(facts, field)}" for field, value in settled.items()]
    return "\n".join([*lines, *(f"# {line}" for line in _left_open(facts)), ""])


def _named(name: str) -> tuple[str, str]:
    """The model's word, and what is said of it: the zoo's name, which needs no torch, where there is one."""
    from precision_time.zoo.names import find

    known = find(name.partition(":")[2] if name.startswith("torchvision:") else name)
    if known is not None:
        return known.name, ""
    if name.startswith(("torchvision:", "timm:")):
        return name, ""
    return "hf:CONFIG.json", f"{_CONFIG} of {name}, which is not among the named models; "


def _head(facts: Facts, model: Library, name: str) -> None:
    """Says where the script trains a head that the named model does not have."""
    usual = not model.head or re.match("Fast", model.head) or re.search(_PRETRAINING, model.head)
    if not usual and not name.startswith("hf:"):
        facts.note(
            f"line {model.call.line}: {model.head} is not the head of {name}, which is predicted with its own head and "
            "loss; hf:CONFIG.json has those of the config"
        )


def _add_sizes(facts: Facts, name: str, shape: Shape) -> None:
    """Sizes of the input, those that the model has."""
    from precision_time.zoo.catalog import ENTRIES

    entry = ENTRIES.get(name)
    taken = set(entry.input) if entry is not None else {"seq_len"} if name.startswith("hf:") else {"image_size"}
    sizes = {"image_size": shape.image_size, "seq_len": shape.seq_len}
    for key, value in sizes.items():
        if key not in taken:
            facts.missing.pop(key, None)
            continue
        if value is None:
            usual = f", {entry.input[key]} is taken" if entry is not None else ""
            facts.missing.setdefault(key, f"no line says it{usual}")
        else:
            facts.fields["input"] = {key: value}
            facts.where["input"] = shape.where
    if not set(facts.fields.get("input", {})) <= taken:
        del facts.fields["input"]


def _add_run(facts: Facts, shape: Shape) -> None:
    """The data set of a run by epochs."""
    run = facts.fields.get("run", {})
    if "epochs" in run:
        if shape.dataset:
            facts.fields["run"] = {**run, "dataset": shape.dataset}
        else:
            facts.missing["dataset"] = "its size is not in the text"
    elif not run and "run" not in facts.missing:
        facts.missing.setdefault("run", "no line says its length")


def _settled(facts: Facts) -> dict[str, Any]:
    """The fields in their order, with the batch that the ranks share divided by `_GPUS`. What no job takes is noted."""
    fields = dict(facts.fields)
    if (total := facts.global_batch) is not None:
        gpus = fields.setdefault("gpus", _gpus(facts))
        each = fields.get("batch_size", 1) * gpus
        missing = "grad_accum" if "batch_size" in fields else "batch_size"
        if total % each == 0:
            fields[missing] = total // each
            facts.where[missing] = facts.missing.pop(missing) + f"; of {gpus} GPUs"
            facts.where.setdefault("gpus", f"chosen here; {missing} follows from it: change both together")
    order: list[str] = [
        each for each in ("precision", "batch_size", "grad_accum", "optimizer", "layout") if each in fields
    ]
    order += [name for name in fields if name not in order and fields[name] not in ({}, None)]
    settled: dict[str, Any] = {}
    for name in order:
        try:
            Job("any", **{"gpus": _gpus(facts), **settled, name: fields[name]})
        except JobError as error:
            facts.note(f"{facts.where.get(name, name)}: {error}")
            continue
        settled[name] = fields[name]
    return settled


def _gpus(facts: Facts) -> int:
    return int(facts.fields.get("gpus", _GPUS if facts.several else 1))


def _left_open(facts: Facts) -> list[str]:
    """What was not found, by name, and what was found that no field has."""
    lines = []
    for name, why in facts.missing.items():
        lines.append(f"not found: {name}: {why}; {_FLAGS.get(name, f'give it by its field {name}')}")
    lines += [f"note: {' '.join(text.split())}" for text in facts.notes]
    return lines


def _where(facts: Facts, field: str) -> str:
    return f"  # {' '.join(facts.where[field].split())}" if field in facts.where else ""


def _yaml(value: Any) -> str:
    """A value in YAML's flow style."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {_yaml(each)}" for name, each in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_yaml, value)) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _command(model: str, fields: Mapping[str, Any], facts: Facts) -> str:
    """The command line that predicts the same job; a precision that is left open has to be written into it."""
    words = ["precision-time", "predict", model, *(() if "precision" in fields else ("--precision", "..."))]
    for name, value in fields.items():
        if name == "run":
            for key, each in value.items():
                words += [f"--{key.replace('_', '-')}", str(each)] if key in RUN_FIELDS else []
        elif name != "gpus":
            words += [f"--{name.replace('_', '-')}", _flag(value)]
    words += ["--gpu", "h100", "--gpus", str(_gpus(facts))]
    return " ".join(map(shlex.quote, words))


def _flag(value: Any) -> str:
    if isinstance(value, Mapping):
        return ";".join(f"{name}={_flag(each)}" for name, each in value.items())
    if isinstance(value, (list, tuple)):
        return ",".join(map(_flag, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
