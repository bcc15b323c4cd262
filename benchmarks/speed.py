"""Speed and memory of precision-time, and of torch's own tools: `python -m benchmarks.speed` (`make benchmark`).

Each figure is the median over fresh processes, so imports are included unless the row says "warm"; memory is the
largest peak of any of them. Writes benchmarks/results/speed.json and speed.md; --readme FILE puts the table between
that file's speed markers. Run nothing else meanwhile.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from precision_time.report.page import fill_markers
from precision_time.report.table import Table
from precision_time.units import human_seconds

RESULTS = Path(__file__).parent / "results"
COMMAND = str(Path(sys.executable).with_name("precision-time"))
LARGE = ["llama3.1-405b", "--gpu", "h100-80gb-sxm", "--gpus", "16384", "--precision", "bf16-master", "--batch-size",
         "1", "--grad-accum", "16", "--layout", "tp=8,pp=16,cp=2,dp=64,vpp=2,sp=1,zero=1"]  # fmt: skip
RESNET = ["resnet50", "--gpu", "a100-80gb-sxm", "--gpus", "8", "--precision", "amp-fp16", "--batch-size", "256"]


@dataclass(frozen=True)
class Case:
    """A command line to measure, and the goal for it."""

    name: str
    command: Sequence[str]
    goal: str = ""
    group: str = "precision-time"
    prints_json: bool = True
    """Whether its last line is {"seconds": ..., "note": ...}; otherwise the whole process is timed."""


@dataclass(frozen=True)
class Result:
    name: str
    group: str
    seconds: float | None
    spread: tuple[float, float] | None
    peak_mib: float | None
    goal: str
    note: str = ""


OWN_MODEL = """
import torch
from torch import nn

def make_job(batch_size=16, seq_len=512):
    layer = nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 12, enable_nested_tensor=False), nn.Linear(768, 1000))
    return {
        "model": model,
        "inputs": torch.empty(batch_size, seq_len, 768),
        "targets": torch.empty(batch_size, seq_len, dtype=torch.long),
        "loss": lambda out, labels: nn.functional.cross_entropy(out.flatten(0, 1), labels.flatten()),
        "optimizer": "adamw",
    }
"""

NO_TORCH = """
import json, sys, time
start = time.perf_counter()
from precision_time.cli.main import main
import contextlib, io
with contextlib.redirect_stdout(io.StringIO()):
    assert main({arguments!r}) == 0
heavy = [m for m in ("torch", "torchvision", "transformers", "pandas", "scipy", "matplotlib") if m in sys.modules]
note = "imported: " + (", ".join(heavy) or "nothing heavy")
print(json.dumps({{"seconds": time.perf_counter() - start, "note": note}}))
"""

WARM = """
import json, statistics, time
from precision_time import Job, predict
job = Job({job})
predict(job)
times = []
for _ in range(200):
    start = time.perf_counter()
    predict(job)
    times.append(time.perf_counter() - start)
print(json.dumps({{"seconds": statistics.median(times)}}))
"""

DISTINCT = """
import json
from benchmarks.distinct import FIRST, MODELS, figures, measure
spent = measure(1, list(MODELS))
all_known = figures([value for name, values in spent.items() if name != FIRST for value in values])
note = f"{all_known['jobs']} jobs, P90 {all_known['p90_ms']:.1f} ms; by what differs: distinct.md"
print(json.dumps({"seconds": 1e-3 * all_known["median_ms"], "note": note}))
"""

CAPTURE = """
import json, time
import torch
from precision_time.capture.trace import trace_entry
from precision_time.zoo.catalog import ENTRIES
entry = ENTRIES["gpt2-xl"]
import precision_time.zoo.models.decoder
start = time.perf_counter()
graph = trace_entry(entry, entry.config, {**entry.input, "batch_size": 8}, "autocast", "flash")
print(json.dumps({"seconds": time.perf_counter() - start, "note": f"{len(graph.calls):,} operators"}))
"""

LOAD = """
import json, time
import numpy
start = time.perf_counter()
from precision_time.timing.constants import shipped
imported = time.perf_counter()
shipped().kernels
print(json.dumps({"seconds": time.perf_counter() - imported,
                  "note": f"imports apart: {(imported - start) * 1e3:.0f} ms after numpy's"}))
"""

MANY = """
import json, time

