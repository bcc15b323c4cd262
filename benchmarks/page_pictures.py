"""Pictures of the server's page for the docs: `python -m benchmarks.page_pictures` writes docs/images/page*.png.

Starts a server with a store of its own and Debian's chromium, records outcomes of a made-up cluster that runs 12 %
slower than predicted with one broken node, and takes each view at 1280 or 360 pixels. With --all FOLDER: every view at
both widths, light and dark, to look at.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

IMAGES = Path(__file__).parents[1] / "docs" / "images"
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
JOB = {"model": "resnet50", "gpu": "a100-80gb-sxm", "gpus": 8, "precision": "amp-bf16", "batch_size": 256}
RUN = {**JOB, "run.epochs": 90, "run.price": "aws"}
CLUSTER, SLOWER, OUTCOMES, BROKEN = "lab", 1.12, 60, 52
_KINDS = (("resnet50", 256, "amp-fp16"), ("resnet50", 128, "amp-bf16"), ("bert-large", 32, "amp-bf16"),
          ("gpt2-xl", 4, "amp-bf16"), ("efficientnet-b0", 128, "amp-fp16"), ("vit-b-16", 64, "amp-bf16"))  # fmt: skip


@dataclass(frozen=True, slots=True)
class View:
    """An address, what shows that its answer is there, and how high its picture is (0: the whole page)."""

    name: str
    state: Mapping[str, object]
    there: str
    height: int = 0


VIEWS = (
    View("predict", RUN, ".prediction:not(.waiting) .time-limit pre", 860),
    View("compare", {**RUN, "compare.gpus": "h100-80gb-sxm,v100-32gb-sxm"}, ".comparison:not(.waiting) table", 1000),
    View(
        "plan",
        {**RUN, "plan.deadline_hours": 12, "plan.budget_usd": 300, "plan.gpus": "8..32", "plan.providers": "aws,gcp"},
        ".chart canvas",
        1340,
    ),
    View("jobs", {"cluster": CLUSTER}, ".jobs tbody tr", 900),
    View("accuracy", {"cluster": CLUSTER}, ".board table", 900),
)
KEPT: Sequence[tuple[str, int, str, str]] = (
    ("predict", 1280, "light", "page"),
    ("plan", 1280, "dark", "page-plan"),
    ("accuracy", 1280, "light", "page-accuracy"),
)
"""View, width, scheme and name of the pictures in docs/images."""


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The address of a server whose files are in `folder`."""
    command = [sys.executable, "-m", "precision_time", "serve", "--port", "0", "--workers", "1", "--quiet"]
    files = ["--database", str(folder / "store.sqlite"), "--tokens", str(folder / "tokens.json")]
    process = subprocess.Popen([*command, *files], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if line.startswith("{") and (event := json.loads(line))["event"] == "listening":
                yield str(event["address"])
                return
        raise SystemExit("the server ended")
    finally:
        process.terminate()
        process.wait()


def ask(url: str, content: object = None) -> Any:
    """The reply to a GET, or to a POST of JSON."""
    body = None if content is None else json.dumps(content).encode()
    with urllib.request.urlopen(urllib.request.Request(url, body, {"Content-Type": "application/json"})) as reply:
        return json.load(reply)


def record(address: str) -> None:
    """Outcomes of the made-up cluster."""
    draw = random.Random(2)
    for number in range(OUTCOMES):
        model, batch, precision = draw.choice(_KINDS)
        gpu, gpus = draw.choice(("a100-80gb-sxm", "h100-80gb-sxm")), draw.choice((4, 8, 16))
        job = {
            "model": model,
            "precision": precision,
            "gpu": gpu,
            "gpus": gpus,
            "batch_size": batch,
            "run": {"epochs": 2},
        }
        made = ask(f"{address}/v1/predict", {"job": job, "cluster": CLUSTER, "key": f"run-{number}"})
        predicted = ask(f"{address}/v1/predictions/{made['id']}")["prediction"]["predicted"][1]
        host, factor = ("node17", 1.4) if number == BROKEN else (f"node{draw.randint(1, 9)}", 1.0)
        step_s = predicted * SLOWER * factor * draw.lognormvariate(0, 0.05)
        outcome = {"key": f"run-{number}", "step_s": step_s, "finished": True, "machine": {"host": host}}
        ask(f"{address}/v1/predictions/{made['id']}/outcomes", outcome)


def picture(browser: Any, address: str, view: View, width: int, scheme: str) -> bytes:
    """A PNG of a view."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    page.goto(f"{address}/#/{view.name}?{urlencode(view.state)}")
    page.wait_for_selector(view.there)
    page.wait_for_timeout(400)  # charts and transitions
    clip = {"x": 0, "y": 0, "width": width, "height": view.height} if width > 1000 and view.height else None
    found: bytes = page.screenshot(full_page=True, clip=clip)
    context.close()
    return found


def smaller(png: bytes) -> bytes:
    """The picture in 128 colours, which is enough for a page."""
    import io

    from PIL import Image

    out = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(out, "PNG", optimize=True)
    return out.getvalue()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", type=Path, metavar="FOLDER", help="every view, into this folder")
    folder = parser.parse_args().all
    from playwright.sync_api import sync_playwright

    by_name = {view.name: view for view in VIEWS}
    chosen = KEPT
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        every = [(view.name, width, scheme) for view in VIEWS for width in (1280, 360) for scheme in ("light", "dark")]
        chosen = tuple((name, width, scheme, f"{name}-{width}-{scheme}") for name, width, scheme in every)
    with tempfile.TemporaryDirectory() as files, serving(Path(files)) as address, sync_playwright() as playwright:
        record(address)
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=list(FLAGS))
        for name, width, scheme, file in chosen:
            target = (folder or IMAGES) / f"{file}.png"
            target.write_bytes(smaller(picture(browser, address, by_name[name], width, scheme)))
            print(f"{target}: {target.stat().st_size / 1e3:.0f} kB", flush=True)
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
