"""Speed and memory of precision-time beside what one would otherwise run: `python benchmarks/speed.py`.

Every figure is the median over fresh processes (so imports count, except where it says warm), with the largest peak
memory.
Writes benchmarks/results/speed.json and speed.md; --readme FILE puts the table between that file's speed markers.
Leave the machine alone meanwhile.
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

RESULTS = Path(__file__).parent / "results"
COMMAND = str(Path(sys.executable).with_name("precision-time"))
RESNET = ["resnet50", "--gpu", "a100-80gb-sxm", "--gpus", "8", "--precision", "amp-fp16", "--batch-size", "256"]


@dataclass(frozen=True)
class Case:
    """What is measured: a command line, or a script that prints {"seconds": ...}; and the goal we hold ourselves to."""

    name: str
    command: Sequence[str]
    goal: str = ""
    group: str = "precision-time"


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
job = Job("resnet50", gpu="a100-80gb-sxm", gpus=8, precision="amp-fp16", batch_size=256)
predict(job)
times = []
for _ in range(200):
    start = time.perf_counter()
    predict(job)
    times.append(time.perf_counter() - start)
print(json.dumps({"seconds": statistics.median(times)}))
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

DEEP = """
import json, statistics, time
from precision_time import Job
from precision_time.capture.training_step import training_step
from precision_time.hardware import cluster
from precision_time.layout.data_parallel import data_parallel
from precision_time.timing import program_times as pricing
from precision_time.timing.operators import WorkOptions
step = training_step(Job("gpt2", precision="amp-bf16", batch_size=2, model_config={"layers": 96}))
program, place = data_parallel(step, 8), cluster("h100-80gb-sxm", 8)
"""

DISTINCT = """
import dataclasses, json, statistics, time
from precision_time import Job
from precision_time.capture.training_step import training_step
from precision_time.hardware import cluster
from precision_time.layout.data_parallel import data_parallel
from precision_time.layout.rank_program import OpSignatures, Segment
from precision_time.timing import program_times as pricing
from precision_time.timing.operators import WorkOptions
from precision_time.zoo.catalog import ENTRIES
found, names = {}, iter(ENTRIES)
while len(found) < 5000:
    job = Job(next(names), precision="amp-bf16")
    found.update(dict.fromkeys(training_step(job).graph.kinds))
step = training_step(job)
empty = Segment.of([])
program = dataclasses.replace(
    data_parallel(step, 8), kinds=OpSignatures(list(found)[:5000]),
    micro=Segment.of([(i, 0, 0, 0) for i in range(5000)]),
    tail=empty, accumulate=empty, bucket_copies=empty,
)
place = cluster("h100-80gb-sxm", 8)
"""

PRICE = """
def median(*forgotten):
    times = []
    for _ in range({repeats} + 1):
        for cache in forgotten:
            cache.cache_clear()
        start = time.perf_counter()
        pricing.time_program(program, place, WorkOptions())
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])
note = f"{{len(program.micro) + len(program.tail):,}} operators, {{len(program.kinds):,}} of them different"
print(json.dumps({{"seconds": median({forgotten}), "note": note}}))
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
result = compare(jobs)
text = str(result)
known = sum(row.estimate is not None for row in result.rows)
print(json.dumps({"seconds": time.perf_counter() - start,
                  "note": f"{len(jobs):,} jobs, {known:,} with an estimate, table of {text.count(chr(10)):,} lines"}))
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


def pricing(graph: str, forgotten: str, repeats: int = 100) -> list[str]:
    """A script that prices the program of `graph` again and again, each time without what these caches remembered."""
    return [sys.executable, "-c", graph + PRICE.format(forgotten=forgotten, repeats=repeats)]


def torch_step(imports: str, mode: str, note: str) -> list[str]:
    return [sys.executable, "-c", TORCH_STEP.format(imports=imports, mode=mode, note=note)]


