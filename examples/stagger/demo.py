"""Two real training jobs of one seed that read the same pictures from a slow server: `python examples/stagger/demo.py`.

Makes 600 JPEG files, serves them with nginx at 150 requests a second, and runs `precision-time stagger --run` on two
jobs that share a cache of files. Started together they ask for the same file at the same moment, and both read it;
started a little apart, the second finds everything in the cache. Takes about a minute and a half.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from benchmarks.rigs.local_server import LocalServer
from precision_time.cli.main import main as precision_time
from precision_time.cli.progress import Progress
from precision_time.errors import IngestError
from precision_time.ingest.storage.pictures import Recipe, make

HERE = Path(__file__).parent.absolute()
SAMPLES, REQUESTS_PER_S, PORT = 600, 150, 8950


def jobs(url: str, cache: Path) -> dict[str, object]:
    """The content of jobs.yaml (JSON is YAML)."""
    shared = {"root": url, "cache": str(cache), "workers": 1, "seed": 0}
    run = f"python:{HERE / 'train.py'}:train"
    return {
        "data": "pictures",
        "samples": SAMPLES,
        "order": "same",  # one seed
        "cache": {"reset": {"folder": str(cache)}},
        "jobs": [
            {"name": "small", "run": run, "epochs": 3, "arguments": {**shared, "width": 4}},
            {"name": "wide", "run": run, "epochs": 3, "arguments": {**shared, "width": 16}},
        ],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("out/stagger-demo"), help="where everything goes")
    folder = parser.parse_args().folder.absolute()
    try:
        with Progress("pictures") as progress:
            make(folder / "pictures", SAMPLES, Recipe(size=160), report=progress)
        # One port, since the address is part of what says whether a measurement is still good.
        with LocalServer(folder / "pictures", requests_per_s=REQUESTS_PER_S, port=PORT) as server:
            file = folder / "jobs.yaml"
            file.write_text(json.dumps(jobs(server.url, folder / "cache"), indent=1) + "\n")
            return precision_time(
                ["stagger", str(file), "--run", "--folder", str(folder / "measured"),
                 "--plot", str(folder / "stagger.png")]
            )  # fmt: skip
    except IngestError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
