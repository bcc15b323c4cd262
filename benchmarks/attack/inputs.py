"""Random inputs of every kind that the program reads: command lines, files, imports and Python arguments."""

from __future__ import annotations

import copy
import json
import math
import random
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from benchmarks.attack import nonsense, samples, scripts, served, settings
from benchmarks.attack.input import Input, as_argument, as_json
from benchmarks.attack.jobs import TRACED, Fields, models, random_fields
from benchmarks.attack.mutate import YAML_SCALARS, bad_value, mutated, mutated_text, places, replaced
from precision_time.cli.flags import FLAGS
from precision_time.cli.parser import build_parser, flags_of
from precision_time.field_table import TableField, field_table
from precision_time.zoo.catalog import ENTRIES


def job_file(source: random.Random, folder: Path) -> Input:
    """A job file with wrong values, as YAML or JSON."""
    return Input(
        "job file",
        ("predict", _job_file(source, folder, mutated(source, random_fields(source), True)), *as_json(source)),
    )


def job_scalars(source: random.Random, folder: Path) -> Input:
    """A job file with tags, anchors and odd scalars of YAML."""
    fields = random_fields(source)
    path = source.choice(list(places(fields)))
    text = yaml.safe_dump(replaced(fields, path, "PLACE"), sort_keys=False)
    (folder / "job.yaml").write_text(text.replace("PLACE", source.choice(YAML_SCALARS)), encoding="utf-8")
    return Input("YAML scalars", ("predict", "job.yaml", *as_json(source)))


def job_text(source: random.Random, folder: Path) -> Input:
    """The text of a job file, damaged."""
    name = source.choice(("job.yaml", "job.json"))
    fields = random_fields(source)
    text = json.dumps(fields) if name.endswith("json") else yaml.safe_dump(fields)
    (folder / name).write_text(mutated_text(source, text), encoding="utf-8")
    return Input("job text", (source.choice(("predict", "predict", "compare")), name, *as_json(source)))


def flags(source: random.Random, folder: Path) -> Input:
    """A command line with wrong values of flags."""
    fields = random_fields(source, short=True)
    arguments = [f"--{key.replace('_', '-')}={value}" for key, value in fields.items() if key != "model"]
    for _ in range(source.choice((1, 1, 2, 3))):
        flag = source.choice(FLAGS)
        if flag.field != "model":
            value = bad_value(source) if source.random() < 0.7 or not flag.choices else source.choice(flag.choices)
            arguments.append(f"{flag.text}={as_argument(value)}")
    command = source.choice(("predict", "predict", "compare"))
    if source.random() < 0.2:
        arguments.append(
            source.choice(("--largest-batch", "--anchor=step_time_s=1", "--predictor=x", "--unknown", "--json=1"))
        )
    return Input(
        "command line", (command, str(fields["model"]), *(a.replace("\x00", "") for a in arguments), *as_json(source))
    )


_MEASURING = ("calibrate", "measure", "verify", "runs")
_RUNNING = ("--help", "--run", "--fresh", "--allow-code", "--empty-cache")


def other_commands(source: random.Random, folder: Path) -> Input:
    """Commands besides predict and compare, with wrong values of one or two flags; none starts to measure or to fit."""
    (folder / "table.csv").write_text(samples.TABLE, encoding="utf-8")
    (folder / "search.csv").write_text(_damaged(source, samples.SEARCH), encoding="utf-8")
    command = source.choice(("zoo", "gpus", "evaluate", "stagger", "search", "train", "fit", *_MEASURING))
    _dumped(source, folder, "jobs", samples.STAGGER, ("yaml",))
    file = {"evaluate": "table.csv", "stagger": "jobs.yaml", "search": "search.csv"}.get(command)
    arguments = [command, *([file] if file else [])]
    if command in ("zoo", "gpus") and source.random() < 0.5:
        arguments.append(as_argument(bad_value(source)))
    known = [flag for flag in flags_of(build_parser(), command) if flag not in _RUNNING]
    arguments += [f"{source.choice(known)}={as_argument(bad_value(source))}" for _ in range(source.choice((1, 1, 2)))]
    if command in _MEASURING or command in ("train", "fit"):
        arguments.append("--budget=bogus" if command in _MEASURING else "--unknown")
    return Input("other command", tuple(argument.replace("\x00", "") for argument in arguments))


