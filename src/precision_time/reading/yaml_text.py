"""YAML text as the values that JSON has, read from the events of the parser.

Events come one by one, so that a file is refused at the first one that goes over a limit; composing nodes first would
recurse once for each level. Aliases and tags of other types are refused. What only YAML takes for a type of its own, a
date or a merge key, is text, and so are all keys.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from precision_time.checks import show
from precision_time.errors import DataError
from precision_time.reading.text import size_text
from precision_time.reading.values import (
    DEEPEST,
    LONGEST_NUMBER,
    MOST_VALUES,
    TOO_DEEP,
    fault_of,
    fault_of_key,
    too_many,
)

LARGEST_YAML = 2**20
"""Most bytes of a YAML file: about a second with libyaml."""
LARGEST_YAML_SLOW = 2**18
"""The same with PyYAML's parser in Python, which takes ten times as long."""

_PREFIX = "tag:yaml.org,2002:"
_STR, _MAP, _SEQ = _PREFIX + "str", _PREFIX + "map", _PREFIX + "seq"
_SCALARS = frozenset(_PREFIX + name for name in ("null", "bool", "int", "float", "str"))
_UNTAGGED = (None, "!")
_NO_KEY = object()
_TOO_DEEP_FOR_LIBYAML = "exceeded maximum nesting depth"
"""The scanner of libyaml in PyYAML 6.0.4 reads on to the end of what may be a key, before the first event of a line."""


@cache
def _loader() -> Any:
    import yaml

    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def parse_yaml(text: str, name: str) -> Any:
    """The value of YAML text; `DataError` names the file by `name`, and the line."""
    import yaml

    largest = LARGEST_YAML if hasattr(yaml, "CSafeLoader") else LARGEST_YAML_SLOW
    if len(text) > largest:
        raise DataError(f"{name} is larger than {size_text(largest)}, the most YAML that is read; give it as JSON")
    loader = _loader()(text)
    try:
        return _Builder(loader, name).document()
    except yaml.MarkedYAMLError as error:
        if error.problem == _TOO_DEEP_FOR_LIBYAML and error.problem_mark:
            raise DataError(f"{name}, line {error.problem_mark.line + 1}: {TOO_DEEP}") from None
        line = f" at line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise DataError(f"{name} is not valid YAML{line}: {error.problem}; correct that line") from None
    except (yaml.YAMLError, ValueError) as error:
        raise DataError(f"{name} is not valid YAML: {' '.join(str(error).split())}; correct it") from None
    finally:
        loader.dispose()


class _Builder:
    """Builds the value of the only document from the events of a loader."""

    def __init__(self, loader: Any, name: str) -> None:
        import yaml

        self._loader, self._name = loader, name
        self._result: list[Any] = []
        self._open: list[Any] = [self._result]
        self._keys: list[Any] = [_NO_KEY]
        self._values = 0
        self._scalar_node, self._error = yaml.ScalarNode, yaml.YAMLError
        self._actions = {
            yaml.ScalarEvent: self._scalar,
            yaml.MappingStartEvent: self._begin_mapping,
            yaml.SequenceStartEvent: self._begin_list,
            yaml.MappingEndEvent: self._end,
            yaml.SequenceEndEvent: self._end,
            yaml.AliasEvent: self._alias,
            yaml.DocumentStartEvent: self._begin_document,
        }

    def document(self) -> Any:
        """The value; None for an empty file."""
        loader, actions = self._loader, self._actions
        while loader.check_event():
            event = loader.get_event()
            if action := actions.get(type(event)):
                action(event)
        return self._result[0] if self._result else None

    def _refused(self, event: Any, problem: str) -> DataError:
        return DataError(f"{self._name}, line {event.start_mark.line + 1}: {problem}")

    def _begin_document(self, event: Any) -> None:
        if self._result:
            raise self._refused(event, "a second document begins (---); give one document in each file")

    def _alias(self, event: Any) -> None:
        raise self._refused(event, f"aliases (*{event.anchor}) are not read; write the value out")

    def _begin_mapping(self, event: Any) -> None:
        if event.tag not in (*_UNTAGGED, _MAP):
            raise self._tagged(event)
        self._begin(event, {})

    def _begin_list(self, event: Any) -> None:
        if event.tag not in (*_UNTAGGED, _SEQ):
            raise self._tagged(event)
        self._begin(event, [])

    def _tagged(self, event: Any) -> DataError:
        tag = event.tag.replace(_PREFIX, "!!", 1)
        return self._refused(event, f"the tag {show(tag)} does not fit here; remove it")

    def _begin(self, event: Any, collection: Any) -> None:
        if self._keys[-1] is _NO_KEY and type(self._open[-1]) is dict:
            raise self._refused(event, "a key is a mapping or a list; write a name")
        self._add(event, collection)
        self._open.append(collection)
        self._keys.append(_NO_KEY)
        if len(self._open) > DEEPEST + 1:
            raise self._refused(event, TOO_DEEP)

    def _end(self, event: Any) -> None:
        self._open.pop()
        self._keys.pop()

    def _scalar(self, event: Any) -> None:
        holder = self._open[-1]
        if type(holder) is not dict or self._keys[-1] is not _NO_KEY:
            self._add(event, self._value(event))
            return
        key = event.value
        if event.tag not in (*_UNTAGGED, _STR):
            raise self._tagged(event)
        if fault := fault_of_key(key):
            raise self._refused(event, f"the key {show(key)} {fault}")
        if key in holder:
            line = event.start_mark.line + 1
            raise DataError(f"{self._name} gives {show(key)} twice, at line {line}; keep one of them")
        self._keys[-1] = key

    def _add(self, event: Any, value: Any) -> None:
        self._values += 1
        if self._values > MOST_VALUES:
            raise self._refused(event, too_many())
        holder = self._open[-1]
        if type(holder) is dict:
            holder[self._keys[-1]] = value
            self._keys[-1] = _NO_KEY
        else:
            holder.append(value)

    def _value(self, event: Any) -> Any:
        """The value of a scalar: null, true or false, a number or text; a type that JSON does not have is text."""
        text, tag = event.value, event.tag
        if tag in _UNTAGGED:
            tag = self._loader.resolve(self._scalar_node, text, event.implicit)
            if tag not in _SCALARS:
                tag = _STR
        elif tag not in _SCALARS:
            raise self._tagged(event)
        value = text
        if tag != _STR:
            node = self._scalar_node(tag, text)
            try:
                if len(text) > LONGEST_NUMBER:
                    raise ValueError
                value = self._loader.yaml_constructors[tag](self._loader, node)
            except (ValueError, KeyError, IndexError, TypeError, OverflowError, self._error):
                kind = tag.removeprefix(_PREFIX)
                raise self._refused(event, f"{show(text)} is no {kind}; correct it, or put text into quotes") from None
        if fault := fault_of(value):
            raise self._refused(event, f"{show(text)} {fault}")
        return value
