"""What `--import` takes from a file of each program: `python -m benchmarks.imported_files`.

The files are in each program's documented style, in our own words (`attack/import_files.py`). Writes
benchmarks/results/imports.md: every file, the job that it gives, the settings taken, and why the others are not.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from benchmarks.attack.import_files import FILES
from precision_time.job import Job
from precision_time.job.importers import read_import
from precision_time.report.write import write_whole

PAGE = Path(__file__).parent / "results" / "imports.md"
_FLAGS: dict[str, dict[str, Any]] = {
    "ds_auto.json": {"precision": "bf16-master", "batch_size": 1, "grad_accum": 1},
}
"""File -> what it leaves open, beside a model and GPUs."""
_HEAD = """# Files of other programs, and what is taken from them

Written by `python -m benchmarks.imported_files`. One file of each program, in the style of its documentation and in our
own words, with the job that `--import` makes of it. What a file does not say (a model, the number of GPUs, `auto`) is
given beside it. [import.md](../../docs/import.md) has the rules.
"""


def main() -> None:
    write_whole(PAGE, page())


def page() -> str:
    with tempfile.TemporaryDirectory() as folder:
        return "\n".join([_HEAD, *(_section(name, Path(folder)) for name in FILES)])


def _section(name: str, folder: Path) -> str:
    text = FILES[name][0].strip("\n")
    path = folder / name
    path.write_text(FILES[name][0], encoding="utf-8")
    imported = read_import(path)
    flags = dict(_FLAGS.get(name, {}))
    if "model" not in imported.fields:
        flags["model"] = "gpt2"
    if "gpus" not in imported.fields:
        flags["gpus"] = 32
    job = Job.from_dict(imported.job_fields(flags))
    run = ", ".join(f"{key} {value}" for key, value in (job.to_dict().get("run") or {}).items())
    given = " ".join(f"--{key.replace('_', '-')} {value}" for key, value in flags.items())
    lines = [
        f"## {imported.kind}: `{name}`\n",
        f"```text\n{text}\n```\n",
        f"- Job{f' with `{given}`' if given else ''}: {job.signature()}{f' · run: {run}' if run else ''}",
        f"- Taken: {', '.join(f'`{key}`' for key in imported.taken)}",
        *(f"- Not taken: {note}" for note in imported.notes()),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
