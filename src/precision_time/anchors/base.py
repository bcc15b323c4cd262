"""The anchors that ship: published rows with what this version predicts for them, and the fitted covariance.

`precision-time fit anchors` writes `data/published.json` from the tables `TABLES` of `fit.anchors` of the repository.
Their column `source` names where each row was published.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from precision_time.anchors.anchor import Anchor, JobDescriptor
from precision_time.anchors.covariance import EFFECTS, TRUSTS, Covariance
from precision_time.anchors.posterior import Anchors
from precision_time.shipped import shipped_file

COLUMNS = (
    "id", "source", "trust", "family", "model", "gpu", "arch", "maths", "precision", "framework", "setting",
    "batch_size", "gpus",
    "shares", "key", "measured_s", "predicted_s",
)  # fmt: skip


@cache
def published() -> Anchors:
    """The published anchors."""
    content = read_base()
    return Anchors(map(_anchor, content["rows"]), shipped_covariance(), kept=True)


@cache
def shipped_covariance() -> Covariance:
    """The fitted standard deviations."""
    stored = read_base()["covariance"]
    effects = {name: float(stored["effects"].get(name, 0.0)) for name in EFFECTS}
    noise = {trust: float(stored["noise"][trust]) for trust in TRUSTS}
    return Covariance(effects, noise, float(stored["own_spread"]), float(stored["environment"]))


@cache
def read_base() -> Any:
    return json.loads(shipped_file("anchors/data/published.json").read_bytes())


def _anchor(row: list[Any]) -> Anchor:
    columns = dict(zip(COLUMNS, row, strict=True))
    job = {name: columns[name] for name in JobDescriptor.__dataclass_fields__}
    measured = {name: columns[name] for name in Anchor.__dataclass_fields__ if name in columns}
    return Anchor(JobDescriptor(**{**job, "shares": tuple(job["shares"])}), **measured)


def row_of_anchor(anchor: Anchor) -> list[Any]:
    """The row of `data/published.json` for an anchor."""
    columns = {name: getattr(anchor.job, name) for name in JobDescriptor.__dataclass_fields__}
    columns |= {name: getattr(anchor, name) for name in Anchor.__dataclass_fields__}
    return [list(columns[name]) if name == "shares" else columns[name] for name in COLUMNS]
