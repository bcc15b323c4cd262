"""The findings of an attack as a page and as JSON."""

from __future__ import annotations

import collections
import datetime
import json
import platform
from pathlib import Path

from benchmarks.attack.judge import LIMIT_BYTES, LIMIT_S
from benchmarks.attack.workers import Findings


def write_report(found: Findings, folder: Path) -> None:
    """Writes attack.json and attack.md into `folder`."""
    classes = collections.Counter(defect.of_class for defect in found.defects)
    machine = {"processor": platform.machine(), "python": platform.python_version(), "date": str(datetime.date.today())}
    content = {
        "seed": found.seed, "code": found.code, "inputs": found.inputs, "jobs": found.jobs,
        "seconds": round(found.seconds), "slowest_input_s": round(found.slowest_s, 2), "machine": machine,
        "outcomes": {kind: dict(outcomes) for kind, outcomes in sorted(found.outcomes.items())},
        "defects": dict(classes.most_common()),
    }  # fmt: skip
    (folder / "attack.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    lines = [
        "# Attacks with fresh seeds",
        "",
        f"`python -m benchmarks.attack --inputs {found.inputs} --jobs {found.jobs} --seed {found.seed} --write`, "
        f"{machine['date']}, Python {machine['python']} on {machine['processor']}, {found.seconds:,.0f} s "
        f"(time of all pieces over the number of workers); digest of package, data and attack `{found.code}`.",
        "",
        f"An input is answered or refused in one sentence within {LIMIT_S:g} s and {LIMIT_BYTES / 2**30:g} GiB, "
        "without a warning, "
        "a traceback, NaN or anything left on disk. A job obeys relations with related jobs "
        "(`benchmarks/attack/relations.py`).",
        "",
        f"**{len(found.defects)} defects**; the slowest input took {found.slowest_s:.2f} s.",
        "",
        "| inputs | answered | refused | defects |",
        "|---|---|---|---|",
    ]
    relations = []
    for kind, outcomes in sorted(found.outcomes.items()):
        if "holds" in outcomes or "broken" in outcomes:
            relations.append(f"| {kind} | {outcomes['holds']:,} | {outcomes['broken']:,} |")
        else:
            counts = " | ".join(f"{outcomes[name]:,}" for name in ("answered", "refused", "defect"))
            lines.append(f"| {kind} | {counts} |")
    lines += ["", "| relation | holds | broken |", "|---|---|---|", *relations]
    if classes:
        lines += [
            "",
            "| defects | class |",
            "|---|---|",
            *(f"| {n} | {name.replace('|', '/')} |" for name, n in classes.most_common()),
        ]
    (folder / "attack.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
