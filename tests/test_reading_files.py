"""Files of the user: whatever is in them, they are read or refused in one sentence, soon and in little memory."""

from __future__ import annotations

import contextlib
import math
import os
import time
import tracemalloc
from collections import OrderedDict
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_time.checks import show
from precision_time.errors import CatalogError, DataError, JobError, PrecisionTimeError
from precision_time.hardware.catalog import default_catalog
from precision_time.hardware.storage import Storage
from precision_time.ingest.stagger.jobs_file import jobs_of
from precision_time.job.importers import from_deepspeed, from_megatron, from_torchtitan
from precision_time.job.job import JOB_FIELDS, Job
from precision_time.job.run import RUN_FIELDS
from precision_time.reading import (
    parse_json,
    parse_toml,
    plain_values,
    read_json,
    read_mapping,
    read_records,
    read_rows,
    read_text,
    to_json,
)
from precision_time.reading.rows import LARGEST_CSV, LONGEST_ROW
from precision_time.reading.text import LARGEST_BYTES
from precision_time.reading.toml_text import LARGEST_TOML
from precision_time.reading.values import DEEPEST, checked_tree
from precision_time.reading.yaml_text import LARGEST_YAML, parse_yaml

LAUGHS = "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9) if i else 'ha'}]\n" for i in range(9))


