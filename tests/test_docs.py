"""README.md and docs/: their Python runs, their commands succeed, their links exist.

A page runs top to bottom in a folder of its own: its ```python blocks as one program, and every line of its ```sh
blocks that starts with `precision-time`. HTML comments before a block steer it:

    <!-- file: NAME -->    write the block to this file first
    <!-- needs: MODULE --> leave the block out where the module is not installed
    <!-- no test: why -->  leave the block out
    <!-- served: PROGRAM --> run the block by bash, against a server that the test starts in place of localhost:8750;
                           not where PROGRAM or curl is absent
    <!-- output: exact -->   what the block above prints; "figures may change": with other digits
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from precision_time.cli.main import main

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
STAGGERING = ROOT / "docs" / "staggering.md"
LONG = ("plan.md",)
"""Pages whose examples take more than ten seconds, besides README.md, which `make test` runs all the same."""
_FENCE = re.compile(
    r"^(?:<!-- (file|needs|no test|served|output): (.*?) -->\n)?```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
_LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)(?:#[^)]*)?\)|src=\"(?!https?:)([^\"]+)\"")


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    line: int
    tag: str
    value: str


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for found in _FENCE.finditer(text):
        tag, value, language, body = found.groups()
        yield Block(language, body, text.count("\n", 0, found.start(4)), tag or "", value or "")


def run_command(line: str, where: str) -> None:
    words = shlex.split(line, comments=True)
    assert main(words[1:]) == 0, f"{where}: {line}"


def run_examples(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {"__name__": "__example__"}
    for block in blocks(page):
        if block.tag in ("no test", "served", "output") or (block.tag == "needs" and not _installed(block.value)):
            continue
        where = f"{page.name}:{block.line + 1}"
        if block.tag == "file":
            (folder / block.value).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            exec(compile("\n" * block.line + block.text, str(page), "exec"), names)
        elif block.language in ("sh", "bash", "console"):
            for line in block.text.replace("\\\n", " ").splitlines():
                if line.removeprefix("$ ").startswith("precision-time "):
                    run_command(line.removeprefix("$ "), where)


@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")  # of Lightning, which uses it (integrations.md)
@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.slow if page.name in LONG else (), id=page.name)
        for page in PAGES
        if page != STAGGERING
    ],
)
def test_examples(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_examples(page, tmp_path, monkeypatch)


@pytest.mark.slow
def test_the_staggering_examples_gain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last command of the page prints the JSON of the calibration that the first made."""
    run_examples(STAGGERING, tmp_path, monkeypatch)
    printed = capsys.readouterr().out
    found = json.loads(printed[printed.rindex("\n{") :])
    together = next(way for way in found["others"] if way["way"] == "together")
    assert found["gain_is_sure"]
    assert found["best"]["makespan_s"] < 0.95 * together["makespan_s"]


@pytest.mark.parametrize(
    "page", [page for page in PAGES if "<!-- served: " in page.read_text()], ids=lambda page: page.name
)
def test_served_examples(page: Path, tmp_path: Path) -> None:
    pytest.importorskip("starlette", reason="the server is not installed")
    from serving import served

    run = list(blocks(page))
    if absent := [
        name for name in {"curl", *(b.value for b in run if b.tag == "served")} if shutil.which(name) is None
    ]:
        pytest.skip(f"{absent[0]} is not installed")
    folder = tmp_path / "server"
    folder.mkdir()
    printed, expected = "", 0
    with served(folder, "--workers", "1", "--quiet") as server:
        for block in run:
            where = f"{page.name}:{block.line + 1}"
            if block.tag == "file":
                (tmp_path / block.value).write_text(block.text, encoding="utf-8")
            elif block.tag == "served":
                script = block.text.replace("http://localhost:8750", server.url).replace("localhost:8750", server.url)
                done = subprocess.run(
                    ["bash", "-euo", "pipefail", "-c", script],
                    cwd=tmp_path,
                    capture_output=True,
                    text=True,
                    check=False,
                )
                assert done.returncode == 0, f"{where}: {done.stderr}{done.stdout}"
                printed = done.stdout
            elif block.tag == "output":
                form = re.escape(block.text.strip())
                if block.value == "figures may change":
                    form = re.sub(r"\d+", r"\\d+", form)
                assert re.fullmatch(form, printed.strip()), f"{where}: {printed}"
                expected += 1
    assert expected


def _installed(module: str) -> bool:
    from importlib.util import find_spec

    return find_spec(module) is not None


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_links(page: Path) -> None:
    targets = [a or b for a, b in _LINK.findall(page.read_text(encoding="utf-8"))]
    assert [t for t in targets if not (page.parent / t).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_tests_exist(page: Path) -> None:
    named = re.findall(r"(tests/\w+\.py)(?:::(\w+))?", page.read_text(encoding="utf-8"))
    assert named or page.name != "details.md"
    missing = []
    for file, test in sorted(set(named)):
        path = ROOT / file
        if not path.is_file() or (test and f"\ndef {test}(" not in path.read_text(encoding="utf-8")):
            missing.append(f"{file}::{test}")
    assert missing == []


def test_every_page_is_on_the_map() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert [page.name for page in PAGES[1:] if page.name != "index.md" and f"({page.name})" not in index] == []


def test_the_code_that_the_map_names_exists() -> None:
    text = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    named = re.findall(r"`([\w./-]+/|[\w./-]+\.py)`", text)
    assert len(named) > 30
    package = ROOT / "src" / "precision_time"
    assert [path for path in named if not (ROOT / path).exists() and not (package / path).exists()] == []