def shapes(source: random.Random, folder: Path) -> Input:
    """A model with wrong sizes in model_config or input."""
    name = source.choice(models())
    entry = ENTRIES[name]
    if source.random() < 0.05:  # torch traces it
        sizes = {source.choice(("image_size", "channels", "seq_len")): bad_value(source, plain=True)}
        traced = {"model": f"timm:{source.choice(TRACED)}", "batch_size": 2, "input": sizes}
        return Input("shape", ("predict", _job_file(source, folder, traced), *as_json(source)))
    fields: Fields = {"model": name, "model_config": {}, "input": {}}
    for section, known in (("model_config", entry.config), ("input", entry.input)):
        keys = [*known, *source.choices(("vocab", "layers", "volume", "experts", "image_size", "channels"), k=1)]
        for key in source.sample(keys, source.choice((0, 1, 1, 2)) if len(keys) > 2 else 1):
            fields[section][key] = bad_value(source, plain=True)
    if source.random() < 0.5:
        return Input("shape", ("predict", _job_file(source, folder, fields), *as_json(source)))
    return _python("shape", "predict_time", fields)


def limits(source: random.Random, folder: Path) -> Input:
    """Fields of the field table at, just inside and just outside their limits, one to three at once."""
    fields = random_fields(source, short=True)
    gpu: dict[str, Any] = {}
    first = source.choice(_job_table())
    chosen = [first, *source.sample(_job_table(), source.choice((0, 0, 1, 2)))]
    if first.models and fields["model"] not in first.models:
        fields["model"] = source.choice(sorted(set(first.models) & set(models())) or ["gpt2"])
    for field in chosen:
        value = _at_limit(source, field)
        if field.section in ("gpu", "node", "fabric", "price"):
            gpu[field.section] = {**gpu.get(field.section, {}), field.name: value}
        elif field.section == "job":
            fields[field.name] = value
        else:
            section = fields.setdefault(field.section, {})
            if isinstance(section, dict):
                section[field.name] = value
    for section, document in (("gpu", "gpus"), ("node", "nodes"), ("fabric", "fabrics"), ("price", "prices")):
        if section in gpu:
            device = copy.deepcopy(samples.DEVICE)
            next(iter(device[document].values())).update(gpu[section])
            (folder / "device.json").write_text(json.dumps(device), encoding="utf-8")
            fields |= {"device": "device.json", "gpu": "acme-1", "precision": "amp-bf16"}
    if isinstance(fields.get("data"), dict):
        fields["data"].setdefault("storage", "nfs-10gbe")
    if source.random() < 0.5:
        return Input("limit", ("predict", _job_file(source, folder, fields), *as_json(source)))
    return _python("limit", "predict_time", fields)


@cache
def _job_table() -> tuple[TableField, ...]:
    sections = ("job", "run", "data", "layout", "model_config", "input", "gpu", "node", "fabric", "price")
    return tuple(field for field in field_table() if field.section in sections and field.name != "model")


def _at_limit(source: random.Random, field: TableField) -> Any:
    """A value at or beside the limits of a field, or a usual or wrong one where it has none."""
    of = field.type
    if of.kind not in ("whole", "number"):
        return source.choice(of.choices) if of.choices and source.random() < 0.8 else bad_value(source, plain=True)
    exact = (of.least, of.most, of.least + 1, of.most - 1, of.most + 1, of.least - 1, of.least / 2, of.most * 2)
    between = (
        math.exp(source.uniform(math.log(of.least or 1e-9), math.log(of.most))) if of.most > of.least >= 0 else 1.0
    )
    value = source.choice((*exact, between, between, between, 0))
    return int(value) if of.kind == "whole" and source.random() < 0.97 else value


def python_arguments(source: random.Random, folder: Path) -> Input:
    """Arguments of `predict_time` that no file can hold."""
    fields = mutated(source, random_fields(source))
    if source.random() < 0.1:
        loop: list[Any] = []
        loop.append(loop)
        fields[source.choice(("model_config", "input", "run", "layout", "anchors", "precision"))] = loop
    return _python("Python arguments", "predict_time", fields)


def imports(source: random.Random, folder: Path) -> Input:
    """A file of another program, damaged, under --import; at times with a second file that is whole."""
    name, text = source.choice(samples.IMPORTS)
    if name.endswith(".json") and source.random() < 0.6:
        text = json.dumps(mutated(source, json.loads(text), True))
    elif source.random() < 0.3:
        words = text.split(" ")
        words[source.randrange(len(words))] = str(bad_value(source, True))[:6000]
        text = " ".join(words)
    else:
        text = mutated_text(source, text)
    (folder / name).write_text(text.encode("utf-8", "replace").decode(), encoding="utf-8")
    model = () if source.random() < 0.5 else ("gpt2",)
    names = ["--import", name]
    if source.random() < 0.2:
        second, whole = source.choice(samples.IMPORTS)
        if second != name:
            (folder / second).write_text(whole, encoding="utf-8")
            names += ["--import", second]
    return Input("import", ("predict", *model, *names, "--gpus", "16", "--gpu", "h100-80gb-sxm", *as_json(source)))


