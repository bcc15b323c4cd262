"""Reading a YAML or JSON file that holds one mapping: jobs, device files, storage files, the data of the catalog."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from precision_time.errors import DataError

SUFFIXES = (".yaml", ".yml", ".json")


def read_mapping(path: str | Path, kind: str = "job file", example: str = "model: resnet50") -> dict[str, Any]:
    """The mapping in the file; a failure is a DataError naming the file, the line and the fix."""
    name = f"{kind} {str(path)!r}"
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{name} is not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(f"{name} cannot be read: {reason.lower()}; check the path") from None
    try:
        content = _read_json(text, name) if Path(path).suffix.lower() == ".json" else _read_yaml(text, name)
    except RecursionError:
        raise DataError(f"{name} is nested too deeply; flatten it") from None
    if not isinstance(content, dict):
        content_type = "nothing" if content is None else f"a {type(content).__name__}"
        raise DataError(f"{name} holds {content_type}; write one mapping of fields, for example {example}")
    return content


def _read_json(text: str, name: str) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise DataError(f"{name} gives {twice!r} twice; keep one of them")
        return result

    try:
        return json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        raise DataError(f"{name} is not valid JSON at line {error.lineno}: {error.msg}; correct that line") from None
    except ValueError as error:  # a number of thousands of digits
        raise DataError(f"{name} is not valid JSON: {error}; correct it") from None


def _read_yaml(text: str, name: str) -> Any:
    import yaml

    base: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class Loader(base):  # type: ignore[valid-type,misc]
        """Plain YAML in which a field given twice is an error."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            seen: set[str] = set()
            for key_node, _ in node.value:
                if isinstance(key_node, yaml.ScalarNode) and key_node.value in seen:
                    line = key_node.start_mark.line + 1
                    raise DataError(f"{name} gives {key_node.value!r} twice, at line {line}; keep one of them")
                seen.add(str(key_node.value))
            mapping: dict[Any, Any] = super().construct_mapping(node, deep)
            return mapping

    try:
        return yaml.load(text, Loader)
    except yaml.MarkedYAMLError as error:
        line = f" at line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise DataError(f"{name} is not valid YAML{line}: {error.problem}; correct that line") from None
    except (yaml.YAMLError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{name} is not valid YAML: {reason}; correct it") from None