def refused(text: str, error: pytest.ExceptionInfo[DataError]) -> None:
    """One sentence that is short enough to read."""
    said = str(error.value)
    assert text in said
    assert "\n" not in said
    assert said.isprintable()
    assert len(said) < 500


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: !!float ''", "line 1: '' is no float"), ("x: 1\na: !!int ''", "line 2: '' is no int"),
        ("a: !!bool maybe", "'maybe' is no bool"), ("a: !!timestamp x", "the tag '!!timestamp' does not fit"),
        ("a: !!map [1]", "the tag '!!map' does not fit"), ("a: !!seq {b: 1}", "the tag '!!seq' does not fit"),
        ("a: !!binary aGk=", "'!!binary'"), ("a: !!set {b}", "'!!set'"), ("a: !!omap [b: 1]", "'!!omap'"),
        ("a: !!int [1]", "'!!int' does not fit"), ("!!int 1: 2", "'!!int' does not fit"), ("a: !mine 3", "'!mine'"),
        ("a: !!python/object/apply:os.system [true]", "'!!python/object/apply:os.system'"),
        ("a: !!float x", "'x' is no float"), ("a: " + "9" * 5000, "is no int"), ("a: " + "9" * 40, "30 digits"),
        ("a: 0x" + "f" * 60, "30 digits"), ("a: " + ":".join(["59"] * 30), "30 digits"),
        ("a: .inf", "is no number from 1e-300"), ("b: [.nan]", "is no number from"), ("a: 1.0e-320", "is no number"),
        ("a: 1.0e+400", "is no number"), ("a: -.inf", "is no number"),
        ("? [1, 2]\n: 3", "a key is a mapping or a list"), ("{{a: 1}: 2}", "a key is a mapping or a list"),
        ("a: 1\nb: 2\na: 3", "gives 'a' twice, at line 3"), ("8: 1\n'8': 2", "gives '8' twice"),
        (LAUGHS, "aliases (*a0) are not read"), ("a: &a [*a]", "aliases (*a) are not read"),
        ("base: &b {x: 1}\na: {<<: *b}", "aliases (*b)"), ("a: *b", "aliases (*b)"),
        ("[" * 40 + "]" * 40, "more than 32 mappings"), ("[" * 100_000, "more than 32"), ("- " * 100_000, "than 32"),
        ("? " * 100_000, "key is a mapping or a list"), ("{a: " * 100_000, "more than 32"),
        ("a: 1\n---\nb: 2", "line 2: a second document"), ('a: "\\e[31m"', "has a control character"),
        ('"\\e[31m": 1', "has a control character"), ("a: [", "not valid YAML at line"), ("a: @", "not valid YAML"),
        ("%YAML 9.9\n---\na: 1", "not valid YAML"), ("a: '", "not valid YAML"), ("a: \ufffe", "not valid YAML"),
    ],
)  # fmt: skip
def test_yaml_that_is_refused(text: str, says: str) -> None:
    with pytest.raises(DataError) as error:
        parse_yaml(text, "file 'a.yaml'")
    refused(says, error)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None), ("# nothing\n", None), ("a: 1\nb: 1.5\nc: yes\nd: ~\ne: x y\nf: '8'", None),
        ("a: 2026-01-02", {"a": "2026-01-02"}), ("a: 2026-99-99", {"a": "2026-99-99"}),
        ("<<: {a: 1}", {"<<": {"a": 1}}),
        ("a: =", {"a": "="}), ("on: 1\n2: 3\n~: 4", {"on": 1, "2": 3, "~": 4}), ("a: !!str 8", {"a": "8"}),
        ("a: !!int 8", {"a": 8}), ("- [1, [2]]\n- {}", [[1, [2]], {}]), ("&x a: 1", {"a": 1}),
        ("a: |\n  b\n  c\n", {"a": "b\nc\n"}), ("a: 1_000", {"a": 1000}), ("a: 0x10", {"a": 16}), ("---\n3\n...\n", 3),
    ],
)  # fmt: skip
def test_yaml_has_the_values_of_json(text: str, value: Any) -> None:
    expected = {"a": 1, "b": 1.5, "c": True, "d": None, "e": "x y", "f": "8"} if "x y" in text else value
    assert parse_yaml(text, "file") == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"a": NaN}', "has NaN"), ('{"a": "\\ud800"}', "has a control"),
        ('{"a": [-Infinity]}', "has -Infinity"), ('{"a": {"b": [1, 1e400]}}', "a.b[1] is no"),
        ('{"a": 1e-320}', "a is no number from 1e-300"), ('{"a": ' + "9" * 5000 + "}", "5,000 digits"),
        ('{"a": ' + "9" * 40 + "}", "a has more than 30 digits"), ("[" * 100_000, "more than 32"),
        ("[" * 40 + "]" * 40, "more than 32"), ('{"a":' * 500 + "1" + "}" * 500, "more than 32"),
        ('{"a": 1, "b": 2, "a": 3}', "gives 'a' twice"), ('{"a": "\\u001b[31m"}', "a has a control character"),
        ('{"\\u0007": 1}', "has the key '\\x07'"), ("{", "not valid JSON at line 1"), ("", "not valid JSON at line 1"),
        ('{"a": 1}\n{"b"}', "at line 2"), ("9" * 10**6, "1,000,000 digits"),
    ],
)  # fmt: skip
def test_json_that_is_refused(text: str, says: str) -> None:
    with pytest.raises(DataError) as error:
        parse_json(text, "file 'a.json'")
    refused(says, error)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a = nan", "a is no number"), ("a = [1, -inf]", "a[1] is no number"), ("a = 2026-01-02", "put it into quotes"),
        ("a = " + "9" * 5000, "not valid TOML"), ("a = " + "9" * 50, "30 digits"),
        ("a = " + "[" * 5000, "more than 32"),
        (".".join("a" * 100) + " = 1", "more than 32"), ("[" + ".".join(['"a b"'] * 40000) + "]", "than 32"),
        ("a = 1\na = 2", "not valid TOML"), ("a = 2026-99-99", "not valid TOML"),
        ('a = "\\u001b"', "control character"), ("[", "not valid"),
        ("a = " + "[" * 33 + "]" * 33, "more than 32"), ("# " + "x" * LARGEST_TOML, "larger than 256 KiB"),
    ],
)  # fmt: skip
def test_toml_that_is_refused(text: str, says: str) -> None:
    pytest.importorskip("tomllib")
    with pytest.raises(DataError) as error:
        parse_toml(text, "file 'a.toml'")
    refused(says, error)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\xff\xfea\x00", "is not UTF-8 text (byte 0)"), (b"a\x00b", "the control character '\\x00' at line 1"),
        (b"a\nb\x1b[31m", "the control character '\\x1b' at line 2"), (b"\xc2\x9b31m", "'\\x9b'"),
    ],
)  # fmt: skip
def test_text_that_is_refused(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    with pytest.raises(DataError) as error:
        read_text(path)
    refused(says, error)
    with pytest.raises(DataError, match=r"UTF-8|control character"):
        list(read_rows(path))


def test_text_has_no_mark_and_plain_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffa\r\nb\rc\n".encode())
    assert read_text(path) == "a\nb\nc\n"


def test_only_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "link").symlink_to(tmp_path / "link")
    for path, says in (
        (tmp_path, "cannot be read: it is a folder"), (tmp_path / "pipe.yaml", "cannot be read: it is a pipe"),
        ("/dev/zero", "it is a device or a socket"), (tmp_path / "none", "no such file"), ("a\0b", "null byte"),
        ("", "no such file"), (tmp_path / "link", "symbolic links"), ("x" * 5000, "file name too long"),
        (tmp_path / "a" / "b", "no such file"), ("\udcff\x1b[1m.yaml", "no such file"),
    ):  # fmt: skip
        for reader in (read_mapping, read_json, read_text, lambda p: list(read_rows(p))):
            with pytest.raises(DataError) as error:
                reader(path)
            refused(says, error)


