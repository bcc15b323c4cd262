"""The file in which a search keeps its results between two calls of `precision-time search`.

It is written whole with every call, and holds what the search was begun with, so that the next call needs no flags.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from precision_time.checks import show
from precision_time.errors import DataError, nearest
from precision_time.predictors.cherrypick import AUTHORS, IMPROVED, PUBLISHED
from precision_time.predictors.search_table import MOST_RESULTS, OBJECTIVES, Results, number
from precision_time.reading import named, read_json, to_json
from precision_time.report.write import write_whole

SETTINGS = {"improved": IMPROVED, "published": PUBLISHED, "authors": AUTHORS}
LARGEST_SEED = 2**31 - 1
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class State:
    """What a search was begun with, and its results in the order in which they were told."""

    objective: str = OBJECTIVES[0]
    deadline_s: float | None = None
    setting: str = "improved"
    seed: int = 0
    results: Results = field(default_factory=dict)

    def with_results(self, results: Results) -> State:
        """With further results; one of a configuration that has a result replaces it. Raises a `DataError`."""
        merged = {**self.results, **results}
        if len(merged) > MOST_RESULTS:
            raise DataError(
                f"{len(merged)} results are more than the {MOST_RESULTS} that a search keeps; leave some out"
            )
        return replace(self, results=merged)

    def write(self, path: str | Path) -> None:
        """Write the file whole."""
        content = asdict(self)
        content["results"] = [{"id": each, "seconds": seconds} for each, seconds in self.results.items()]
        write_whole(path, to_json({"search": _FORMAT, **content}, indent=1, ensure_ascii=False) + "\n")


def read_state(path: str | Path) -> State | None:
    """The state in a file; None where there is no file. Raises a `DataError`."""
    if not os.path.lexists(path):
        return None
    name = named("state", path)
    content = read_json(path, "state")
    if not isinstance(content, dict) or content.get("search") != _FORMAT:
        raise DataError(f"{name} is no state of a search; name another file, which search then makes")
    fields = {"objective", "deadline_s", "setting", "seed", "results"}
    if missing := fields - set(content):
        raise DataError(f"{name} has no {min(missing)}; begin a new state")
    checked = check_settings(content["objective"], content["deadline_s"], content["setting"], content["seed"], name)
    return replace(checked, results=_results(content["results"], name))


def check_settings(objective: Any, deadline_s: Any, setting: Any, seed: Any, where: str) -> State:
    """A state without results. Raises a `DataError` that begins with `where`."""
    for word, value, known in (("objective", objective, OBJECTIVES), ("setting", setting, tuple(SETTINGS))):
        if value not in known:
            raise DataError(
                f"{where}: {word} {show(value)} is unknown; nearest: {nearest(value, known, 1)}; "
                f"use one of {', '.join(known)}"
            )
    if deadline_s is not None and not _positive(deadline_s):
        raise DataError(f"{where}: deadline {show(deadline_s)} must be seconds above 0")
    if type(seed) is not int or not 0 <= seed <= LARGEST_SEED:
        raise DataError(f"{where}: seed {show(seed)} must be a whole number from 0 to {LARGEST_SEED:,}")
    return State(objective, None if deadline_s is None else float(deadline_s), setting, seed)


def _results(content: Any, name: str) -> Results:
    if not isinstance(content, list) or len(content) > MOST_RESULTS:
        raise DataError(f"{name}: results must be a list of at most {MOST_RESULTS}; begin a new state")
    results: Results = {}
    for at, each in enumerate(content):
        if not isinstance(each, dict) or set(each) != {"id", "seconds"} or not isinstance(each["id"], str):
            raise DataError(f"{name}: results[{at}] {show(each)} must have id and seconds; correct it")
        if each["id"] in results:
            raise DataError(f"{name}: results[{at}] has the id {show(each['id'])} again; keep one of them")
        if each["seconds"] is not None and not _positive(each["seconds"]):
            raise DataError(f"{name}: results[{at}].seconds {show(each['seconds'])} must be above 0, or null")
        results[each["id"]] = None if each["seconds"] is None else float(each["seconds"])
    return results


def _positive(value: Any) -> bool:
    """Whether a value is a number that `number` takes, above 0."""
    return type(value) in (int, float) and (number(repr(value)) or 0.0) > 0.0
