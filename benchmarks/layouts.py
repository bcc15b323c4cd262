"""Speed of layouts: a very large job from a cold shell, 10,000 layouts of a model: `python benchmarks/layouts.py`.

Wall and processor seconds in fresh processes, imports included. Writes benchmarks/results/layouts.json and layouts.md.
Leave the machine alone meanwhile: on a busy one only the processor seconds mean something.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from speed import COMMAND, RESULTS, human, machine

LARGE = ["llama3.1-405b", "--gpu", "h100-80gb-sxm", "--gpus", "16384", "--precision", "bf16-master", "--batch-size",
         "1", "--grad-accum", "16", "--layout", "tp=8,pp=16,cp=2,dp=64,vpp=2,sp=1,zero=1"]  # fmt: skip
MANY = """
import itertools, json, sys, time

def words():
    for gpus, tp, pp, cp, vpp, micro, zero, recompute in itertools.product(
        (256, 512, 1024, 2048), (1, 2, 4, 8), (1, 2, 4, 8, 16), (1, 2, 4), (1, 2, 5), (1, 2, 4), (0, 1, 3),
        ("none", "selective", "full"),
    ):
        dp = gpus // (tp * pp * cp)
        accum = 2048 // max(dp * micro, 1)
        whole = dp >= 1 and accum * dp * micro == 2048 and 80 % (pp * vpp) == 0
        if whole and not (pp == 1 and vpp > 1) and not (pp > 1 and zero == 3) and not (vpp > 1 and accum % pp):
            layout = f"tp={tp},pp={pp},dp={dp},cp={cp},vpp={vpp},sp={int(tp > 1)},zero={zero}"
            yield dict(gpus=gpus, layout=layout, batch_size=micro, grad_accum=accum, recompute=recompute)

if __name__ == "__main__":
    start = time.perf_counter()
    from precision_time import Job, compare
    base = Job("llama3-70b", gpu="h100-80gb-sxm", precision="bf16-master", optimizer="adamw")
    jobs = [base.replace(**each) for each in itertools.islice(words(), int(sys.argv[1]))]
    result = compare(jobs, workers=int(sys.argv[2]))
    known = sum(row.estimate is not None for row in result.rows)
    fits = sum(row.estimate is not None and row.estimate.memory.fits for row in result.rows)
    print(json.dumps({"seconds": time.perf_counter() - start, "jobs": len(jobs), "known": known, "fits": fits}))
"""


def run(command: Sequence[str]) -> dict[str, Any]:
    """Wall and processor seconds, peak memory and the last line of output of a fresh process and its children."""
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)[:80]} ended with exit code {process.returncode}")
    return {
        "wall_s": time.perf_counter() - start,
        "processor_s": usage.ru_utime + usage.ru_stime,
        "peak_mib": usage.ru_maxrss / (1024 if sys.platform != "darwin" else 2**20),
        "said": said.splitlines()[-1] if said else "",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=10_000, help="layouts to compare (default 10000)")
    parser.add_argument("--workers", type=int, default=2, help="processes (default 2)")
    given = parser.parse_args()
    cold = [sys.executable, "-m", "precision_time.cli.main"] if not Path(COMMAND).exists() else [COMMAND]
    script = RESULTS.parent / "_layouts_many.py"
    run([*cold, "predict", *LARGE])  # fills the file cache
    large = min((run([*cold, "predict", *LARGE]) for _ in range(5)), key=lambda r: float(r["wall_s"]))
    script.write_text(MANY, encoding="utf-8")  # a pool's workers read the script again
    try:
        many = run([sys.executable, str(script), str(given.jobs), str(given.workers)])
    finally:
        script.unlink()
    found = json.loads(many["said"])
    each = many["processor_s"] / found["jobs"]
    where, load = machine(), os.getloadavg()[0]
    lines = [
        "# Speed of layouts", "", "| what | wall | processor | peak memory | goal | |", "|---|---|---|---|---|---|",
        f"| llama3.1-405b on 16,384 H100, cold shell | {human(large['wall_s'])} | {human(large['processor_s'])} | "
        f"{large['peak_mib']:.0f} MiB | < 2 s, < 1 GB | best of 5 |",
        f"| {found['jobs']:,} layouts of llama3-70b, {given.workers} processes | {human(many['wall_s'])} | "
        f"{human(many['processor_s'])} | {many['peak_mib']:.0f} MiB | < 10 s | {found['fits']:,} fit in memory; "
        f"{human(each)} of processor a layout |",
        "", f"{where['date']}, {where['cpu']}, load {load:.1f}; python {where['python']}: "
        "`python benchmarks/layouts.py`.",
    ]  # fmt: skip
    text = "\n".join(lines) + "\n"
    print(text)
    content = {"machine": where, "load": load, "large": large, "many": {**many, **found}}
    (RESULTS / "layouts.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    (RESULTS / "layouts.md").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
