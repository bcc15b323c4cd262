"""A deadline written into the text of a manifest that has none; all other text stays as it is."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

FIELD = "activeDeadlineSeconds"
_PLACES: Mapping[str, tuple[str, ...]] = {
    "PyTorchJob": ("spec", "runPolicy"),
    "JobSet": ("spec", "replicatedJobs", "*", "template", "spec"),
}
"""Where the deadline stands, where it is not in `spec`; "*": in every entry."""


def with_deadline(text: str, kind: str, seconds: int) -> str:
    """The text of a manifest, YAML or JSON, of that kind with the deadline as the first entry of its mapping."""
    places = _mappings(yaml.compose(text, Loader=yaml.SafeLoader), _PLACES.get(kind, ("spec",)))
    for node, rest in sorted(places, key=lambda place: -int(place[0].start_mark.index)):
        value: Any = seconds
        for name in reversed((*rest, FIELD)[1:]):
            value = {name: value}
        name = (*rest, FIELD)[0]
        if node.flow_style:
            at, entry = node.start_mark.index + 1, f"{json.dumps(name)}: {json.dumps(value)}"
            text = f"{text[:at]}{entry}{', ' if node.value else ''}{text[at:]}"
        else:
            first = node.value[0][0].start_mark
            flow = yaml.safe_dump(value, default_flow_style=True).removesuffix("...\n").strip()
            text = f"{text[: first.index]}{name}: {flow}\n{' ' * first.column}{text[first.index :]}"
    return text


def _mappings(node: yaml.Node | None, path: Sequence[str]) -> Iterator[tuple[yaml.MappingNode, Sequence[str]]]:
    """The innermost mappings on a path that are there, each with the names that are not."""
    if isinstance(node, yaml.SequenceNode):
        for each in node.value:
            yield from _mappings(each, path[1:])
    elif isinstance(node, yaml.MappingNode):
        inner = next((value for key, value in node.value if path and key.value == path[0]), None)
        if isinstance(inner, (yaml.MappingNode, yaml.SequenceNode)):
            yield from _mappings(inner, path[1:])
        else:
            yield node, path
