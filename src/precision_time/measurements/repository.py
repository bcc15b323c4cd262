"""The folder `data/` of a checkout of the repository: measurement tables that the installed package does not hold."""

from __future__ import annotations

from pathlib import Path

import precision_time
from precision_time.errors import DataError

STEPS = Path("published") / "measurements.csv"
"""Published training steps in plain data parallelism, below the data folder."""
LARGE_STEPS = Path("published") / "measurements_llm.csv"
"""Published training steps of large language models in other layouts."""
LARGE_TABLES = (LARGE_STEPS, Path("published") / "measurements_llm_more.csv", Path("published") / "internevo.csv")
"""All tables of such steps."""
_MARKS = ("published", "kernels", "small_networks", "cloud-configurations")
"""Folders of which `data/` holds at least one."""


def data_folder(path: str | Path | None = None) -> Path | None:
    """The folder with `published/`, `kernels/` and the other tables, or None where there is none.

    `path` may name that folder, or a folder whose `data` it is. Without a path it is looked for in the working
    directory and in the checkout that this package is imported from.
    """
    if path is not None:
        candidates = [Path(path) / "data", Path(path)]
    else:
        candidates = [Path("data"), Path(precision_time.__file__).parents[2] / "data"]
    return next((each.absolute() for each in candidates if any((each / name).is_dir() for name in _MARKS)), None)


def required_data_folder(path: str | Path | None = None) -> Path:
    """`data_folder`; raises `DataError` where there is none."""
    folder = data_folder(path)
    if folder is not None:
        return folder
    if path is not None:
        raise DataError(
            f"folder {str(path)!r} has none of {', '.join(_MARKS)}; name the folder data/ of a clone of the repository"
        )
    raise DataError(
        "the measurement tables are in the folder data/ of the repository, which is not part of the installed package; "
        "run this in a clone, or name that folder with --tables DIR"
    )
