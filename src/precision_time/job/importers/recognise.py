"""Recognises the program that a file of settings belongs to by its content, and reads it with the right importer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from precision_time.errors import DataError, JobError
from precision_time.job.importers import deepspeed, torchtitan
from precision_time.job.importers.deepspeed import from_deepspeed
from precision_time.job.importers.imported import Imported
from precision_time.job.importers.megatron import from_megatron
from precision_time.job.importers.torchtitan import from_torchtitan
from precision_time.reading import SUFFIXES, named, parse_json, parse_toml, read_mapping, read_text

_MEGATRON = re.compile(r"(?:num[-_]layers|hidden[-_]size|model[-_]parallel[-_]size|micro[-_]batch[-_]size)")
_SWITCHES = ("fp16", "bf16")
"""Sections of a DeepSpeed config, and switches of Megatron."""
_FORMATS = "a launch script or arguments of Megatron, a DeepSpeed config (JSON) or a torchtitan config (TOML)"


def read_import(path: str | Path) -> Imported:
    """The settings in a file of another program. Raises DataError naming the file and the formats that are read."""
    name = named("file", path)
    suffix = Path(path).suffix.lower()
    try:
        if suffix in SUFFIXES:
            return _of_mapping(read_mapping(path, "file"), name)
        text = read_text(path)
        if suffix == ".toml" or re.search(r"^[ \t]*\[(?:training|parallelism)\][ \t]*$", text, re.MULTILINE):
            return _of_mapping(parse_toml(text, name), name)
        if text.lstrip().startswith("{"):
            return _of_mapping(parse_json(text, name), name)
        if re.search(r"--[a-z]", text) and _MEGATRON.search(text):
            return from_megatron(text)
    except JobError as error:
        raise DataError(f"{name}: {error}") from error
    raise DataError(f"{name} is not recognised; give {_FORMATS}")


def _of_mapping(content: Mapping[str, Any], name: str) -> Imported:
    if not isinstance(content, Mapping):
        raise DataError(f"{name} holds no mapping; give {_FORMATS}")
    if "parallelism" in content or len(set(torchtitan.SECTIONS) & set(content)) >= 2:
        return from_torchtitan(content)
    if any(key in content and (key not in _SWITCHES or isinstance(content[key], Mapping)) for key in deepspeed.KEYS):
        return from_deepspeed(content)
    if any(_MEGATRON.search(str(key)) for key in _keys(content)):
        return from_megatron(content)
    raise DataError(f"{name} is not recognised; give {_FORMATS}")


def _keys(content: Mapping[Any, Any]) -> list[str]:
    """All keys, those of nested mappings too."""
    inner = [key for value in content.values() if isinstance(value, Mapping) for key in _keys(value)]
    return [*map(str, content), *inner]
