"""The only place where files of the user become Python values: text, YAML, JSON, TOML and CSV.

Takes a path, or text with the name that errors give it. Gives text without control characters, or trees of plain
values (None, true and false, numbers, text, lists, mappings with text keys) within the limits of `values`. Whatever is
wrong with a file raises one `DataError` with the file, the place and the fix. `plain_values` makes the same values of
those that Python callers give. Knows nothing of what the fields mean.
"""

from precision_time.reading.json_text import parse_json, read_json, to_json
from precision_time.reading.mapping import SUFFIXES, parse_mapping, read_mapping
from precision_time.reading.plain import plain_entry, plain_mapping, plain_values
from precision_time.reading.rows import read_records, read_rows
from precision_time.reading.text import (
    LARGEST_SAVED,
    checked_text,
    decoded,
    named,
    opened,
    read_bytes,
    read_member,
    read_text,
)
from precision_time.reading.toml_text import parse_toml
from precision_time.reading.values import MOST_SAVED_VALUES

__all__ = [
    "LARGEST_SAVED", "MOST_SAVED_VALUES", "SUFFIXES", "checked_text", "decoded", "named", "opened", "parse_json",
    "parse_mapping", "parse_toml", "plain_entry", "plain_mapping", "plain_values", "read_bytes", "read_json",
    "read_mapping", "read_member", "read_records", "read_rows", "read_text", "to_json",
]  # fmt: skip
