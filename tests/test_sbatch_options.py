"""Options of sbatch scripts against Slurm's own client: its recorded answers, and the client itself where it is."""

from __future__ import annotations

import json
import random
import shutil
import string
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks.rigs import slurm_parser
from precision_time.errors import DataError
from precision_time.job.importers.sbatch_options import SHORT, SWITCHES, WITH_VALUE, directives, options, whole_name
from precision_time.plan.time_limits import slurm_seconds

RECORDED = json.loads(slurm_parser.RECORDED.read_text())
READ = [row for row in RECORDED["rows"] if "options" in row]
REFUSED = [row for row in RECORDED["rows"] if "refused" in row]


def minutes(text: str) -> int | None:
    """Slurm prints a time in whole minutes, rounded up."""
    seconds = slurm_seconds(text)
    return None if seconds is None else -(-seconds // 60)


def compared(found: Mapping[str, str]) -> dict[str, object]:
    kept: dict[str, object] = {name: value for name, value in found.items() if name in slurm_parser.COMPARED}
    return kept | {"time": minutes(str(kept["time"]))} if "time" in kept else kept


def test_there_are_answers_of_a_named_version() -> None:
    assert RECORDED["version"].startswith("slurm-wlm ")
    assert len(READ) > 60
    assert len(REFUSED) > 8


@pytest.mark.parametrize("row", READ, ids=lambda row: row["lines"])
def test_options_are_those_that_slurm_reads(row: dict[str, object]) -> None:
    expected = row["options"]
    assert isinstance(expected, dict)
    assert compared(directives(slurm_parser.script(str(row["lines"])))) == compared(expected)


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row["lines"])
def test_what_slurm_refuses_gives_no_wrong_allocation(row: dict[str, object]) -> None:
    """The counts that are read from such a script are those written in it, or no numbers at all."""
    lines = str(row["lines"])
    found = directives(slurm_parser.script(lines))
    for name in ("nodes", "ntasks"):
        if found.get(name, "").isdigit():
            assert found[name] in lines


def test_a_shortened_name_stands_for_one_option_or_for_itself() -> None:
    assert whole_name("gpus-per-n") == "gpus-per-node"
    assert whole_name("node") == "node"  # nodes, nodelist, nodefile
    assert whole_name("nodes") == "nodes"
    assert whole_name("made-up") == "made-up"
    assert not WITH_VALUE & SWITCHES
    assert set(SHORT.values()) <= WITH_VALUE | SWITCHES


def test_an_option_knows_where_its_value_stands() -> None:
    text = slurm_parser.script("#SBATCH -J 'a -t 3' --time=\"1:00\" -t5 # --time=9\n#SBATCH -t '2:00'")
    found = [(text[each.start : each.end], each.value) for each in options(text) if each.name == "time"]
    assert found == [('"1:00"', "1:00"), ("5", "5"), ("'2:00'", "2:00")]


def test_the_limit_that_counts_is_rewritten(tmp_path: Path) -> None:
    """It is the last one; a comment and the name of the job keep theirs."""
    from precision_time.plan.time_limits import rewrite_slurm
    from precision_time.plan.walltime import TimeLimit

    path = tmp_path / "a.sh"
    path.write_text(slurm_parser.script("#SBATCH -J 'a -t 3' --time=5 # --time=9\n#SBATCH -t '2:00'"))
    rewrite_slurm(path, TimeLimit("slurm", 0.95, 3600, 1800, 0.0, False))
    assert path.read_text().splitlines()[1:3] == [
        "#SBATCH -J 'a -t 3' --time=5 # --time=9",
        "#SBATCH -t 01:00:00",
    ]
    path.write_text("#!/bin/bash\necho a\n#SBATCH --time=5\n")
    rewrite_slurm(path, TimeLimit("slurm", 0.95, 3600, 1800, 0.0, False))
    assert path.read_text() == "#!/bin/bash\n#SBATCH --time=01:00:00\necho a\n#SBATCH --time=5\n"


@pytest.mark.parametrize("text", ["=5", "-", "1--2"])
def test_times_that_slurm_refuses(text: str) -> None:
    with pytest.raises(DataError, match="no time of Slurm"):
        slurm_seconds(text)


# --- with Slurm itself


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Debian's client, unpacked (3 MB from a mirror)."""
    folder = tmp_path_factory.mktemp("slurm") / "root"
    if shutil.which("apt-get") is None or not slurm_parser.fetch(folder):
        pytest.skip("apt-get download slurm-client does not work here")
    return folder


@pytest.mark.slow
def test_the_recorded_answers_are_those_of_slurm(slurm: Path) -> None:
    if slurm_parser.version(slurm) != RECORDED["version"]:
        pytest.skip(f"recorded with {RECORDED['version']}, here is {slurm_parser.version(slurm)}")
    assert [slurm_parser.answer(slurm, row["lines"]) for row in RECORDED["rows"]] == RECORDED["rows"]


VALUES = {
    "nodes": ("2", "1-4"), "ntasks": ("16",), "ntasks-per-node": ("8",), "gpus": ("8", "h100:8"),
    "gpus-per-node": ("4", "a100:4"), "gpus-per-task": ("1",), "gres": ("gpu:8", "gpu:a100:2"),
    "time": ("90", "1:30", "02:00:00", "3-", "1-12"), "job-name": ("a", "a b", "it's", "x -N 9", "n#1", 'say "so"'),
    "cpus-per-task": ("12",), "comment": ("two words", "a --nodes=7"), "mem": ("0", "64G"),
    "output": ("logs/%x-%j.out",), "partition": ("main",), "mail-type": ("END,FAIL",),
}  # fmt: skip


def written(random_: random.Random, name: str, value: str) -> str:
    """One way to write an option."""
    plain = set(value) <= set(string.ascii_letters + string.digits + "-:,./%")
    forms = [f'"{value}"'] if '"' not in value else []
    forms += [f"'{value}'"] if "'" not in value else []
    forms += [value, value] if plain else []
    text = random_.choice(forms)
    letter = next((short for short, long in SHORT.items() if long == name), None)
    if letter is not None and random_.random() < 0.5:
        return f"-{letter}{random_.choice((' ', ''))}{text}"
    shortest = next(name[:n] for n in range(1, len(name) + 1) if whole_name(name[:n]) == name)
    long = name if random_.random() < 0.8 else shortest
    return f"--{long}{random_.choice((' ', '='))}{text}"


@pytest.mark.slow
def test_random_scripts_are_read_as_slurm_reads_them(slurm: Path) -> None:
    random_ = random.Random(7)
    for _ in range(400):
        lines = []
        for _ in range(random_.randint(1, 4)):
            chosen = random_.choices(sorted(VALUES), k=random_.randint(1, 4))
            words = [written(random_, name, random_.choice(VALUES[name])) for name in chosen]
            words += random_.choice(((), ("--exclusive",), ("--requeue",), ("# --nodes=9 -t 9",)))
            lines.append(random_.choice(("#SBATCH ", "#SBATCH\t", "#SBATCH   ")) + " ".join(words))
        text = "\n".join(lines)
        row = slurm_parser.answer(slurm, text)
        assert "options" in row, (text, row)
        assert compared(directives(slurm_parser.script(text))) == compared(row["options"]), text  # type: ignore[arg-type]
