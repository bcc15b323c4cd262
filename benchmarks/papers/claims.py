"""The published claims beside what was found here: `python -m benchmarks.papers.claims [out/reproduction/report.json]`.

Reads the report of `make reproduce` and, of benchmarks/results, the measured makespans of stagger.json and the seeds of
boosting.json; writes claims.json and claims.md there, and all predictors' errors and the verdicts into
docs/predictors.md. A claim has one or more readings, since the papers leave open what exactly was measured. The rule,
fixed here:

reading   *agrees* where its whole interval lies on the claimed side of the published figure, *disagrees* where the
          whole interval lies on the other side, and is *open* otherwise. Without an interval the figure itself decides.
          A reading with fewer than LEAST_N rows, networks, jobs, features or timings decides nothing.
claim     *holds* where all its readings agree, is *refuted* where all disagree, *holds in part* in every other case,
          and *cannot be judged here* without a reading.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.papers.claim_readings import READERS, Reading
from benchmarks.speed import RESULTS
from precision_time.errors import DataError, PrecisionTimeError
from precision_time.report.page import fill_markers
from precision_time.report.table import Table
from precision_time.report.write import write_whole

REPORT = Path("out/reproduction/report.json")
MORE = {"stagger_runs": RESULTS / "stagger.json", "boosting_steps": RESULTS / "boosting.json"}
"""Other results that readings come from; what is absent gives none."""
PAGE = Path(__file__).parents[2] / "docs" / "predictors.md"
LEAST_N = 5
VERDICTS = ("holds", "holds in part", "refuted", "cannot be judged here")
"""In the order of the rule: all readings agree, some do, none does, there is none."""


@dataclass(frozen=True, slots=True)
class Published:
    """A claim with its figure. `side` is "at least" or "at most"; `key` names its readings in `READERS`."""

    key: str
    claim: str
    figure: float
    side: str
    unit: str
    source: str


_PRECISION = "arXiv 2604.16145, abstract"
_READERS = "arXiv 2604.16145, as its readers report"
_PREDICTDDL = "PredictDDL, IEEE CLUSTER 2023, abstract"
CLAIMS = (
    Published("features", "tensor-core use and bandwidth saving are the top two features", 2, "at most", "", _READERS),
    Published("range", "the precision setting moves training time by about 2.4x", 2.4, "at least", "x", _PRECISION),
    Published("blind", "a precision-blind predictor errs by up to 147.85 %", 1.4785, "at least", "%", _PRECISION),
    Published("aware", "the precision-aware predictor errs by 9.8 %", 0.098, "at most", "%", _PRECISION),
    Published("unseen", "it errs by 10.64 % in a precision that was not profiled", 0.1064, "at most", "%", _READERS),
    Published("error", "PredictDDL errs up to 9.8 times less than Ernest", 9.8, "at least", "x", _PREDICTDDL),
    Published("speed", "PredictDDL answers 10.3 times sooner than Ernest", 10.3, "at least", "x", _PREDICTDDL),
    Published(
        "stagger", "a staggered start ends sooner than starting together or one after the other", 0.0, "at least", "%",
        "cache-aware staggering, HiPC 2023 (its figures are not known here)",
    ),
)  # fmt: skip


def agrees(published: Published, reading: Reading) -> bool | None:
    """Whether a reading agrees with the claim; None where it is open."""
    low = reading.figure if reading.low is None else reading.low
    high = reading.figure if reading.high is None else reading.high
    sides = [value >= published.figure if published.side == "at least" else value <= published.figure
             for value in (low, high)]  # fmt: skip
    return sides[0] if sides[0] == sides[1] else None


def verdict(published: Published, readings: Sequence[Reading]) -> str:
    """One of VERDICTS, by the rule of the module."""
    found = [agrees(published, each) for each in readings if each.n >= LEAST_N]
    if not found:
        return VERDICTS[3]
    if all(each is True for each in found):
        return VERDICTS[0]
    return VERDICTS[2] if all(each is False for each in found) else VERDICTS[1]


def judged(report: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """All claims with their readings and verdicts, for the JSON; `more` as in MORE."""
    sources = {**report["studies"], **more}
    rows = []
    for published in CLAIMS:
        readings = list(READERS[published.key](sources))
        rows.append(
            {
                **asdict(published),
                "verdict": verdict(published, readings),
                "readings": [{**asdict(each), "agrees": _word(published, each)} for each in readings],
            }
        )
    return {"about": dict(report.get("about", {})), "claims": rows, "errors": _errors(report.get("side_by_side", ()))}


def _errors(verdicts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Of the report's table of all predictors: what was judged, and its errors over all rows."""
    named, figures = ("predictor", "rows", "left_out"), ("n", "mape", "median_ape")
    return [
        {**{name: each[name] for name in named}, **{name: each["errors"]["all"][name] for name in figures}}
        for each in verdicts
    ]


