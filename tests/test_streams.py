"""Standard output and error of every command: full, closed, without a reader; results alone, without controls."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from precision_time.cli import progress, streams
from precision_time.cli.main import main
from precision_time.report.printable import printable
from precision_time.report.table import Table

COMMANDS = (
    "--version",
    "--help",
    "",
    "--completion bash",
    "predict --help",
    "zoo gpt2",
    "zoo --json",
    "gpus --prices",
    "predict resnet50",
    "predict resnet50 --json",
    "compare resnet50 --json",
)
ENTRY = f"{sys.executable} -m precision_time.cli.main"


def run(command: str, redirection: str) -> subprocess.CompletedProcess[str]:
    script = f"{ENTRY} {command} {redirection}; exit ${{PIPESTATUS[0]}}"
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("command", [COMMANDS[i] for i in (0, 1, 3, 4, 9)])
def test_a_full_disk_is_one_sentence(command: str) -> None:
    done = run(command, "> /dev/full")
    assert done.returncode == 2
    assert done.stderr == (
        "precision-time: error: standard output cannot be written: no space left on device; direct it elsewhere\n"
    )


@pytest.mark.parametrize("command", [COMMANDS[i] for i in (0, 1, 8)])
def test_closed_output_is_one_sentence(command: str) -> None:
    done = run(command, ">&-")
    assert done.returncode == 2
    assert done.stderr.startswith("precision-time: error: standard output is closed")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", [COMMANDS[i] for i in (1, 6)])
def test_a_reader_that_goes_away_ends_the_command_in_silence(command: str) -> None:
    done = run(command, "| head -c 0")
    assert (done.returncode, done.stderr) in ((141, ""), (0, ""))  # 0 where the pipe took all before its reader left


@pytest.mark.parametrize("redirection", ["2>&-", "2> /dev/full", "2>&- >&-", "2> /dev/full > /dev/full", "<&- 2>&-"])
def test_without_standard_error(redirection: str) -> None:
    done = run("predict resnet50 --json", redirection)
    lost = "> /dev/full" in redirection.removeprefix("2> /dev/full") or redirection.endswith(" >&-")
    assert done.returncode == (2 if lost else 0)
    assert bool(done.stdout) != lost
    wrong = run("predict resnet51", redirection)
    assert (wrong.returncode, wrong.stdout) == (2, "")


def test_what_other_code_prints_leaves_the_result_alone() -> None:
    script = (
        "import os, subprocess, sys\n"
        "from precision_time.cli import streams\n"
        "with streams.reserved():\n"
        "    print('library'); os.write(1, b'descriptor\\n'); subprocess.run(['echo', 'child']); sys.stdout.close()\n"
        "    streams.emit('{}'); streams.note('note \\x1b[31m')\n"
        "print('after')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "{}\nafter\n"
    assert sorted(done.stderr.splitlines()) == ["child", "descriptor", "library", "note \\u001b[31m"]


def test_control_characters_are_escaped_as_json_does() -> None:
    text = "\x1b[31mred\x9b\x7f\r \u202egnp\udcff\tå\n"
    assert printable(text) == "\\u001b[31mred\\u009b\\u007f\\u000d \\u202egnp\\udcff\tå\n"
    assert json.loads(printable(json.dumps({"name": text}, ensure_ascii=False)))["name"] == text
    assert "\x1b" not in str(Table(["name"], [["\x1b[2J"]]))


def test_controls_in_names_never_reach_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "table.csv"
    table.write_text(
        "id,model,gpu,gpus,precision,batch_size,step_time_s\n"
        "\x1b[31mone\x07,resnet50,a100-80gb-sxm,1,fp32,32,0.1\ntwo\x9b,\x1b]0;title\x07,a100-80gb-sxm,1,fp32,32,0.1\n"
    )
    for command in (["evaluate", str(table)], ["evaluate", str(table), "--json"], ["predict", "\x1b[2Jmodel"],
                    ["predict", "resnet50", "--gpu", "\x1b[2J"], ["zoo", "\x1b[2J"], ["predict", "\x1b[2J.yaml"],
                    ["predict", "resnet50", "--\x1b[2J", "1"], ["\x1b[2J"]):  # fmt: skip
        main(command)
        printed = capsys.readouterr()
        assert not set(printed.out + printed.err) & {"\x1b", "\x07", "\x9b"}, command


def test_a_stream_without_a_descriptor_gets_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    with streams.reserved():
        print("aside")
        streams.emit("result")
    assert capsys.readouterr() == ("result\n", "aside\n")


def test_a_log_gets_a_line_of_progress_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([0.0, 1.0, 29.0, 31.0, 31.0, 40.0, 62.0, 62.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    report = progress.Progress("jobs")
    for done in (1, 2, 3, 4, 5):
        report(done, 100)
    assert capsys.readouterr().err == "3/100 jobs\n5/100 jobs, about 25 min left\n"
