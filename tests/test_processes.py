"""Modules of the package as processes of their own: started from any folder, ended for certain."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from precision_time.processes import end_process, json_objects, start_module


def test_a_module_starts_in_any_folder_with_its_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "asked.py").write_text(
        "import os, sys, precision_time\n"
        "print(sys.argv[1], os.environ['WORD'], precision_time.__file__.endswith('__init__.py'))\n"
    )
    monkeypatch.delenv("PYTHONPATH", raising=False)
    process = start_module("asked", "one", environment={"WORD": "two"}, cwd=tmp_path, stdout=subprocess.PIPE)
    assert process.communicate(timeout=60)[0].split() == [b"one", b"two", b"True"]
    end_process(process)


def test_a_process_that_goes_on_is_killed_and_one_that_ends_is_not() -> None:
    code = "import sys, time\nprint('up', flush=True)\nsys.stdin.read()\ntime.sleep(float(sys.argv[1]))"
    begin = time.monotonic()
    for seconds, ended in (("0", 0), ("600", -9)):
        process = subprocess.Popen([sys.executable, "-c", code, seconds], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        end_process(process, 30.0 if ended == 0 else 0.2)
        assert process.returncode == ended
    assert time.monotonic() - begin < 300


def test_objects_among_other_lines() -> None:
    lines = [b'{"a": 1}\n', b"warning: {\n", b"[1]\n", b"\xff\n", b'{"b": 2}']
    assert list(json_objects(lines)) == [{"a": 1}, {"b": 2}]