def device_file(source: random.Random, folder: Path) -> Input:
    """A device file with wrong figures, and a job that uses it."""
    name = _document(source, folder, "device", samples.DEVICE)
    gpu = source.choice(("acme-1", "slow-a100", "cool-4090", "a100-80gb-sxm"))
    price = source.choice(((), ("--steps=100", "--price=ours")))
    count = source.choice(("1", "8"))
    return Input(
        "device file",
        ("predict", "resnet50", "--device", name, "--gpu", gpu, "--gpus", count, *price, *as_json(source)),
    )


def storage_file(source: random.Random, folder: Path) -> Input:
    """A storage file with wrong figures, and a job that reads from it."""
    name = _document(source, folder, "storage", samples.STORAGE)
    data = f"storage={name};workers={source.choice((0, 1, 8))};decode_ms={source.choice((0, 1, 10))}"
    return Input(
        "storage file", ("predict", "resnet50", "--dataset=imagenet", "--epochs=2", f"--data={data}", *as_json(source))
    )


def calibration_file(source: random.Random, folder: Path) -> Input:
    """A measured machine with wrong or extreme points, and a job on it."""
    document = settings.calibration(source)
    name = _dumped(source, folder, "machine", document, ("json", "json", "yaml"))
    model = source.choice(("resnet50", "gpt2", "bert-base", "ncf"))
    where = ("--gpu=this-cpu", f"--gpus={source.choice((1, 1, 2, 8))}", f"--batch-size={source.choice((1, 4))}")
    precision = source.choice(("fp32", "fp32", "amp-bf16", "bf16"))
    return Input(
        "calibration", ("predict", model, "--device", name, *where, "--precision", precision, *as_json(source))
    )


def table(source: random.Random, folder: Path) -> Input:
    """A table of measured jobs with wrong cells."""
    rows = [line.split(",") for line in samples.TABLE.strip().splitlines()]
    if source.random() < 0.6:
        for _ in range(source.choice((1, 2, 4))):
            row = source.choice(rows)
            row[source.randrange(len(row))] = (
                str(bad_value(source))[:2000].replace("\n", " ").encode("utf-8", "replace").decode()
            )
        text = "\n".join(",".join(row) for row in rows)
    else:
        text = mutated_text(source, samples.TABLE)
    (folder / "table.csv").write_text(text, encoding="utf-8")
    command = source.choice((("evaluate", "table.csv"), ("predict", "resnet50", "--anchors", "table.csv")))
    return Input("table", (*command, *as_json(source)))


def anchor_line(source: random.Random, folder: Path) -> Input:
    """A measured step on the command line."""
    line = ",".join(f"{k}={v}" for k, v in mutated(source, dict(samples.ANCHOR)).items())
    return Input(
        "anchor", ("predict", "resnet50", "--gpus=8", f"--anchor={line}".replace("\x00", ""), *as_json(source))
    )


def cluster_file(source: random.Random, folder: Path) -> Input:
    """The output of a scheduler, damaged."""
    text = source.choice(samples.NODES)
    changed = (
        json.dumps(mutated(source, json.loads(text), True))
        if text.startswith("{") and source.random() < 0.6
        else mutated_text(source, text)
    )
    (folder / "nodes.txt").write_text(changed.encode("utf-8", "replace").decode(), encoding="utf-8")
    return Input("cluster", ("predict", "resnet50", "--cluster", "nodes.txt", *as_json(source)))


def stagger_file(source: random.Random, folder: Path) -> Input:
    """A file of co-located jobs with wrong fields; refused before anything runs, or its commands end at once."""
    document = mutated(source, samples.STAGGER, True)
    if not _is_refused_before_running(document):
        document["unknown_field"] = 1
    name = _dumped(source, folder, "jobs", document)
    return Input("stagger", ("stagger", name, "--points=5", *as_json(source)))


def model_file(source: random.Random, folder: Path) -> Input:
    """A Hugging Face configuration, damaged; without torch this is refused, with it small models are traced."""
    document = mutated(source, source.choice((samples.HF_CONFIG, *samples.HF_CONFIGS)), True)
    (folder / "config.json").write_text(json.dumps(document), encoding="utf-8")
    return Input("job file", ("predict", "hf:config.json", "--batch-size=1", *as_json(source)))