def cases(folder: Path) -> list[Case]:
    own = folder / "own_model.py"
    own.write_text(OWN_MODEL, encoding="utf-8")
    python = [sys.executable, "-c"]
    compare = ["compare", *RESNET]
    compare[compare.index("amp-fp16")] = "fp32,tf32,amp-fp16,amp-bf16"
    return [
        Case("named model, cold shell", [COMMAND, "predict", *RESNET], "< 1 s, < 250 MB"),
        Case("what that imports", [*python, NO_TORCH.format(arguments=["predict", *RESNET])], "no torch"),
        Case("four precisions compared, cold shell", [COMMAND, *compare]),
        Case("own module (12-layer transformer), cold shell",
             [COMMAND, "predict", f"{own}:make_job", "--gpus", "8", "--precision", "amp-bf16"], "< 5 s"),
        Case("predict() again, warm", [*python, WARM], "< 2 ms"),
        Case("5,000 operators timed, warm", pricing(DEEP, "pricing.kind_works, pricing._kernel_times"), "< 10 ms"),
        Case("5,000 operators timed again, all remembered", pricing(DEEP, "")),
        Case("5,000 different operators timed, their work known", pricing(DISTINCT, "pricing._kernel_times"),
             "< 10 ms"),
        Case("5,000 different operators timed, their work too",
             pricing(DISTINCT, "pricing.kind_works, pricing._kernel_times", 5)),
        Case("loading the kernel models", [*python, LOAD], "< 150 ms"),
        Case("capture of GPT-2 XL (imports apart)", [*python, CAPTURE], "< 3 s"),
        Case("10,000 jobs compared, with imports", [*python, MANY], "< 10 s"),
        Case("torch FlopCounterMode, ResNet-50 step: FLOP only",
             torch_step("from torch.utils.flop_counter import FlopCounterMode\n"
                        "counter = FlopCounterMode(display=False)",
                        "counter", "f'{counter.get_total_flops() / 1e12:.2f} TFLOP; no time, no memory'"),
             group="otherwise"),
        Case("torch MemTracker, ResNet-50 step: memory only",
             torch_step("from torch.distributed._tools.mem_tracker import MemTracker\n"
                        "TOTAL, PEAK, tracker = 'Total', 'peak', MemTracker()", "tracker",
                        "f'{sum(v[TOTAL] for v in tracker.get_tracker_snapshot(PEAK).values()) / 2**30:.1f} GiB'"),
             group="otherwise"),
        Case("torch RuntimeEstimator (roofline), ResNet-50 step",
             torch_step("from torch.distributed._tools.runtime_estimator import RuntimeEstimator\n"
                        "estimator = RuntimeEstimator()",
                        "estimator(estimate_mode_type='operator-level-cost-model')",
                        "f'{estimator.total_runtime:.0f} ms'"),
             group="otherwise"),
    ]  # fmt: skip


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
    """The median of fresh processes; the script's own seconds where it prints them."""
    times, peaks, note = [], [], ""
    run_once(case.command)  # fills the file cache and writes the bytecode
    for _ in range(repeats):
        code, wall, peak, out, err = run_once(case.command)
        if code:
            why = next((line for line in reversed(err.strip().splitlines()) if line.strip()), f"exit code {code}")
            return Result(case.name, case.group, None, None, None, case.goal, f"cannot run here: {why[:160]}")
        said = json.loads(out.splitlines()[-1]) if "-c" in case.command else {}
        times.append(said.get("seconds", wall))
        peaks.append(peak)
        note = said.get("note", "")
    spread = (min(times), max(times))
    return Result(case.name, case.group, statistics.median(times), spread, max(peaks), case.goal, note)


def human(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds < 0.1 else f"{seconds:.2f} s"


def table(results: Sequence[Result]) -> str:
    lines = ["| what | median | peak memory | goal | |", "|---|---|---|---|---|"]
    for r in results:
        cells = ("-", "-") if r.seconds is None or r.peak_mib is None else (human(r.seconds), f"{r.peak_mib:.0f} MiB")
        lines.append(f"| {r.name} | {cells[0]} | {cells[1]} | {r.goal} | {r.note} |")
    return "\n".join(lines)


def machine() -> dict[str, str]:
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
    said = ", ".join(f"{k} {v}" for k, v in where.items() if k not in ("date", "cpu", "system"))
    return (
        f"{table(results)}\n\n{where['date']}, {where['cpu']}, {where['system']}; {said}. Median of {repeats} fresh "
        "processes each, imports included except where it says otherwise: `python benchmarks/speed.py`. Calculon and "
        "SimuMax, the other open predictors, cover only Megatron-style transformers and are run from a checkout, "
        "not installed; torch's roofline estimator asks for a CUDA device.\n"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5, help="fresh processes for each figure (default 5)")
    parser.add_argument("--only", default="", help="only figures whose name contains this; writes no file")
    parser.add_argument("--readme", type=Path, help="put the table between this file's speed markers")
    given = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for case in cases(Path(folder)):
            if given.only in case.name:
                results.append(measure(case, given.repeats))
                print(f"{results[-1].name}: {results[-1]}", file=sys.stderr)
    where = machine()
    text = report(results, where, given.repeats)
    print(text)
    if given.only:
        return 0
    RESULTS.mkdir(exist_ok=True)
    content = {"machine": where, "repeats": given.repeats, "results": [asdict(r) for r in results]}
    (RESULTS / "speed.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    (RESULTS / "speed.md").write_text(f"# Speed\n\n{text}", encoding="utf-8")
    if given.readme:
        begin, end = "<!-- speed:begin -->", "<!-- speed:end -->"
        page = given.readme.read_text(encoding="utf-8")
        head, rest = page.split(begin, 1)
        given.readme.write_text(f"{head}{begin}\n{text}{end}{rest.split(end, 1)[1]}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