def test_a_file_of_proc_without_a_size_is_bounded() -> None:
    if not Path("/proc/kallsyms").exists() or len(read_text("/proc/self/status", largest=10**6)) < 10:
        pytest.skip("no /proc")
    with pytest.raises(DataError, match="larger than 0 KiB"):
        read_text("/proc/self/status", largest=10)


def rows_of(tmp_path: Path, text: str) -> list[tuple[int, list[str]]]:
    path = tmp_path / "a.csv"
    path.write_bytes(text.encode())
    return list(read_rows(path))


def test_rows_of_a_table(tmp_path: Path) -> None:
    text = '\ufeffa,b\r\n\r\n"x\ny",2\n , \n3\r4,5'
    assert rows_of(tmp_path, text) == [(1, ["a", "b"]), (3, ["x\ny", "2"]), (6, ["3"]), (7, ["4", "5"])]
    (tmp_path / "b.csv").write_text("a,b\n1\n2,3\n")
    assert list(read_records(tmp_path / "b.csv", ["b"])) == [(2, {"a": "1", "b": ""}), (3, {"a": "2", "b": "3"})]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a,b\n" + "x" * 140_000, "not valid CSV at line 2"),
        ("," * (LONGEST_ROW + 1), "1,048,576 characters at line 1"),
        ("a\n" + '"\n",' * 500_000, "a row of more than 1,048,576 characters"), ("a\n1\n\x1b", "'\\x1b' at line 3"),
        ('a\n"' + "x" * 140_000, "not valid CSV at line 2"),
    ],
)  # fmt: skip
def test_tables_that_are_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(DataError) as error:
        rows_of(tmp_path, text)
    refused(says, error)