def sections(source: random.Random, folder: Path) -> Input:
    """A job with sections that few jobs have, some of them wrong."""
    fields = settings.wide_job(source)
    if source.random() < 0.7:
        return Input("sections", ("predict", _job_file(source, folder, fields), *as_json(source)))
    return _python("sections", "predict_time", fields)


def comparison(source: random.Random, folder: Path) -> Input:
    """Several values of several fields."""
    return Input("comparison", (*settings.comparison(source, folder), *as_json(source)))


def evaluation(source: random.Random, folder: Path) -> Input:
    """A table of all columns, with filters and outputs."""
    return Input("evaluation", (*settings.evaluation(source, folder), *as_json(source)))


def gpu_catalog(source: random.Random, folder: Path) -> Input:
    """The catalog with a device file."""
    return Input("gpus", (*settings.catalog(source, folder), *as_json(source)))


def trained_predictor(source: random.Random, folder: Path) -> Input:
    """A saved predictor, damaged."""
    return Input("trained predictor", (*settings.trained(source, folder), *as_json(source)))


def plans(source: random.Random, folder: Path) -> Input:
    """Searches of few candidates with wrong goals, spaces and price files; time limits."""
    return Input("plan", (*settings.planning(source, folder), *as_json(source)))


def time_limits(source: random.Random, folder: Path) -> Input:
    """Scripts and manifests whose time limit is checked or replaced."""
    return Input("time limit", (*settings.time_limits(source, folder), *as_json(source)))


def _is_refused_before_running(document: Any) -> bool:
    return document != samples.STAGGER and "unknown_field" in str(document)


def _document(
    source: random.Random,
    folder: Path,
    name: str,
    valid: Mapping[str, Any],
    formats: tuple[str, ...] = ("yaml", "json"),
) -> str:
    """Writes a damaged copy of a document; its name."""
    if source.random() < 0.75:
        return _dumped(source, folder, name, mutated(source, dict(valid), True), formats)
    name = f"{name}.{source.choice(formats)}"
    text = json.dumps(valid) if name.endswith("json") else yaml.safe_dump(dict(valid))
    (folder / name).write_text(mutated_text(source, text), encoding="utf-8")
    return name


def _dumped(
    source: random.Random, folder: Path, name: str, document: Any, formats: tuple[str, ...] = ("yaml", "json")
) -> str:
    name = f"{name}.{source.choice(formats)}"
    try:
        text = json.dumps(document) if name.endswith("json") else yaml.safe_dump(document, allow_unicode=True)
    except (ValueError, yaml.YAMLError):  # an integer of more digits than Python writes
        text = "{}"
    (folder / name).write_text(text, encoding="utf-8")
    return name


def _damaged(source: random.Random, text: str) -> str:
    """The text, damaged or whole."""
    return mutated_text(source, text).encode("utf-8", "replace").decode() if source.random() < 0.5 else text


def _job_file(source: random.Random, folder: Path, fields: Any) -> str:
    return _dumped(source, folder, "job", fields)


def _python(kind: str, function: str, fields: Any) -> Input:
    import precision_time

    given = copy.deepcopy(fields)

    def call() -> object:
        if not isinstance(given, dict) or not all(isinstance(key, str) for key in given):
            from precision_time.job import Job

            return Job.from_dict(given)
        return getattr(precision_time, function)(**{"model": "resnet50", **given}).to_dict()

    try:
        text = f"{function}(**{given!r})"
    except ValueError:  # an integer of more digits than Python writes
        text = f"{function}(... a huge integer ...)"
    return Input(kind, call=call, description=text[:3000])


GENERATORS: tuple[tuple[int, Callable[[random.Random, Path], Input]], ...] = (
    (20, job_file), (8, job_scalars), (10, job_text), (12, flags), (6, other_commands), (14, shapes), (20, limits),
    (8, python_arguments),
    (8, imports), (6, device_file), (4, storage_file), (3, calibration_file), (4, table), (2, anchor_line),
    (2, cluster_file), (2, stagger_file), (2, model_file), (12, sections), (6, comparison), (4, evaluation),
    (2, gpu_catalog), (1, trained_predictor), (8, plans), (3, time_limits),
    (8, served.requests), (4, served.store), (6, served.record), (2, served.capture), (4, nonsense.remote),
    (4, scripts.training_script),
)  # fmt: skip
"""Weight and generator of every kind of input."""


def random_input(source: random.Random, folder: Path) -> Input:
    """An input of a random kind; its files lie in `folder`, where the command runs."""
    generator = source.choices([each for _, each in GENERATORS], [weight for weight, _ in GENERATORS])[0]
    return generator(source, folder)
