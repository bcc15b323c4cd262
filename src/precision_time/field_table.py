"""`field_table`: every field that a user may set, with its type, range, unit and meaning.

It is gathered from the types that the checks themselves use, so that documentation, command-line help and tests cannot
differ from the program. `python -m precision_time.field_table docs/limits.md` writes it into that page.

    for field in field_table():
        field.section        "job", "run", "data", "layout", "model_config", "input", "gpu", "node", "fabric", "price",
                             "storage", "calibration", "calibration.host", "jobs-file", "jobs-file.cache", ...
        field.name           its key in the file
        field.type           a `FieldType`: kind, least, most, zero, unit, items, choices, optional
        field.meaning        one line
        field.models         names of the models of the zoo that have it (model_config and input only)
        field.type(name, value)   checks a value, as the program does
"""

from __future__ import annotations

import dataclasses
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from precision_time.field_types import FieldType, type_of
from precision_time.hardware import fields as hardware
from precision_time.job.data import Data
from precision_time.job.job import Job
from precision_time.job.layout import Layout
from precision_time.job.lora import Lora
from precision_time.job.run import Run
from precision_time.zoo.catalog import ENTRIES
from precision_time.zoo.shape_fields import INPUT, config_field

BEGIN, END = "<!-- fields: written by python -m precision_time.field_table -->", "<!-- end of fields -->"
_NOUNS: Mapping[str, type] = {"job": Job, "run": Run, "data": Data, "layout": Layout, "lora": Lora}
_ENTRIES: Mapping[str, Mapping[str, hardware.EntryField]] = {
    "gpu": hardware.GPU,
    "node": hardware.NODE,
    "fabric": hardware.FABRIC,
    "storage": hardware.STORAGE,
    "price": hardware.PRICE,
    "our-cluster": hardware.CLUSTER,
    "calibration": hardware.CALIBRATION,
    "calibration.host": hardware.HOST,
}


@dataclass(frozen=True, slots=True)
class TableField:
    """One field: where it is written, its type and meaning, and the models that have it."""

    section: str
    name: str
    type: FieldType
    meaning: str
    models: tuple[str, ...] = ()


@cache
def field_table() -> tuple[TableField, ...]:
    """All fields, by section (see the module's docstring)."""
    return (*_of_nouns(), *_of_models(), *_of_entries())


def _of_nouns() -> Iterator[TableField]:
    for section, noun in _NOUNS.items():
        for item in dataclasses.fields(noun):
            if "type" in item.metadata:
                yield TableField(section, item.name, type_of(item), item.metadata["meaning"])


def _of_models() -> Iterator[TableField]:
    """Keys of shapes; a key with other ranges in some models has one line for each range."""
    models: dict[tuple[str, str, FieldType, str], list[str]] = defaultdict(list)
    for entry in ENTRIES.values():
        for key in entry.config:
            field = config_field(entry.builder, key)
            models["model_config", key, field.type, field.meaning].append(entry.name)
        for key in entry.input:
            models["input", key, INPUT[key].type, INPUT[key].meaning].append(entry.name)
    for (section, key, of, meaning), names in sorted(models.items(), key=lambda each: each[0][:2]):
        yield TableField(section, key, of, meaning, tuple(names))


def _of_entries() -> Iterator[TableField]:
    for section, fields in _ENTRIES.items():
        for key, field in fields.items():
            yield TableField(section, key, field.type, field.meaning)


def as_markdown() -> str:
    """The table of docs/limits.md."""
    lines: list[str] = []
    for section in dict.fromkeys(field.section for field in field_table()):
        lines += ["", f"### {section}", "", "| field | allowed values | meaning |", "|---|---|---|"]
        lines += [
            f"| `{field.name}` | {field.type.range} | {_cell(field.meaning)} |"
            for field in field_table()
            if field.section == section
        ]
    return "\n".join(lines[1:]) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def with_table(page: str) -> str:
    """A page with the table between its two marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{as_markdown()}\n{END}{after}"


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(with_table(page.read_text(encoding="utf-8")), encoding="utf-8")