if __name__ == "__main__":  # a pool's workers import this file
    start = time.perf_counter()
    from precision_time import Job, compare
    from precision_time.comparison import cross
    jobs = cross(
        Job("resnet50"),
        gpu=["v100-16gb-sxm", "v100-32gb-sxm", "a100-40gb-sxm", "a100-80gb-sxm", "h100-80gb-sxm", "h200-141gb-sxm"],
        gpus=[1, 2, 4, 8, 16, 32, 64, 128, 256, 512],
        batch_size=[16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768],
        precision=["fp32", "amp-fp16", "amp-bf16", "fp16", "bf16", "fp16-master", "bf16-master", "tf32", "fp64", "fp8"],
    )[:10000]
    result = compare(jobs, workers=2)
    text = str(result)
    known = sum(row.estimate is not None for row in result.rows)
    print(json.dumps({"seconds": time.perf_counter() - start,
                      "note": f"{known:,} with an estimate, table of {text.count(chr(10)):,} lines"}))
"""

LAYOUTS = """
import itertools, json, time

def layouts():
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
    jobs = [base.replace(**each) for each in itertools.islice(layouts(), 10000)]
    result = compare(jobs, workers=2)
    estimates = [row.estimate for row in result.rows if row.estimate is not None]
    print(json.dumps({"seconds": time.perf_counter() - start,
                      "note": f"{len(jobs):,} layouts, {sum(e.memory.fits for e in estimates):,} fit in memory"}))
"""

TORCH_STEP = """
import json, time, warnings
warnings.simplefilter("ignore")
start = time.perf_counter()
import torch, torchvision
from torch._subclasses.fake_tensor import FakeTensorMode
{imports}
with FakeTensorMode(allow_non_fake_inputs=True):
    model, x, y = torchvision.models.resnet50(), torch.empty(256, 3, 224, 224), torch.zeros(256, dtype=torch.long)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with {mode}:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
print(json.dumps({{"seconds": time.perf_counter() - start, "note": {note}}}))
"""


def torch_step(imports: str, mode: str, note: str) -> list[str]:
    return [sys.executable, "-c", TORCH_STEP.format(imports=imports, mode=mode, note=note)]


def cases(folder: Path) -> list[Case]:
    """All figures; scripts that start other processes are written to `folder`."""
    files = {name: folder / name for name in ("own_model.py", "many.py", "layouts.py")}
    for path, text in zip(files.values(), (OWN_MODEL, MANY, LAYOUTS), strict=True):
        path.write_text(text, encoding="utf-8")
    python = [sys.executable, "-c"]
    compare = ["compare", *RESNET]
    compare[compare.index("amp-fp16")] = "fp32,tf32,amp-fp16,amp-bf16"
    own_model = [COMMAND, "predict", f"{files['own_model.py']}:make_job", "--gpus", "8", "--precision", "amp-bf16"]
    resnet = WARM.format(job="'resnet50', gpu='a100-80gb-sxm', gpus=8, precision='amp-fp16', batch_size=256")
    deep = WARM.format(job="'gpt2', precision='amp-bf16', gpus=8, batch_size=2, model_config={'layers': 96}")

    def shell(name: str, command: Sequence[str], goal: str = "") -> Case:
        return Case(name, command, goal, prints_json=False)

    return [
        shell("named model, cold shell", [COMMAND, "predict", *RESNET], "< 0.6 s, < 60 MB"),
        Case("what that imports", [*python, NO_TORCH.format(arguments=["predict", *RESNET])], "no torch"),
        shell("four precisions compared, cold shell", [COMMAND, *compare]),
        shell("own module (12-layer transformer), cold shell", own_model, "< 5 s"),
        shell("llama3.1-405b on 16,384 H100, cold shell", [COMMAND, "predict", *LARGE], "< 1 s"),
        Case("predict() again, warm", [*python, resnet], "< 1 ms"),
        Case("predict() of a GPT-2 with 96 layers again, warm", [*python, deep], "< 1 ms"),
        Case("another job of a known model, CPU time", [*python, DISTINCT], "< 5 ms"),
        Case("loading the kernel models", [*python, LOAD], "< 150 ms"),
        Case("capture of GPT-2 XL (imports apart)", [*python, CAPTURE], "< 3 s"),
        Case("10,000 jobs compared on two cores, with imports", [sys.executable, str(files["many.py"])], "< 10 s"),
        Case("10,000 layouts of llama3-70b on two cores", [sys.executable, str(files["layouts.py"])], "< 10 s"),
        Case(
            "torch FlopCounterMode, ResNet-50 step: FLOP only",
            torch_step(
                "from torch.utils.flop_counter import FlopCounterMode\ncounter = FlopCounterMode(display=False)",
                "counter",
                "f'{counter.get_total_flops() / 1e12:.2f} TFLOP; no time, no memory'",
            ),
            group="otherwise",
        ),
        Case(
            "torch MemTracker, ResNet-50 step: memory only",
            torch_step(
                "from torch.distributed._tools.mem_tracker import MemTracker\n"
                "TOTAL, PEAK, tracker = 'Total', 'peak', MemTracker()",
                "tracker",
                "f'{sum(v[TOTAL] for v in tracker.get_tracker_snapshot(PEAK).values()) / 2**30:.1f} GiB'",
            ),
            group="otherwise",
        ),
        Case(
            "torch RuntimeEstimator (roofline), ResNet-50 step",
            torch_step(
                "from torch.distributed._tools.runtime_estimator import RuntimeEstimator\n"
                "estimator = RuntimeEstimator()",
                "estimator(estimate_mode_type='operator-level-cost-model')",
                "f'{estimator.total_runtime:.0f} ms'",
            ),
            group="otherwise",
        ),
    ]


def run_once(command: Sequence[str]) -> tuple[int, float, float, str, str]:
    """(exit code, wall seconds, peak MiB, stdout, stderr) of a fresh process."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=out, stderr=err)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        peak = usage.ru_maxrss / (1024 if sys.platform != "darwin" else 2**20)
        return process.returncode, wall, peak, out.read().decode(), err.read().decode(errors="replace")


