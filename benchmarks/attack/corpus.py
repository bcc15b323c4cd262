"""Every class of defect that an attack has found, kept with the input that showed it; tests run them all."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.attack import relations
from benchmarks.attack.input import Input
from benchmarks.attack.judge import DEFECT, judged
from precision_time.errors import PrecisionTimeError
from precision_time.job import Job
from precision_time.prediction import predict

if TYPE_CHECKING:
    from benchmarks.attack.workers import Defect

Entry = Mapping[str, Any]
"""A command with its files, a Python call, or a relation with its job."""

CORPUS = Path(__file__).parents[2] / "tests" / "golden" / "attack_corpus.jsonl"
_LARGEST = 4000
_NAMES = {"inf": float("inf"), "nan": float("nan")}


def input_entry(given: Input, folder: Path) -> Entry:
    """An input as an entry; empty where it is too large to keep, or has folders."""
    if given.call is not None:
        return {"kind": given.kind, "call": given.description} if given.description.endswith(")") else {}
    if any(path.is_dir() for path in folder.iterdir()):
        return {}
    files = {path.name: path.read_bytes().decode("utf-8", "replace") for path in folder.iterdir() if path.is_file()}
    return {"kind": given.kind, "arguments": list(given.arguments), "files": files}


def entries() -> list[dict[str, Any]]:
    """The corpus."""
    return [json.loads(line) for line in CORPUS.read_text(encoding="utf-8").splitlines()] if CORPUS.exists() else []


def add_to_corpus(classes: Mapping[str, Iterable[Defect]]) -> int:
    """Appends the smallest example of each class that is not in the corpus yet; the number of new entries."""
    known = {entry["defect"] for entry in entries()}
    new = []
    for name, defects in sorted(classes.items()):
        texts = sorted((json.dumps({"defect": name, **each.entry}) for each in defects if each.entry), key=len)
        if name not in known and texts and len(texts[0]) <= _LARGEST:
            new.append(texts[0])
    with CORPUS.open("a", encoding="utf-8") as stream:
        stream.writelines(f"{line}\n" for line in new)
    return len(new)


def still_wrong(entry: Entry) -> str:
    """What an entry shows now; "" where the defect is gone."""
    if "relation" in entry:
        return _relation(entry)
    with _folder(entry.get("files", {})):
        if "call" in entry:
            fields = eval(entry["call"].removeprefix("predict_time(**").removesuffix(")"), {"__builtins__": {}}, _NAMES)
            given = Input(entry["kind"], call=lambda: predict(Job.from_dict({"model": "resnet50", **fields})).to_dict())
        else:
            given = Input(entry["kind"], tuple(entry["arguments"]))
        verdict = judged(given)
    return verdict.reason if verdict.outcome == DEFECT else ""


def _relation(entry: Entry) -> str:
    relation = getattr(relations, entry["relation"])
    try:
        job = Job.from_dict(entry["job"])
        return str(relation(job, predict(job)))
    except PrecisionTimeError:
        return ""


@contextmanager
def _folder(files: Mapping[str, str]) -> Iterator[None]:
    """A temporary folder with these files as the current one."""
    home = Path.cwd()
    with tempfile.TemporaryDirectory() as name:
        for path, text in files.items():
            (Path(name) / path).write_text(text, encoding="utf-8", errors="replace", newline="")
        os.chdir(name)
        try:
            yield
        finally:
            os.chdir(home)
