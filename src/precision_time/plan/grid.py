"""Grams of CO2 that a kilowatt-hour of a country's grid causes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from precision_time.checks import show
from precision_time.errors import CatalogError, nearest
from precision_time.reading import read_mapping
from precision_time.shipped import shipped_file

_DATA = "hardware/data/grid.yaml"


@dataclass(frozen=True, slots=True)
class Grid:
    """`grams_per_kwh` of CO2-equivalents, the year that it is of, where it was published, and whether it was looked up
    there or recalled."""

    name: str
    grams_per_kwh: float
    as_of: str
    source: str
    trust: str


@cache
def grids() -> Mapping[str, Grid]:
    """The shipped table, by country."""
    document: dict[str, Any] = read_mapping(shipped_file(_DATA), "table of grids")
    source, as_of = document["source"], document["as_of"]
    return {
        name: Grid(name, float(grams), as_of, source, trust)
        for trust, key in (("looked up", "looked_up"), ("recalled", "recalled"))
        for name, grams in document[key].items()
    }


def grid_of(name: Any) -> Grid:
    """The grid of a country, or a factor of one's own as a number of grams."""
    if isinstance(name, (int, float)) or (isinstance(name, str) and name.replace(".", "", 1).isdigit()):
        grams = float(name)
        if not 0.0 <= grams <= 5000.0:
            raise CatalogError(f"grid {show(name)} is no number of grams of CO2 per kWh from 0 to 5000")
        return Grid(str(name), grams, "now", "given", "given")
    known = grids()
    found = known.get(str(name).strip().lower().replace(" ", "-"))
    if found is None:
        raise CatalogError(
            f"grid {show(name)} is unknown; nearest: {nearest(str(name), known)}; or give grams of CO2 per kWh"
        )
    return found
