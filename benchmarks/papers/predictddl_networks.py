"""Trace the network of every published data-parallel step into data/traced/networks.npz (resumable, progress).

    python -m benchmarks.papers.predictddl_networks [--data FOLDER]

The steps are those of `all_published`, which leaves out rows of networks that are others today.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys

from precision_time.errors import PrecisionTimeError
from precision_time.measurements.repository import data_folder
from precision_time.predictors.predictddl.facts import traced_network
from precision_time.predictors.predictddl.traced import (
    TABLE,
    TracedNetwork,
    data_parallel,
    job_of,
    key_of,
    read_table,
    write_table,
)
from precision_time.predictors.published import all_published

_SAVE_EVERY = 25


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", help="the repository's data folder")
    data = data_folder(parser.parse_args(arguments).data)
    if data is None:
        parser.error("no data folder; name it with --data")
    rows = {key_of(each.job): each for each in data_parallel(all_published(data))}
    path = data / TABLE
    known = read_table(path) if path.is_file() else {}
    networks: dict[str, TracedNetwork] = {key: known[key] for key in rows if key in known}
    for done, (key, row) in enumerate(rows.items(), 1):
        if key in networks:
            continue
        try:
            networks[key] = dataclasses.replace(traced_network(job_of(key)), family=row.family)
        except PrecisionTimeError as error:
            print(f"\n{row.id}: {error}", file=sys.stderr)
        print(f"\r{done}/{len(rows)} networks", end="", file=sys.stderr, flush=True)
        if done % _SAVE_EVERY == 0:
            write_table(path, networks)
    write_table(path, networks)
    print(f"\n{len(networks)} networks -> {path}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
