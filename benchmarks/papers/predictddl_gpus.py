"""PredictDDL on published GPU steps, held out by network and by family, with and without the graph vector.

    python -m benchmarks.papers.predictddl_gpus

writes benchmarks/results/predictddl.json and .md, and fills docs/predictddl.md, in ten minutes of one core.
Every variant has the same rows, folds, inner folds and regressors; only its columns differ. The regressor is chosen on
the training part of each fold. A network is held out under all its names (`network_groups`), a family with all networks
that it shares with another, a GPU type in all its networks. Judging goes on from out/predictddl_gpus.json where it was
stopped; delete that file after a change of the code.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from precision_time.measurements.repository import required_data_folder
from precision_time.predictors.interface import Z90
from precision_time.predictors.predictddl.encoder import WEIGHTS
from precision_time.predictors.predictddl.features import CLUSTER, GRAPH, GROUPS, PRECISION, RUN, SIZE
from precision_time.predictors.predictddl.identity import joined
from precision_time.predictors.predictddl.predictor import embedder_of
from precision_time.predictors.predictddl.selection import grouped_folds
from precision_time.predictors.predictddl.traced import key_of, known_networks, published_steps
from precision_time.predictors.predictddl.trainer import Design, Table, Trained, described, in_known_frameworks, train
from precision_time.report.page import fill_markers
from precision_time.report.write import write_whole

DATASET = "imagenet"
"""The only type of data with enough networks among the published steps."""
FOLDS, SEEDS = 5, 5
WITH, WITHOUT, RANDOM = "graph vector", "no graph vector", "random encoder"
_PAPER = (GRAPH, SIZE, CLUSTER, RUN, PRECISION)
_NO_GRAPH = tuple(group for group in GROUPS if group != GRAPH)
VARIANTS: Mapping[str, Design] = {
    WITH: Design(),
    WITHOUT: Design(groups=_NO_GRAPH, encoder="random"),
    RANDOM: Design(encoder="random"),
    "published columns": Design(groups=_PAPER, law=False),
    "published columns, no graph vector": Design(groups=_PAPER[1:], law=False, encoder="random"),
}
"""The shipped design and its ablations; then the columns of the paper (and precision) without law of work.

