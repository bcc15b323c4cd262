"""The server under load: `python -m benchmarks.serve_load`. It needs wrk (Debian's package).

Starts `precision-time serve` with a fresh SQLite database on this machine, and drives it by wrk over loopback with
bodies from a file, each a prediction that is kept:

    warm      20 jobs, again and again
    distinct  every job once: batch sizes, lengths and counts of a cluster's ten models
    mixed     every job once, over all models, GPUs, precisions and layouts (`soak.jobs`)
    memory    many distinct jobs, with the resident memory of the server and of its workers over their number

Writes benchmarks/results/serve_load.json and serve_load.md, with the load of the machine beside every figure.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import itertools
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.soak import jobs

RESULTS = Path(__file__).parent / "results"
CONNECTIONS = 16
SCRIPT = """
local lines = {}
local path = os.getenv("BODIES")
local again = os.getenv("AGAIN") == "1"
local file = io.open(path, "r")
local n = 0
wrk.method = "POST"
wrk.path = "/v1/predict"
wrk.headers["Content-Type"] = "application/json"
request = function()
  local line
  if again then
    if n < 20 then lines[n] = file:read("*l") end
    line = lines[n % 20]
    n = n + 1
  else
    line = file:read("*l")
    if line == nil then
      io.open(path .. ".ended", "w"):close()
      wrk.thread:stop()
      return wrk.format(nil, nil, nil, "{}")
    end
  end
  return wrk.format(nil, nil, nil, line)
end
done = function(summary, latency, requests)
  io.write(string.format("RESULT %d %d %d %d %f %f %f\\n", summary.requests, summary.duration, summary.errors.status,
    summary.errors.connect + summary.errors.read + summary.errors.write + summary.errors.timeout,
    latency:percentile(50), latency:percentile(90), latency:percentile(99)))
end
"""
"""Lua of wrk: bodies of a file, the first 20 again and again or each once; prints what it counted."""

_CLUSTER = (
    "resnet50", "bert-large", "gpt2-xl", "llama3.1-8b", "bert-base", "t5-large", "unet3d", "resnet101",
    "ssd300-resnet50", "efficientnet-b4",
)  # fmt: skip
"""A cluster's ten models."""


