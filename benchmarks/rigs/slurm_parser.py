"""Slurm's own reading of an sbatch script: the client of Debian, unpacked into a folder, without a controller.

`sbatch -v` prints the options that it has read before it asks a controller, so none has to run. Nothing is installed
and no rights are needed; `fetch` downloads 3 MB of packages with apt.

    python -m benchmarks.rigs.slurm_parser FOLDER     # answers again the scripts of tests/golden/slurm_options.json
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PACKAGES = ("slurm-client", "slurm-wlm-basic-plugins", "libmunge2")
_LIBRARIES = "usr/lib/x86_64-linux-gnu"
_CONFIG = """\
ClusterName=rig
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort=1
AuthType=auth/none
CredType=cred/none
PluginDir={plugins}
MessageTimeout=1
GresTypes=gpu
NodeName=n[1-64] CPUs=64 Gres=gpu:8
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE
"""
_RULE = "--------------------"


def fetch(folder: Path) -> bool:
    """Unpack Debian's Slurm client into the folder; False where apt or the packages are not to be had."""
    if (folder / "usr/bin/sbatch").exists():
        return True
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        return False
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        got = subprocess.run(
            ["apt-get", "download", *PACKAGES], cwd=place, capture_output=True, timeout=120, check=False
        )
        if got.returncode:
            return False
        for package in sorted(Path(place).glob("*.deb")):
            subprocess.run(["dpkg", "-x", str(package), str(folder)], check=True, capture_output=True)
    return (folder / "usr/bin/sbatch").exists()


def version(folder: Path) -> str:
    """As Slurm prints it: "slurm-wlm 22.05.8"."""
    return _run(folder, ["--version"]).stdout.strip()


def options(folder: Path, script: str) -> dict[str, str] | str:
    """Option -> value as Slurm has read them, or the sentence of its error."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "job.sh"
        path.write_text(script)
        printed = _run(folder, ["-v", "--test-only", str(path)]).stderr
    found: dict[str, str] = {}
    inside = 0
    for line in printed.splitlines():
        text = line.removeprefix("sbatch: ")
        if text.startswith(_RULE):
            inside += 1
        elif inside == 1 and " : " in text:
            name, value = text.split(" : ", 1)
            found[name.strip()] = value.strip()
    if not inside:
        return next((line for line in printed.splitlines() if line), "nothing printed")
    return {name: value for name, value in found.items() if name not in ("verbose", "test-only")}


def _run(folder: Path, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    libraries = folder / _LIBRARIES
    config = folder / "slurm.conf"
    config.write_text(_CONFIG.format(plugins=libraries / "slurm-wlm"))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH"))}
    places = f"{libraries}:{libraries / 'slurm-wlm'}"
    return subprocess.run(
        [str(folder / "usr/bin/sbatch"), *arguments],
        env={**kept, "SLURM_CONF": str(config), "LD_LIBRARY_PATH": places},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


RECORDED = Path(__file__).parents[2] / "tests" / "golden" / "slurm_options.json"
COMPARED = (
    "nodes", "ntasks", "ntasks-per-node", "gpus", "gpus-per-node", "gpus-per-task", "gres", "time", "job-name",
    "cpus-per-task",
)  # fmt: skip
"""Options whose values Slurm prints, or that decide the allocation."""


def script(lines: str) -> str:
    """The batch script with these lines at its beginning."""
    return f"#!/bin/bash\n{lines}\nsrun true\n"


def answer(folder: Path, lines: str) -> dict[str, object]:
    """The row of a script: its options, or Slurm's reason to refuse it."""
    found = options(folder, script(lines))
    if isinstance(found, str):
        return {"lines": lines, "refused": found.removeprefix("sbatch: ").replace("job.sh: ", "")}
    kept = {name: found[name].removeprefix("gres:") for name in COMPARED if name in found}
    return {"lines": lines, "options": kept}


def record(folder: Path) -> None:
    """Write Slurm's answers to the recorded scripts."""
    rows = [answer(folder, row["lines"]) for row in json.loads(RECORDED.read_text())["rows"]]
    RECORDED.write_text(json.dumps({"version": version(folder), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    where = Path(sys.argv[1])
    if not fetch(where):
        sys.exit("apt-get download slurm-client does not work here")
    record(where)
