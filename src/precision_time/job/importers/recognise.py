"""Recognises the program that a file of settings belongs to by its content, and reads it with the right importer."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from precision_time.checks import show
from precision_time.errors import DataError, JobError
from precision_time.job.importers import (
    accelerate,
    axolotl,
    deepspeed,
    hf_model,
    huggingface,
    lightning,
    llama_factory,
    llm_foundry,
    nemo,
    torchtitan,
)
from precision_time.job.importers.accelerate import from_accelerate
from precision_time.job.importers.axolotl import from_axolotl
from precision_time.job.importers.deepspeed import from_deepspeed
from precision_time.job.importers.hf_model import from_hf_model
from precision_time.job.importers.huggingface import from_huggingface
from precision_time.job.importers.imported import Imported
from precision_time.job.importers.launch import (
    from_launcher,
    from_sbatch,
    split_flags,
    variables,
)
from precision_time.job.importers.lightning import from_lightning
from precision_time.job.importers.llama_factory import from_llama_factory
from precision_time.job.importers.llm_foundry import from_llm_foundry
from precision_time.job.importers.manifest import is_manifest, read_manifest
from precision_time.job.importers.megatron import KIND as MEGATRON
from precision_time.job.importers.megatron import from_megatron
from precision_time.job.importers.merge import merged
from precision_time.job.importers.nemo import from_nemo
from precision_time.job.importers.reader import names_precision, not_understood
from precision_time.job.importers.sbatch_options import DIRECTIVE, directives
from precision_time.job.importers.shell import arguments, unset_variables
from precision_time.job.importers.torchtitan import from_torchtitan
from precision_time.job.importers.torchtitan_python import is_registry, settings_of, split_path
from precision_time.reading import SUFFIXES, checked_text, named, parse_json, parse_mapping, parse_toml, read_text

_MEGATRON = re.compile(r"(?:num[-_]layers|hidden[-_]size|model[-_]parallel[-_]size|micro[-_]batch[-_]size)")
_LAUNCHERS = re.compile(r"\b(?:torchrun|srun|accelerate\s+launch|deepspeed|torch\.distributed\.(?:run|launch))\b")
_SETTINGS = re.compile(r"\.(?:ya?ml|json|toml)$")
_BY_FILE = re.compile(r"\b(?:llamafactory-cli|axolotl)\s+\w+\s+([^\s;&|]+\.(?:ya?ml|json))")
"""A command whose settings are in a file that it names."""
_SWITCHES = ("fp16", "bf16")
"""Sections of a DeepSpeed config, and switches of other programs."""
FORMATS = (
    "Hugging Face TrainingArguments or a model's config.json, an accelerate, LightningCLI, DeepSpeed, torchtitan, "
    "llm-foundry, Axolotl or LLaMA-Factory config, a NeMo or Megatron-Bridge recipe, Megatron arguments, a manifest of "
    "Kubernetes, or an sbatch script or launch command"
)
MOST_FILES = 16
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
_REFUSED: tuple[tuple[tuple[str, ...], str], ...] = (
    (("log_history", "global_step"), "is the state of a Trainer (trainer_state.json), not its arguments; write those "
     "with training_args.to_json_string()"),
)  # fmt: skip
"""Keys of files that belong to training but have no settings of it, with what to do."""


def read_imports(paths: Sequence[str | Path]) -> list[tuple[str, Imported]]:
    """The settings in several files, by their names. Raises DataError."""
    if len(paths) > MOST_FILES:
        raise DataError(f"{len(paths)} files are imported; give at most {MOST_FILES}")
    return [(str(path), read_import(path)) for path in paths]


def read_import(path: str | Path) -> Imported:
    """The settings in a file of another program. Raises DataError naming the file and the formats that are read."""
    file, _ = split_path(str(path))
    name = named("file", file)
    _check_kind(file, name)
    return _of_content(read_text(file), path, name)


def import_text(text: str, path: str = "") -> Imported:
    """The settings in the text of a file; `path`, if given, says by its end how the text is written.

    Opens nothing. Raises DataError as `read_import` does.
    """
    name = named("file", path) if path else "the file"
    _check_kind(path, name)
    return _of_content(
        checked_text(text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n"), name), path, name
    )


def _check_kind(path: str | Path, name: str) -> None:
    if Path(path).suffix.lower() in _PICKLES:
        raise DataError(
            f"{name} is a pickle, which is not read, since reading one runs code; write its arguments as JSON, "
            "those of a Trainer with training_args.to_json_string()"
        )


def _of_content(text: str, path: str | Path, name: str) -> Imported:
    suffix = Path(path).suffix.lower()
    try:
        file, function = split_path(str(path))
        if is_registry(text):
            return from_torchtitan(settings_of(text, file or name, function))
        if suffix in SUFFIXES:
            return of_mapping(parse_mapping(text, path, name), name)
        if suffix == ".toml" or re.search(r"^[ \t]*\[(?:training|parallelism)\][ \t]*$", text, re.MULTILINE):
            return of_mapping(parse_toml(text, name), name)
        if text.lstrip().startswith("{"):
            return of_mapping(parse_json(text, name), name)
        if (imported := _of_text(text)) is not None:
            return imported
    except JobError as error:
        raise DataError(f"{name}: {error}") from error
    raise DataError(f"{name} is not recognised; give {FORMATS}")


def _of_text(text: str) -> Imported | None:
    """The settings of a script or a command line; None where nothing in it is known."""
    options = directives(text)
    parts: list[tuple[str, Imported]] = []
    known: dict[str, str] = {}
    if DIRECTIVE.search(text):
        allocation = from_sbatch(options)
        known = variables(options, allocation.fields)
        parts.append(("#SBATCH", allocation))
    for found in _BY_FILE.finditer(text):
        told = {f"the config {found[1]}": "is named by the command: give it by --import"}
        parts.append(("the command", Imported("launch command", {}, not_taken=told)))
    if not re.search(r"--[A-Za-z]", text):
        return merged(parts) if parts else None
    flags = arguments(text, known)
    own, program = split_flags(flags, text)
    if _is_megatron(program):
        if not parts:
            return from_megatron(flags)
        parts += [("the launcher", each) for each in from_launcher(own, text)]
        return merged([*parts, ("Megatron", from_megatron(program))])
    hugging = _is_huggingface({name.replace("-", "_"): value for name, value in program.items()})
    if not parts and not hugging and not _LAUNCHERS.search(text):
        return None
    parts += [("the launcher", each) for each in from_launcher(own, text)]
    if hugging:
        unset = unset_variables(program, huggingface.SWITCHES)
        imported = from_huggingface({**program, **{name: True for name, _ in unset}})
        reasons = {f"the arguments {value} after {name}": "are not set in the text" for name, value in unset}
        parts.append(
            ("the arguments", imported.named(imported.kind, {**imported.not_taken, **reasons}, imported.taken))
        )
    elif program:
        parts.append(("the arguments", _unknown(program)))
    return merged(parts) if parts else None


def _of_manifest(content: Mapping[str, Any]) -> Imported:
    """GPUs and nodes of a manifest, with what its command says."""
    manifest = read_manifest(content)
    told = _of_text(manifest.command) if manifest.command else None
    if told is None:
        return merged([("the manifest", manifest.imported())])
    fields = dict(told.fields)
    if "nodes" not in fields and (each := fields.get("gpus")) is not None:  # of a pod: its launcher starts no other
        manifest = replace(manifest, gpus=manifest.gpus or each)
        if each == manifest.gpus:
            del fields["gpus"]
    return merged([("the manifest", manifest.imported()), ("its command", replace(told, fields=fields))])


def _unknown(program: Mapping[str, Any]) -> Imported:
    """Arguments of a script that no importer knows."""
    reasons = {
        f"--{name}": "names a file of settings: give it by --import" if _SETTINGS.search(str(value)) else
        f"an argument of the script, {not_understood(name)}"
        for name, value in program.items()
    }  # fmt: skip
    doubts = [f"--{name} {show(value)}" for name, value in program.items() if names_precision(name, value)]
    undecided = {"precision": f"{doubts[0]} is an argument of a script that is not read"} if doubts else {}
    return Imported("script", {}, not_taken=reasons, undecided=undecided)


def _any(*keys: str) -> Callable[[Mapping[str, Any]], str]:
    """The first of the keys that a mapping has, or ""."""
    return lambda content: next((key for key in keys if key in content), "")


def _of_hf_model(content: Mapping[str, Any]) -> str:
    keys = [key for key in hf_model.KEYS if key in content]
    return keys[0] if len(keys) >= 2 and "base_model" not in content else ""


def _of_torchtitan(content: Mapping[str, Any]) -> str:
    tables = [key for key in torchtitan.SECTIONS if isinstance(content.get(key), Mapping) or key in content]
    if "trainer" in content or "train" in content:
        return ""
    return "parallelism" if "parallelism" in content else tables[0] if len(tables) >= 2 else ""


def _of_deepspeed(content: Mapping[str, Any]) -> str:
    keys = [
        key for key in deepspeed.KEYS
        if key in content and (key not in _SWITCHES or isinstance(content[key], (Mapping, list)))
    ]  # fmt: skip
    return keys[0] if keys else ""


def _is_huggingface(content: Mapping[str, Any]) -> str:
    if "base_model" in content or isinstance(content.get("trainer"), Mapping) or _of_llama_factory(content):
        return ""
    weak = [key for key in huggingface.WEAK_KEYS if key in content]
    return _any(*huggingface.KEYS)(content) or (weak[0] if len(weak) >= 2 else "")


_of_llama_factory = _any(*llama_factory.KEYS)


def _of_accelerate(content: Mapping[str, Any]) -> str:
    if found := _any("distributed_type", "compute_environment")(content):
        return found
    others = [key for key in accelerate.KEYS if key in content]
    return "num_processes" if "num_processes" in content and ("mixed_precision" in content or len(others) > 1) else ""


def _of_lightning(content: Mapping[str, Any]) -> str:
    content = content.get("fit", content) if isinstance(content.get("fit"), Mapping) else content
    return "trainer" if isinstance(content.get("trainer"), Mapping) and not _of_nemo(content) else ""


def _of_nemo(content: Mapping[str, Any]) -> str:
    model, train, trainer = (content.get(name) for name in ("model", "train", "trainer"))
    if isinstance(train, Mapping) and isinstance(model, Mapping):
        return "train"
    if not isinstance(trainer, Mapping) or not isinstance(model, Mapping):
        return ""
    keys = _keys(content)
    return "trainer" if "exp_manager" in content or any(_MEGATRON.search(key) for key in keys) else ""


def _of_llm_foundry(content: Mapping[str, Any]) -> str:
    if "base_model" in content or "distributed_type" in content:
        return ""
    keys = [key for key in llm_foundry.KEYS if key in content]
    return keys[0] if len(keys) >= 2 else ""


def _is_megatron(content: Mapping[str, Any]) -> str:
    return next((key for key in _keys(content) if _MEGATRON.search(key)), "")


Kind = tuple[str, Callable[[Mapping[str, Any]], str], Callable[[Mapping[str, Any]], Imported]]
_KINDS: tuple[Kind, ...] = (
    (hf_model.KIND, _of_hf_model, from_hf_model),
    (torchtitan.KIND, _of_torchtitan, from_torchtitan),
    (deepspeed.KIND, _of_deepspeed, from_deepspeed),
    (huggingface.KIND, _is_huggingface, from_huggingface),
    (accelerate.KIND, _of_accelerate, from_accelerate),
    (lightning.KIND, _of_lightning, from_lightning),
    (nemo.KIND, _of_nemo, from_nemo),
    (llm_foundry.KIND, _of_llm_foundry, from_llm_foundry),
    (axolotl.KIND, _any(*axolotl.KEYS), from_axolotl),
    (llama_factory.KIND, _of_llama_factory, from_llama_factory),
)
"""Name of a kind, the key of a mapping that shows it (or ""), and its importer."""
_LAST: tuple[Kind, ...] = (
    (MEGATRON, _is_megatron, from_megatron),
    (deepspeed.KIND, _any(*deepspeed.WEAK_KEYS), from_deepspeed),
)
"""Kinds that count where none of `_KINDS` is recognised, in their order."""


def of_mapping(content: Mapping[str, Any], name: str) -> Imported:
    """The settings of a mapping that a file called `name` holds. Raises DataError where it is of no kind, or of two."""
    if not isinstance(content, Mapping):
        raise DataError(f"{name} holds no mapping; give {FORMATS}")
    if is_manifest(content):
        return _of_manifest(content)
    for keys, why in _REFUSED:
        if all(key in content for key in keys):
            raise DataError(f"{name} {why}")
    found = [(kind, key, reader) for kind, test, reader in _KINDS if (key := test(content))]
    if len(found) > 1:
        kinds = " and ".join(f"of {kind} ({key})" for kind, key, _ in found)
        raise DataError(f"{name} has settings {kinds}; give the settings of one program in each file")
    for kind, test, reader in _LAST if not found else ():
        if key := test(content):
            found = [(kind, key, reader)]
            break
    if not found:
        keys_text = ", ".join(show(str(key)) for key in list(content)[:5]) or "no keys"
        raise DataError(f"{name} with {keys_text} is not recognised; give {FORMATS}")
    return found[0][2](content)


def _keys(content: Mapping[Any, Any]) -> list[str]:
    """All keys, those of nested mappings too."""
    inner = [key for value in content.values() if isinstance(value, Mapping) for key in _keys(value)]
    return [*map(str, content), *inner]
