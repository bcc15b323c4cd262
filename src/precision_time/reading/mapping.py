"""A YAML or JSON file that holds one mapping: jobs, device files, storage files, the data of the catalog."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from precision_time.errors import DataError
from precision_time.reading.json_text import parse_json
from precision_time.reading.text import named, read_text
from precision_time.reading.yaml_text import parse_yaml

SUFFIXES = (".yaml", ".yml", ".json")


def read_mapping(path: str | Path, kind: str = "job file", example: str = "model: resnet50") -> dict[str, Any]:
    """The mapping in the file, JSON if its name ends in .json; otherwise `DataError` with the line and the fix."""
    return parse_mapping(read_text(path, kind), path, named(kind, path), example)


def parse_mapping(text: str, path: str | Path, name: str, example: str = "model: resnet50") -> dict[str, Any]:
    """The mapping of a file's text; `path` says by its end how it is written, `name` names it in errors."""
    content = parse_json(text, name) if Path(path).suffix.lower() == ".json" else parse_yaml(text, name)
    if not isinstance(content, dict):
        content_type = "nothing" if content is None else f"a {type(content).__name__}"
        raise DataError(f"{name} holds {content_type}; write one mapping of fields, for example {example}")
    return content
