"""The folder `data/` of a checkout of the repository: measurement tables that the installed package does not hold."""

from __future__ import annotations

from pathlib import Path

import precision_time

_MARKS = ("published", "small_networks", "cloud-configurations")
"""Folders of which `data/` holds at least one."""


def data_folder(path: str | Path | None = None) -> Path | None:
    """The folder with `published/`, `small_networks/` and `cloud-configurations/`, or None where there is none.

    `path` may name that folder, or a folder whose `data` it is. Without a path it is looked for in the working
    directory and in the checkout that this package is imported from.
    """
    if path is not None:
        candidates = [Path(path) / "data", Path(path)]
    else:
        candidates = [Path("data"), Path(precision_time.__file__).parents[2] / "data"]
    return next((each.absolute() for each in candidates if any((each / name).is_dir() for name in _MARKS)), None)
