"""Files of a trained predictor: JSON, and an npz of arrays; no pickle."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from precision_time.errors import DataError
from precision_time.predictors.predictddl.confidence import Likeness
from precision_time.predictors.predictddl.law import Law
from precision_time.predictors.predictddl.regressors import Fitted, Setting
from precision_time.predictors.predictddl.trainer import Design, Trained
from precision_time.reading import read_json, to_json
from precision_time.report.write import make_folder, write_whole

CONTENT, ARRAYS = "predictddl.json", "predictddl.npz"
_PLAIN = (
    "dataset", "names", "networks", "gpus", "frameworks", "precisions", "groups", "spreads", "several", "rows",
    "measured_s", "fit_s", "errors", "peaks",
)  # fmt: skip


def save(folder: Path, design: Design, trained: Mapping[str, Trained]) -> None:
    """Write both files. Arrays are named NUMBER.PART.NAME with the position of the dataset type in the JSON."""
    make_folder(folder, "folder", parents=True)
    types: list[dict[str, Any]] = []
    arrays: dict[str, Any] = {}
    for number, each in enumerate(trained.values()):
        setting = {"kind": each.fitted.setting.kind, "options": each.fitted.setting.options}
        types.append({name: getattr(each, name) for name in _PLAIN} | {"setting": setting})
        arrays |= {f"{number}.regressor.{name}": value for name, value in each.fitted.arrays.items()}
        if each.law is not None:
            arrays |= {f"{number}.law.{label}": value for label, value in each.law.theta.items()}
        arrays |= {f"{number}.likeness.{name}": value for name, value in asdict(each.likeness).items()}
    content = {"design": asdict(design), "types": types}
    packed = io.BytesIO()
    np.savez_compressed(packed, **arrays)
    write_whole(folder / ARRAYS, packed.getvalue())
    write_whole(folder / CONTENT, (to_json(content, indent=1) + "\n").encode())


def load(folder: Path) -> tuple[Design, dict[str, Trained]]:
    """Read what `save` wrote. Raises a `DataError` where it is missing or incomplete."""
    try:
        content = read_json(folder / CONTENT)
        with np.load(folder / ARRAYS, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        design = content["design"]
        settings = tuple(_setting(each) for each in design.pop("settings"))
        made = Design(**{**design, "groups": tuple(design["groups"]), "settings": settings})
        types = [_trained(entry, number, arrays) for number, entry in enumerate(content["types"])]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"folder {str(folder)!r} holds no saved predictddl ({type(error).__name__}: {error}); fit and save it again"
        ) from error
    return made, {each.dataset: each for each in types}


def _setting(entry: Mapping[str, Any]) -> Setting:
    return Setting(str(entry["kind"]), tuple((str(name), float(value)) for name, value in entry["options"]))


def _trained(entry: dict[str, Any], number: int, arrays: Mapping[str, Any]) -> Trained:
    def part(name: str) -> dict[str, Any]:
        start = f"{number}.{name}."
        return {key.removeprefix(start): value for key, value in arrays.items() if key.startswith(start)}

    like, law = part("likeness"), part("law")
    return Trained(
        dataset=entry["dataset"],
        names=tuple(entry["names"]),
        fitted=Fitted(_setting(entry["setting"]), part("regressor")),
        likeness=Likeness(like["vectors"], like["mean"], like["deviation"], float(like["threshold"])),
        networks=tuple(entry["networks"]),
        gpus=tuple(entry["gpus"]),
        frameworks=tuple(entry["frameworks"]),
        precisions=tuple(entry["precisions"]),
        groups=tuple(entry["groups"]),
        spreads={str(kind): float(value) for kind, value in entry["spreads"].items()},
        several=float(entry["several"]),
        rows=int(entry["rows"]),
        measured_s=float(entry["measured_s"]),
        fit_s=float(entry["fit_s"]),
        errors=tuple((str(name), float(value)) for name, value in entry["errors"]),
        law=Law(law) if law else None,
        peaks=bool(entry["peaks"]),
    )