def measure(case: Case, repeats: int) -> Result:
    """The median over `repeats` fresh processes, after one that fills the file cache."""
    times, peaks, note = [], [], ""
    run_once(case.command)
    for _ in range(repeats):
        code, wall, peak, out, err = run_once(case.command)
        if code:
            reason = next((line for line in reversed(err.strip().splitlines()) if line.strip()), f"exit code {code}")
            return Result(case.name, case.group, None, None, None, case.goal, f"cannot run here: {reason[:160]}")
        answer = json.loads(out.splitlines()[-1]) if case.prints_json else {}
        times.append(answer.get("seconds", wall))
        peaks.append(peak)
        note = answer.get("note", "")
    spread = (min(times), max(times))
    return Result(case.name, case.group, statistics.median(times), spread, max(peaks), case.goal, note)


def table(results: Sequence[Result]) -> Table:
    rows = []
    for r in results:
        seconds = "-" if r.seconds is None else human_seconds(r.seconds)
        peak = "-" if r.peak_mib is None else f"{r.peak_mib:.0f} MiB"
        rows.append((r.name, seconds, peak, r.goal, r.note))
    return Table(["figure", "median", "peak memory", "goal", ""], rows, left=5)


def machine() -> dict[str, str]:
    """Date, processor, system and versions, as the results name them."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        cpu = f"{names[0]}, {len(names)} logical cores" if names else cpu
    versions = {p: importlib.metadata.version(p) for p in ("precision-time", "numpy", "torch")}
    return {
        "date": datetime.date.today().isoformat(),
        "cpu": cpu,
        "system": platform.system(),
        "python": platform.python_version(),
        **versions,
    }


def report(results: Sequence[Result], where: dict[str, str], repeats: int) -> str:
    versions = ", ".join(f"{k} {v}" for k, v in where.items() if k not in ("date", "cpu", "system"))
    return (
        f"{table(results).markdown()}\n\n{where['date']}, {where['cpu']}, {where['system']}; {versions}. Median of "
        f"{repeats} fresh processes each, imports included unless the row says otherwise: `python -m benchmarks.speed`."
        " torch's roofline estimator needs a CUDA device.\n"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5, help="fresh processes for each figure (default 5)")
    parser.add_argument("--only", default="", help="only figures whose name contains this; writes no file")
    parser.add_argument("--readme", type=Path, help="put the table between this file's speed markers")
    options = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for case in cases(Path(folder)):
            if options.only in case.name:
                results.append(measure(case, options.repeats))
                print(f"{results[-1].name}: {results[-1]}", file=sys.stderr)
    where = machine()
    text = report(results, where, options.repeats)
    print(text)
    if options.only:
        return 0
    RESULTS.mkdir(exist_ok=True)
    content = {"machine": where, "repeats": options.repeats, "results": [asdict(r) for r in results]}
    (RESULTS / "speed.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    (RESULTS / "speed.md").write_text(f"# Speed\n\n{text}", encoding="utf-8")
    if options.readme:
        page = options.readme.read_text(encoding="utf-8")
        options.readme.write_text(fill_markers(page, "speed", text, str(options.readme)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
