"""The files of the page: what is generated is up to date, what is vendored is unchanged, nothing is inline."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.accuracy import served_board
from precision_time.estimate.goodput import LABELS
from precision_time.estimate.text import TERM_LABELS
from precision_time.report.figure import STACK
from precision_time.serve.http.page_files import page_files
from precision_time.serve.page import static_folder
from precision_time.serve.page.words import FILE, as_module, words
from precision_time.shipped import ROOT

VENDORED = {
    "vendor/uplot/uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "vendor/uplot/uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "vendor/uplot/LICENSE.txt": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}
OWN = sorted(path for path in static_folder.glob("*") if path.suffix in (".js", ".css", ".html"))


def test_words_are_those_of_the_program() -> None:
    assert FILE.read_text() == as_module(), "run python -m precision_time.serve.page.words"


def test_words_hold_every_field_of_a_job_that_a_request_may_set() -> None:
    paths = {(field["section"], field["name"]) for field in words()["fields"]}
    assert {("job", "batch_size"), ("run", "epochs"), ("data", "workers"), ("input", "seq_len")} <= paths
    assert ("job", "device") not in paths


def test_the_board_is_that_of_the_committed_pages() -> None:
    results = Path(served_board.__file__).parents[1] / "results"
    assert json.loads((ROOT / served_board.DATA).read_text()) == served_board.board(results)


def test_colours_of_the_parts_are_those_of_the_figures() -> None:
    light = (static_folder / "style.css").read_text().partition("@media")[0]
    assert re.findall(r"--part-\d+: (#\w+);", light) == list(STACK)
    assert len(STACK) >= max(len(TERM_LABELS), len(LABELS))


@pytest.mark.parametrize(("name", "digest"), VENDORED.items())
def test_vendored_files_are_unchanged(name: str, digest: str) -> None:
    assert hashlib.sha256((static_folder / name).read_bytes()).hexdigest() == digest


def test_nothing_is_inline_and_nothing_comes_from_elsewhere() -> None:
    page = (static_folder / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=|javascript:", page)
    for path in OWN:
        text = path.read_text()
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text), (
            path
        )
        assert not re.search(r"(?:src|href|from|import|url)\W{0,3}(?:https?:)?//", text), path


def test_the_server_has_every_file_that_the_page_names() -> None:
    files = page_files()
    named = set(re.findall(r'(?:src|href)="([\w./-]+)"', (static_folder / "index.html").read_text()))
    imported = {name for path in OWN for name in re.findall(r'from "\./([\w.-]+)"', path.read_text())}
    vendored = set(re.findall(r'"(vendor/[\w./-]+)"', (static_folder / "charts.js").read_text()))
    assert len(imported) > 10
    assert len(vendored) == 2
    assert {f"/{name}" for name in named | imported | vendored} <= set(files)
    assert imported <= named, "a module without modulepreload is loaded one round trip later"
    assert "/vendor/uplot/LICENSE.txt" in files
    assert not any(name.endswith(".py") for name in files)
    assert sum(len(content) for name, (content, *_) in files.items() if "vendor" not in name and name != "/") < 200_000


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_scripts_are_valid_modules() -> None:
    for path in static_folder.glob("*.js"):
        checked = subprocess.run(
            ["node", "--input-type=module", "--check"], input=path.read_bytes(), capture_output=True, check=False
        )
        assert checked.returncode == 0, f"{path.name}: {checked.stderr.decode()}"