@pytest.mark.parametrize(
    ("text", "says"),
    [("a\n1", "has no column b"), ("", "no column b"), ("b,b\n", "twice"), ("b\n1,2", "2 cells for 1")],
)
def test_records_that_are_refused(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(DataError, match=says):
        list(read_records(tmp_path / "a.csv", ["b"]))


def check_limits(read: Callable[[], Any], seconds: float = 5.0, nbytes: int = 2**30) -> None:
    """It reads, or refuses, with at most so much CPU time; and again, since tracing takes most of the time, memory."""
    start = time.process_time()
    with contextlib.suppress(DataError):
        read()
    assert time.process_time() - start < seconds
    tracemalloc.start()
    try:
        with contextlib.suppress(DataError):
            read()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < nbytes


LARGE_YAML = {
    "numbers": "[" + "1," * (LARGEST_YAML // 2 - 2) + "]",
    "keys": "".join(f"k{i}: {i}\n" for i in range(65_000)),
    "one text": "a: " + "x" * (LARGEST_YAML - 4),
    "quotes": "[" + '"",' * (LARGEST_YAML // 3 - 2) + "]",
    "mappings": "[" + "{}," * (LARGEST_YAML // 3 - 2) + "]",
    "anchors": "[" + "&a 1," * (LARGEST_YAML // 5 - 2) + "]",
    "comments": "#\n" * (LARGEST_YAML // 2 - 1),
    "one number": "9" * (LARGEST_YAML - 1),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", LARGE_YAML)
def test_the_largest_yaml_is_answered_soon(kind: str) -> None:
    check_limits(lambda: parse_yaml(LARGE_YAML[kind], "file"))


LARGE_JSON = {
    "numbers": "[" + "1," * (LARGEST_BYTES // 2 - 2) + "1]",
    "lists": "[" + "[]," * (LARGEST_BYTES // 3 - 2) + "1]",
    "mappings": "[" + '{"":1},' * (LARGEST_BYTES // 7 - 2) + "1]",
    "keys": "{" + ",".join(f'"{i}":1' for i in range(1_500_000)) + "}",
    "the same key": "{" + ",".join(['"a":1'] * 2_000_000) + "}",
    "texts": "[" + '"\\n",' * (LARGEST_BYTES // 5 - 2) + "1]",
    "floats": "[" + "1.5," * (LARGEST_BYTES // 4 - 2) + "1]",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", LARGE_JSON)
def test_the_largest_json_is_answered_soon(kind: str) -> None:
    check_limits(lambda: parse_json(LARGE_JSON[kind], "file"))


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["a = 1\n", "[a]\n", "[[a]]\n", "[a.b.c.d]\n", "a.b.c.d = 1\n", "x", "x=[", "x='''"])
def test_the_largest_toml_is_answered_soon(unit: str) -> None:
    pytest.importorskip("tomllib")
    numbered = "".join(unit.replace("a", f"a{i}") for i in range(LARGEST_TOML // (len(unit) + 6)))
    for text in (numbered, unit * (LARGEST_TOML // len(unit))):
        check_limits(partial(parse_toml, text, "file"))


@pytest.mark.slow
def test_the_largest_table_is_read_soon(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"a,b,c,d\n" * (LARGEST_CSV // 8))
    start = time.process_time()
    assert sum(1 for _ in read_rows(path)) == LARGEST_CSV // 8
    assert time.process_time() - start < 60
    path.write_bytes(b"a" * (LARGEST_CSV + 1))
    with pytest.raises(DataError, match="larger than 128 MiB"):
        next(read_rows(path))


TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=20,
)


@settings(deadline=None, max_examples=60)
@given(tree=TREES)
def test_any_tree_is_read_back_or_refused(tree: Any) -> None:
    try:
        checked = checked_tree(tree, "file")
    except DataError as error:
        assert str(error).isprintable()  # noqa: PT017
        return
    assert parse_json(to_json(checked), "file") == checked
    assert parse_yaml(yaml.safe_dump(parse_json(to_json(checked), "file")), "file") == checked


@settings(deadline=None, max_examples=150)
@given(text=st.text(alphabet="ab:-?[]{}!&*#|>'\"%@`,<= \n\t\\0123.~eE_xyn", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    for parse in (parse_yaml, parse_json):
        try:
            tree = parse(text, "file")
        except DataError as error:
            assert str(error).isprintable()  # noqa: PT017
        else:
            checked_tree(tree, "file")


def test_a_result_with_nan_is_not_written_as_json() -> None:
    for number in (math.nan, math.inf):
        with pytest.raises(DataError, match="not finite"):
            to_json({"a": [number]})
    assert to_json({"a": 1e308}) == '{"a": 1e+308}'


class Hostile(dict[str, int]):
    def items(self) -> Any:
        raise RuntimeError("no")


def test_a_quoted_value_is_short_and_cheap() -> None:
    loop: list[Any] = []
    loop.append(loop)
    circle: dict[str, Any] = {}
    circle["a"] = circle
    laughs: Any = ["ha"]
    for _ in range(60):
        laughs = [laughs] * 10
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    start = time.process_time()
    for value in (loop, circle, laughs, deep, [0] * 10**7, "x" * 10**7, b"x" * 10**7, 10**9999, -(10**9999), Hostile()):
        assert len(show(value)) <= 60
    assert time.process_time() - start < 1
    assert show(10**5000) == "a whole number of 5,000 digits"
    assert show(Hostile(a=1)) == "<Hostile>"
    assert show("\x1b[31m") == "'\\x1b[31m'"
    for value in ([1, "a"], {"a": [1.5, None]}, (1,), (), {3}, "it's", b"x", True, 1e400, -7):
        assert show(value) == repr(value)
    assert show(OrderedDict(a=1)) == show(MappingProxyType({"a": 1})) == "{'a': 1}"
    assert show(iter([1])) == "<list_iterator>"


def test_what_lies_too_deep_is_not_a_recursion() -> None:
    tree: Any = 1
    for _ in range(DEEPEST):
        tree = [tree]
    assert checked_tree(tree, "file") is tree
    loop: list[Any] = []
    loop.append(loop)
    for deep in ([tree], loop):
        with pytest.raises(DataError, match="more than 32 mappings and lists"):
            checked_tree(deep, "file")


class Real(float):
    def __float__(self) -> float:
        raise RuntimeError("no")


def unusual_values() -> dict[str, Any]:
    loop: list[Any] = []
    loop.append(loop)
    circle: dict[str, Any] = {}
    circle["a"] = circle
    laughs: Any = ["ha"]
    deep: Any = {}
    for _ in range(40):
        laughs, deep = [laughs] * 9, {"a": deep}
    return {
        "loop": loop, "circle": circle, "laughs": laughs, "deep": deep, "bytes": b"x", "set": {1}, "type": int,
        "generator": (i for i in [1]), "decimal": Decimal("NaN"), "fraction": Fraction(10**500), "complex": 1j,
        "array": np.array([1, 2]), "empty array": np.array([]), "date": np.datetime64("2026-01-01"), "real": Real(1),
        "nan": math.nan, "large": 10**5000, "text": "9" * 5000, "surrogate": "\ud800", "key": {int: 1},
        "bad": Hostile(), "long key": {"a" * 10**6: 1}, "object": object(), "path": Path("x"),
        "one": np.int64(1), "yes": np.True_,
    }  # fmt: skip


@pytest.mark.parametrize("name", unusual_values())
def test_python_callers_get_an_answer_or_a_sentence(name: str) -> None:
    value = unusual_values()[name]
    base = {"model": "resnet50", "gpus": 8}
    device = {"gpus": {"mine": {"based_on": "a100-80gb-sxm", "mem_gb": value}}}
    calls: list[Callable[[], object]] = [
        *(partial(Job.from_dict, {**base, field: value}) for field in (*JOB_FIELDS, *RUN_FIELDS, "layout")),
        *(partial(Job.from_dict, {**base, field: {"x": value}}) for field in ("model_config", "input", "run", "data")),
        partial(Job.from_dict, {**base, "layout": {"tp": value}}), partial(Job.from_dict, value),
        partial(from_megatron, {"num-layers": value}), partial(from_torchtitan, {"training": {"steps": value}}),
        partial(from_deepspeed, {"zero_optimization": {"stage": value}}), partial(from_deepspeed, value),
        partial(default_catalog().with_document, device), partial(default_catalog().with_document, value),
        partial(Storage.from_dict, "mine", {"bandwidth_gb_per_s": value}),
        partial(jobs_of, {"jobs": [{"run": value}], "samples": 1}, Path()),
    ]  # fmt: skip
    start = time.process_time()
    for call in calls:
        try:
            call()
        except PrecisionTimeError as error:
            assert len(str(error)) < 1500  # noqa: PT017
    assert time.process_time() - start < 5 * len(calls)


def test_values_of_numpy_are_those_of_python() -> None:
    job = Job.from_dict({"model": "resnet50", "gpus": np.int64(8), "input": {"image_size": np.int32(224)}})
    assert (job.gpus, job.input) == (8, {"image_size": 224})
    assert type(job.gpus) is int
    assert plain_values("a", [np.float32(0.5), np.str_("b"), np.True_, Fraction(1, 2), Real(2), None]) == [
        0.5, "b", True, 0.5, 2.0, None,
    ]  # fmt: skip


def test_entries_are_counted_before_they_are_read() -> None:
    gpus = {f"g{index}": {"based_on": "a100-80gb-sxm"} for index in range(1001)}
    with pytest.raises(CatalogError, match="gpus has more than 1,000 entries"):
        default_catalog().with_document({"gpus": gpus})
    with pytest.raises(JobError, match="anchors has 101 entries; give at most 100"):
        Job("resnet50", anchors=("gpus=1,step_time_s=1",) * 101)


@pytest.mark.parametrize("wrong", [{"model_type": ["bert"]}, {"architectures": 5}, {"architectures": [5]}])
def test_a_model_configuration_has_names(wrong: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from precision_time.zoo.models.huggingface import read

    path = tmp_path / "config.json"
    path.write_text(to_json({"model_type": "bert", **wrong}))
    with pytest.raises(JobError, match="model_type must be a name, and architectures a list of names"):
        read(str(path))


def test_the_bounds_of_state_space_models_may_be_infinite_in_a_config_of_hugging_face(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from precision_time.zoo.models.huggingface import read

    path = tmp_path / "config.json"
    path.write_text('{"model_type": "mamba2", "time_step_limit": [0.0, Infinity], "time_step_min": 0.001}')
    assert read(str(path)) == {"model_type": "mamba2", "time_step_min": 0.001}
    path.write_text('{"model_type": "mamba2", "time_step_limit": [0.0, NaN]}')
    with pytest.raises(DataError, match="has NaN"):
        read(str(path))