def _word(published: Published, reading: Reading) -> str:
    if reading.n < LEAST_N:
        return "too few"
    return {True: "agrees", False: "disagrees", None: "open"}[agrees(published, reading)]


def markdown(content: Mapping[str, Any]) -> str:
    """The table: a row for each reading, the verdict of the claim beside its first."""
    lines: list[tuple[str, ...]] = []
    for claim in content["claims"]:
        head = (claim["claim"], claim["verdict"], claim["source"])
        rows = list(_readings(claim)) or [("-", "-", "-", "-", "-")]
        lines += [(*(head if i == 0 else ("",) * 3), *row) for i, row in enumerate(rows)]
    header = ("claim", "verdict", "published in", "reading", "found", "P10-P90", "n", "reading agrees")
    parts = [
        "# Published claims beside what was found",
        "Written by `python -m benchmarks.papers.claims` from the report of `make reproduce`"
        f" of {content['about'].get('date', 'an unknown date')}; the rule of the verdicts is in "
        "[claims.py](../papers/claims.py). Errors are of rows that the predictor was not fitted to. Intervals are "
        "over draws of families, networks, jobs or pairs, named beside n; the range over seeds of the folds, "
        "and quartiles of timings, where the reading says so.",
        Table(header, lines, left=4).markdown(),
    ]
    return "\n\n".join(parts) + "\n"


def summary(content: Mapping[str, Any]) -> str:
    """The table of docs/predictors.md: the verdict of every claim, with the extent of its readings."""
    lines = []
    for claim in content["claims"]:
        form, found = _FORMS[claim["unit"]], sorted(each["figure"] for each in claim["readings"])
        extent = f"{form(found[0])} to {form(found[-1])} in {len(found)} readings" if found else "-"
        lines.append((claim["claim"], extent, claim["verdict"]))
    return Table(("published claim", "found", "verdict"), lines, left=3).markdown()


def errors_table(content: Mapping[str, Any]) -> str:
    """The errors of all predictors on rows held out, for docs/predictors.md."""
    form = _FORMS["%"]
    lines = [
        (
            each["rows"],
            each["predictor"],
            each["left_out"],
            f"{each['n']:,}",
            form(each["mape"]),
            form(each["median_ape"]),
        )
        for each in content["errors"]
    ]
    return Table(("judged on", "predictor", "held out", "rows", "mean error", "median"), lines, left=3).markdown()


def _readings(claim: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    form = _FORMS[claim["unit"]]
    for each in claim["readings"]:
        interval = "-" if each["low"] is None else f"{form(each['low'])} - {form(each['high'])}"
        yield each["what"], form(each["figure"]), interval, f"{each['n']:,} {each['of']}", each["agrees"]


_FORMS: dict[str, Callable[[float], str]] = {
    "%": lambda value: f"{100.0 * value:.1f} %",
    "x": lambda value: f"{value:.2f}x",
    "": lambda value: f"{value:.0f}",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.papers.claims", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("report", nargs="?", type=Path, default=REPORT, help=f"of `make reproduce` (default {REPORT})")
    parser.add_argument("--output", type=Path, default=RESULTS, metavar="FOLDER")
    given = parser.parse_args(arguments)
    try:
        more = {name: _read(path) for name, path in MORE.items() if path.is_file()}
        content = judged(_read(given.report), more)
        write_whole(given.output / "claims.json", json.dumps(content, indent=1, ensure_ascii=False) + "\n")
        write_whole(given.output / "claims.md", markdown(content))
        if given.output == RESULTS:
            page = PAGE.read_text(encoding="utf-8")
            page = fill_markers(page, "errors", errors_table(content), str(PAGE))
            write_whole(PAGE, fill_markers(page, "claims", summary(content), str(PAGE)))
    except PrecisionTimeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print("\n".join(f"{claim['verdict']}: {claim['claim']}" for claim in content["claims"]))
    return 0


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(
            f"report {str(path)!r} cannot be read ({error}); run `make reproduce`, or name its JSON"
        ) from error


if __name__ == "__main__":
    raise SystemExit(main())
