"""Recognises the program that a file of settings belongs to by its content, and reads it with the right importer."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from precision_time.errors import DataError, JobError
from precision_time.job.file import SUFFIXES, read_mapping
from precision_time.job.importers import deepspeed, torchtitan
from precision_time.job.importers.deepspeed import from_deepspeed
from precision_time.job.importers.imported import Imported
from precision_time.job.importers.megatron import from_megatron
from precision_time.job.importers.torchtitan import from_torchtitan

_MEGATRON = re.compile(r"(?:num[-_]layers|hidden[-_]size|model[-_]parallel[-_]size|micro[-_]batch[-_]size)")
_FORMATS = "a launch script or arguments of Megatron, a DeepSpeed config (JSON) or a torchtitan config (TOML)"


def read_import(path: str | Path) -> Imported:
    """The settings in a file of another program. Raises DataError naming the file and the formats that are read."""
    name = f"file {str(path)!r}"
    suffix = Path(path).suffix.lower()
    try:
        if suffix in SUFFIXES:
            return _of_mapping(read_mapping(path, "file"), name)
        text = _text(path, name)
        if suffix == ".toml" or re.search(r"^\s*\[(?:training|parallelism)\]\s*$", text, re.MULTILINE):
            return _of_mapping(_toml(text, name), name)
        if text.lstrip().startswith("{"):
            return _of_mapping(json.loads(text), name)
        if re.search(r"--[a-z]", text) and _MEGATRON.search(text):
            return from_megatron(text)
    except JobError as error:
        raise DataError(f"{name}: {error}") from error
    except json.JSONDecodeError as error:
        raise DataError(f"{name} is not valid JSON at line {error.lineno}: {error.msg}; correct that line") from None
    raise DataError(f"{name} is not recognised; give {_FORMATS}")


def _of_mapping(content: Mapping[str, Any], name: str) -> Imported:
    if not isinstance(content, Mapping):
        raise DataError(f"{name} holds no mapping; give {_FORMATS}")
    if "parallelism" in content or len(set(torchtitan.SECTIONS) & set(content)) >= 2:
        return from_torchtitan(content)
    if set(deepspeed.KEYS) & set(content):
        return from_deepspeed(content)
    if any(_MEGATRON.search(str(key)) for key in _keys(content)):
        return from_megatron(content)
    raise DataError(f"{name} is not recognised; give {_FORMATS}")


def _keys(content: Mapping[Any, Any]) -> list[str]:
    """All keys, those of nested mappings too."""
    inner = [key for value in content.values() if isinstance(value, Mapping) for key in _keys(value)]
    return [*map(str, content), *inner]


def _text(path: str | Path, name: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{name} is not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(f"{name} cannot be read: {reason.lower()}; check the path") from None


def _toml(text: str, name: str) -> dict[str, Any]:
    if sys.version_info < (3, 11):
        raise DataError(f"{name} is TOML, which Python reads from 3.11 on; use a newer Python, or give it as JSON")
    import tomllib

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"{name} is not valid TOML: {str(error).lower()}; correct it") from None
