"""A server with a store of its own, three jobs, one outcome, and what came back: `python examples/serve/demo.py`.

Starts `precision-time serve` on a free port of this machine, posts three jobs, records how the first one went, asks for
a time limit, prints the address of the page, and stops the server. With --stay the server runs until Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
from precision_time.units import human_bytes, human_seconds

JOBS: tuple[dict[str, Any], ...] = (
    {"model": "resnet50", "gpu": "a100-80gb-sxm", "gpus": 8, "precision": "amp-fp16", "batch_size": 256,
     "run": {"epochs": 90, "price": "aws"}},
    {"model": "bert-large", "gpu": "a100-80gb-sxm", "gpus": 8, "precision": "amp-bf16", "batch_size": 32,
     "run": {"steps": 10_000, "price": "aws"}},
    {"model": "llama3-8b", "gpu": "h100-80gb-sxm", "gpus": 16, "precision": "bf16-master", "layout": "fsdp",
     "run": {"steps": 1_000, "price": "aws"}},
)  # fmt: skip
SLOWER = 1.06
"""Measured over predicted step time of the outcome."""


@contextlib.contextmanager
def server(folder: Path) -> Iterator[str]:
    """The address of a server that keeps everything in `folder`; stopped at the end."""
    command = [sys.executable, "-m", "precision_time", "serve", "--port", "0", "--workers", "1", "--quiet"]
    files = ["--database", str(folder / "store.sqlite"), "--tokens", str(folder / "tokens.json")]
    log = folder / "log"
    with log.open("w") as out:
        process = subprocess.Popen([*command, *files], stdout=out, stderr=out)
    try:
        yield _address(process, log)
    finally:
        process.terminate()
        process.wait()


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    """What the server's log says once it answers. Raises SystemExit where the server ended."""
    while process.poll() is None:
        for line in log.read_text().splitlines(keepends=True):
            if line.startswith("{") and line.endswith("\n") and (event := json.loads(line))["event"] == "listening":
                return str(event["address"])
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.05)
    raise SystemExit(f"demo: the server ended: {log.read_text().strip()}")


def post(url: str, content: dict[str, Any]) -> dict[str, Any]:
    """The reply to a POST of JSON."""
    body = json.dumps(content).encode()
    with urllib.request.urlopen(urllib.request.Request(url, body, {"Content-Type": "application/json"})) as reply:
        found: dict[str, Any] = json.load(reply)
    return found


def walk(address: str) -> None:
    """Post the jobs and the outcome, and print what came back."""
    print(f"page: {address}/")
    made = [post(f"{address}/v1/predict", {"job": job}) for job in JOBS]
    for job, answer in zip(JOBS, made, strict=True):
        estimate = answer["estimate"]
        print(
            f"{answer['id']}  {job['model']}, {job['precision']}, {job['gpus']} x {job['gpu']}: "
            f"step {human_seconds(estimate['step']['p50'])}, run {human_seconds(estimate['run']['p50'])}, "
            f"${estimate['cost_usd']['p50']:,.2f}, {human_bytes(estimate['memory']['peak_bytes'])} of a GPU"
        )
    step_s = SLOWER * made[0]["estimate"]["step"]["p50"]
    outcome = {"key": "demo", "step_s": step_s, "finished": True, "machine": {"host": "node1"}}
    kept = post(f"{address}/v1/predictions/{made[0]['id']}/outcomes", outcome)
    print(f"outcome of {made[0]['id']}: step {human_seconds(step_s)}, {'kept' if kept['new'] else 'there already'}")
    again = post(f"{address}/v1/predict", {"job": JOBS[0], "keep": False})
    print(f"the same job now: step {human_seconds(again['estimate']['step']['p50'])}")
    limit = post(f"{address}/v1/walltime", {"job": JOBS[0], "keep": False, "format": "slurm"})
    print(f"time limit: {limit['text'].strip()}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stay", action="store_true", help="leave the server up until Ctrl-C")
    stay = parser.parse_args().stay
    with tempfile.TemporaryDirectory() as folder, server(Path(folder)) as address:
        walk(address)
        if stay:
            with contextlib.suppress(KeyboardInterrupt):
                signal.signal(signal.SIGTERM, signal.default_int_handler)
                print("Ctrl-C stops the server", flush=True)
                threading.Event().wait()
    print("stopped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