def of_a_cluster(count: int, first_steps: int = 1000) -> Iterator[dict[str, Any]]:
    """Distinct jobs as one team launches them: its models, in several sizes, counts and lengths."""
    for number in range(count):
        yield {
            "model": _CLUSTER[number % len(_CLUSTER)],
            "gpu": "a100-80gb-sxm",
            "precision": ("amp-bf16", "tf32")[number // 1000 % 2],
            "batch_size": 1 + number // len(_CLUSTER) % 100,
            "gpus": (1, 4, 8, 16)[number // 7 % 4],
            "run": {"steps": first_steps + number},
        }


def over_everything(count: int) -> Iterator[dict[str, Any]]:
    """Distinct jobs over all models; some of the same model and sizes."""
    return (job.to_dict() for job in itertools.islice(jobs(24), count))


@contextlib.contextmanager
def server(folder: Path, workers: int) -> Iterator[tuple[str, int]]:
    """A server process: its address and its id."""
    log = folder / "server.log"
    command = [sys.executable, "-m", "precision_time", "serve", "--port", "0", "--workers", str(workers), "--quiet"]
    paths = ["--database", str(folder / "store.db"), "--tokens", str(folder / "none.json")]
    with log.open("wb") as stream:
        process = subprocess.Popen([*command, *paths], stdout=stream, stderr=stream)
    try:
        while not (found := re.search(r'"address": "([^"]+)"', log.read_text())):
            if process.poll() is not None:
                raise SystemExit(f"the server did not start: {log.read_text()}")
            time.sleep(0.05)
        yield found[1], process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def driven(url: str, process: int, bodies: Path, seconds: float, again: bool = False) -> dict[str, Any]:
    """What wrk counts in so many seconds, or until the bodies end, and the processor time of a request."""
    before = processor_s(process)
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(SCRIPT)
        script.flush()
        load = os.getloadavg()[0]
        command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds:.0f}s", "--timeout", "30s", "-s", script.name, url]
        environment = {**os.environ, "BODIES": str(bodies), "AGAIN": "1" if again else "0"}
        printed = _until_ended(command, environment, Path(f"{bodies}.ended"))
    found = re.search(r"RESULT (.*)", printed)
    if found is None:
        raise SystemExit(f"wrk printed no result: {printed}")
    requests, duration, refused, broken, p50, p90, p99 = map(float, found[1].split())
    mine, workers = (1e3 * (new - old) / requests for new, old in zip(processor_s(process), before, strict=True))
    return {
        "server_ms": mine,
        "workers_ms": workers,
        "requests": int(requests),
        "per_s": requests / (duration / 1e6),
        "refused": int(refused),
        "broken": int(broken),
        "p50_ms": p50 / 1e3,
        "p90_ms": p90 / 1e3,
        "p99_ms": p99 / 1e3,
        "load_before": load,
        "load_after": os.getloadavg()[0],
    }


def _until_ended(command: list[str], environment: dict[str, str], ended: Path) -> str:
    """What wrk prints; it is interrupted where its bodies end before its time, since it does not stop by itself."""
    ended.unlink(missing_ok=True)
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as ran:
        while ran.poll() is None and not ended.exists():
            time.sleep(0.05)
        if ran.poll() is None:
            ran.send_signal(signal.SIGINT)
        return ran.communicate()[0]


def written(folder: Path, name: str, found: Iterator[dict[str, Any]]) -> Path:
    """A file with a body on each line."""
    path = folder / f"{name}.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for job in found:
            file.write(json.dumps({"job": job}) + "\n")
    return path


def memory_mib(process: int) -> tuple[float, float]:
    """Resident MiB of the server, and of its workers together."""
    return _resident(process), sum(map(_resident, _children(process)))


def processor_s(process: int) -> tuple[float, float]:
    """Seconds of processor time of the server so far, and of its workers together."""
    return _spent(process), sum(map(_spent, _children(process)))


def _children(process: int) -> list[int]:
    text = Path(f"/proc/{process}/task/{process}/children").read_text(encoding="ascii")
    return [int(child) for child in text.split()]


def _spent(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident(process: int) -> float:
    with contextlib.suppress(OSError):
        pages = int(Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    return 0.0


def answered(url: str) -> int:
    """Predictions that the server has answered."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as reply:
        text = reply.read().decode()
    found = re.search(r'precision_time_predictions_total\{route="predict"\} (\d+)', text)
    return int(found[1]) if found else 0


def watched(url: str, process: int, bodies: Path, count: int) -> dict[str, Any]:
    """Memory while `count` distinct jobs are asked."""
    points: list[dict[str, float]] = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(2.0):
            mine, workers = memory_mib(process)
            points.append({"answered": answered(url), "server_mib": mine, "workers_mib": workers})

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        found = driven(url, process, bodies, 36_000)
    finally:
        ended.set()
        watching.join()
    return {**found, "count": count, "points": points}


def document(workers: int, seconds: float, count: int) -> dict[str, Any]:
    """What serve_load.json holds."""
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        plenty = int(seconds * 3000)
        files = {
            "warm": written(folder, "warm", itertools.islice(of_a_cluster(60), 40, 60)),
            "distinct": written(folder, "distinct", of_a_cluster(plenty)),
            "mixed": written(folder, "mixed", over_everything(int(seconds * 500))),
        }
        before = written(folder, "before", of_a_cluster(600, 10**7))
        found: dict[str, Any] = {}
        for name, path in files.items():
            part = folder / f"server-{name}"
            part.mkdir()
            with server(part, workers) as (url, process):
                driven(url, process, before, 600)  # models are loaded
                found[name] = driven(url, process, path, seconds, again=name == "warm")
            print(name, json.dumps(found[name]), file=sys.stderr)
        if count:
            part = folder / "server-memory"
            part.mkdir()
            path = written(folder, "memory", of_a_cluster(count))
            with server(part, workers) as (url, process):
                found["memory"] = watched(url, process, path, count)
    return {
        **found,
        "workers": workers,
        "seconds": seconds,
        "cores": os.cpu_count(),
        "machine": f"{platform.machine()}, {platform.system()}, Python {platform.python_version()}",
        "versions": {name: version(name) for name in ("starlette", "uvicorn", "httptools", "uvloop")},
        "date": datetime.date.today().isoformat(),
    }


_HEADS = (
    "", "requests", "per second", "P50 ms", "P90 ms", "P99 ms", "refused", "server ms", "workers ms",
    "load before and after",
)  # fmt: skip
_NAMES = {
    "warm": "20 jobs, again and again",
    "distinct": "distinct jobs of ten models",
    "mixed": "distinct jobs over all models, GPUs and layouts",
    "memory": "distinct jobs of ten models, to the end",
}


def page(content: dict[str, Any]) -> str:
    """serve_load.md."""
    rows = []
    for name, title in _NAMES.items():
        if name in content:
            each = content[name]
            cells = (
                title, f"{each['requests']:,}", f"{each['per_s']:,.0f}", *(f"{each[p]:.1f}" for p in _PERCENTILES),
                f"{each['refused']:,}", f"{each['server_ms']:.2f}", f"{each['workers_ms']:.2f}",
                f"{each['load_before']:.1f}, {each['load_after']:.1f}",
            )  # fmt: skip
            rows.append(f"| {' | '.join(cells)} |")
    table = "\n".join((f"| {' | '.join(_HEADS)} |", "| --- |" + " ---: |" * (len(_HEADS) - 1), *rows))
    memory = ""
    if "memory" in content:
        memory = f"\n## Memory\n\n{_memory(content['memory']['points'])}\n"
    return f"""# The server under load

`precision-time serve` with {content["workers"]} workers and SQLite, driven by wrk with {CONNECTIONS} connections from
the same {content["cores"]} cores. Every answer is a prediction that is kept (synced to disk) before it is sent; equal
requests share one. Refused: jobs that cannot be (a precision that the GPU lacks). Server and workers: milliseconds of
processor time of a request, which other programs on the machine change less than its time by the clock.

{table}
{memory}
{content["date"]}, {content["machine"]}, {", ".join(f"{name} {each}" for name, each in content["versions"].items())}:
`python -m benchmarks.serve_load`. Load: processes that ran or waited to run in the last minute, these included.
"""


_PERCENTILES = ("p50_ms", "p90_ms", "p99_ms")


def _memory(points: list[dict[str, float]]) -> str:
    """Ten points of the run, as a table."""
    chosen = points[:: max(1, len(points) // 10)] + points[-1:]
    lines = ["| predictions answered | server MiB | workers MiB |", "| ---: | ---: | ---: |"]
    lines += [f"| {p['answered']:,.0f} | {p['server_mib']:.0f} | {p['workers_mib']:.0f} |" for p in chosen]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--count", type=int, default=200_000, help="distinct jobs of the memory run; 0: none")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    content = document(options.workers, options.seconds, options.count)
    options.output.mkdir(exist_ok=True)
    (options.output / "serve_load.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    (options.output / "serve_load.md").write_text(page(content), encoding="utf-8")


if __name__ == "__main__":
    main()
