"""`make demo-serve`: three jobs, one outcome, the page's address, and an end; with --stay until Ctrl-C."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the server is not installed")
DEMO = Path(__file__).parent.parent / "examples" / "serve" / "demo.py"


def test_demo_posts_three_jobs_and_an_outcome_and_stops() -> None:
    done = subprocess.run([sys.executable, DEMO], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    first, *lines = done.stdout.splitlines()
    assert re.fullmatch(r"page: http://127\.0\.0\.1:\d+/", first)
    jobs = [
        line
        for line in lines
        if re.match(r"[0-9a-f-]{20,}  [\w.-]+, [\w-]+, \d+ x [\w-]+: step .*, run .*, \$[\d.]+, ", line)
    ]
    assert len(jobs) == 3
    assert re.search(r"outcome of [0-9a-f-]+: step 1\d\d ms, kept", done.stdout)
    assert re.search(r"time limit: #SBATCH --time=\d\d:\d\d:\d\d", done.stdout)
    assert lines[-1] == "stopped"


def test_demo_stays_up_until_it_is_interrupted() -> None:
    with subprocess.Popen([sys.executable, "-u", DEMO, "--stay"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline()]
        while "Ctrl-C" not in lines[-1]:
            lines.append(process.stdout.readline())
            assert lines[-1], lines
        with urllib.request.urlopen(lines[0].removeprefix("page: ").strip()) as page:
            assert b"<title>precision-time</title>" in page.read()
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(60) == 0
    assert rest.endswith("stopped\n")