Where the graph vector is no column, the encoder only decides which networks are flagged as unlike.
"""
BY = {"network": tuple(VARIANTS), "family": (WITH, WITHOUT, RANDOM), "gpu": (WITH, WITHOUT)}
"""What is held out -> the variants that are judged so."""
FIGURES = ("mean", "median", "p90", "signed", "coverage")
RESULTS = Path("benchmarks/results/predictddl.json")
CHECKPOINT = Path("out/predictddl_gpus.json")
COMMAND = "python -m benchmarks.papers.predictddl_gpus"


def table_of(data: Path, encoder: str) -> Table:
    """The published steps of `DATASET` with the vectors of an encoder."""
    rows = [row for row in described(published_steps(data)) if row.facts.dataset == DATASET]
    return Table.of(in_known_frameworks(rows), embedder_of(encoder))


def groups_of(table: Table, by: str) -> list[str]:
    """What is held out together: the network of each row, its GPU, or its family and those that share networks."""
    if by == "network":
        return list(table.networks)
    if by == "gpu":
        return [row.facts.gpu for row in table.rows]
    known = known_networks()
    families = [known[key_of(row.measured.job)].family for row in table.rows]
    return joined(zip(families, table.networks, strict=True))


def judged(table: Table, design: Design, by: str, seed: int) -> dict[str, Any]:
    """Errors of every row by a predictor that was trained without its group."""
    groups = groups_of(table, by)
    errors = np.zeros(len(groups))
    inside, strange = np.zeros(len(groups), dtype=bool), np.zeros(len(groups), dtype=bool)
    chosen: Counter[str] = Counter()
    for known, unseen in grouped_folds(groups, FOLDS, seed):
        trained = train(table.only(known.tolist()), DATASET, dataclasses.replace(design, seed=seed))
        log_error, spread, strange[unseen] = _held_out(trained, table.only(unseen.tolist()))
        errors[unseen] = np.expm1(log_error)
        inside[unseen] = np.abs(log_error) <= Z90 * spread
        chosen[trained.fitted.setting.label] += 1
    timm = np.array([row.measured.job.model.startswith("timm:") for row in table.rows])
    several = np.array([row.facts.ranks > 1 for row in table.rows])
    nhwc = np.array([row.facts.job.memory_format == "nhwc" for row in table.rows])
    parts = {"timm": timm, "timm in NHWC": timm & nhwc, "other": ~timm, "several GPUs": several, "flagged": strange}
    parts["all"] = np.ones(len(timm), dtype=bool)
    return {
        "chosen": dict(chosen),
        **{name: _figures(errors[mine], inside[mine]) for name, mine in parts.items() if mine.any()},
    }


def _figures(errors: Any, inside: Any) -> dict[str, float]:
    return {
        "rows": len(errors),
        "mean": float(np.abs(errors).mean()),
        "median": float(np.median(np.abs(errors))),
        "p90": float(np.quantile(np.abs(errors), 0.9)),
        "signed": float(np.median(errors)),
        "coverage": float(inside.mean()),
    }


def _held_out(trained: Trained, table: Table) -> tuple[Any, Any, Any]:
    """log(predicted / measured) of each row, the spread of its forecast, and whether its network is flagged."""
    _, x = table.of_groups(trained.groups)
    log_seconds = trained.log_seconds(x, table.work)
    spread = [
        trained.spread(row.facts, vector, at) for row, vector, at in zip(table.rows, table.vectors, x, strict=True)
    ]
    strange = np.array([trained.likeness.is_strange(vector) for vector in table.vectors])
    return log_seconds - np.log(table.seconds), np.array(spread), strange


def judge(data: Path, seeds: int, checkpoint: Path) -> dict[str, Any]:
    """All variants, both ways of holding out, all seeds; results that the checkpoint has are taken from there."""
    found: dict[str, Any] = json.loads(checkpoint.read_text()) if checkpoint.is_file() else {}
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    tables = cache(lambda encoder: table_of(data, encoder))
    plan = [(by, seed, name) for seed in range(seeds) for by, names in BY.items() for name in names]
    for done, (by, seed, name) in enumerate(plan, 1):
        key = f"{by}|{seed}|{name}"
        if key not in found:
            found[key] = judged(tables(VARIANTS[name].encoder), VARIANTS[name], by, seed)
            write_whole(checkpoint, json.dumps(found, indent=1))
        print(f"\r{done}/{len(plan)} {key:60s}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    table = tables("pretrained")
    return {
        "command": COMMAND,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "rows": len(table.rows),
        "networks": len(set(table.networks)),
        "families": len(set(groups_of(table, "family"))),
        "gpus": len(set(groups_of(table, "gpu"))),
        "folds": FOLDS,
        "seeds": seeds,
        "encoder": _provenance(),
        "variants": {
            by: {name: _over_seeds([found[f"{by}|{seed}|{name}"] for seed in range(seeds)]) for name in names}
            for by, names in BY.items()
        },
        "gain": {
            by: {
                over: {
                    part: {figure: gain(found, by, over, part, figure, seeds) for figure in ("mean", "median")}
                    for part in ("timm", "other")
                }
                for over in (WITHOUT, RANDOM)
                if over in names
            }
            for by, names in BY.items()
        },
    }


def _provenance() -> dict[str, Any]:
    with np.load(WEIGHTS, allow_pickle=False) as stored:
        known: dict[str, Any] = json.loads(str(stored["provenance"]))
        return known


def _over_seeds(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of each part and figure the mean, lowest and highest over seeds, and that of the first; the regressors chosen."""
    chosen = sum((Counter(run["chosen"]) for run in runs), Counter())
    parts = [name for name in runs[0] if name != "chosen" and all(name in run for run in runs)]
    return {"chosen": dict(chosen.most_common())} | {
        part: {"rows": float(np.mean([run[part]["rows"] for run in runs]))}
        | {figure: _spread([run[part][figure] for run in runs]) for figure in FIGURES}
        for part in parts
    }


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"mean": float(np.mean(values)), "low": min(values), "high": max(values), "first": values[0]}


def gain(found: Mapping[str, Any], by: str, over: str, part: str, figure: str, seeds: int) -> dict[str, float]:
    """Error of the variant `over`, less that with the graph vector, seed by seed.

    `low` and `high` are the mean less and plus twice its standard error over seeds. Seeds share rows, so this is the
    spread of the folds alone.
    """
    each = [
        found[f"{by}|{seed}|{over}"][part][figure] - found[f"{by}|{seed}|{WITH}"][part][figure] for seed in range(seeds)
    ]
    middle = float(np.mean(each))
    half = 2.0 * float(np.std(each, ddof=1)) / math.sqrt(seeds) if seeds > 1 else math.inf
    return {"mean": middle, "low": middle - half, "high": middle + half}


def main(arguments: list[str] | None = None) -> int:
    from benchmarks.papers.predictddl_page import DOCS, block, page

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--checkpoint", type=Path, default=CHECKPOINT)
    given = parser.parse_args(arguments)
    results = judge(required_data_folder(), given.seeds, given.checkpoint)
    write_whole(RESULTS, json.dumps(results, indent=1) + "\n")
    write_whole(RESULTS.with_suffix(".md"), page(results))
    write_whole(DOCS, fill_markers(DOCS.read_text(encoding="utf-8"), "figures", block(results), DOCS.name))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
