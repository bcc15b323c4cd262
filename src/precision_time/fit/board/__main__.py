"""Judge the published rows held out, and write the board.

    python -m precision_time.fit.board --shared DIR                      docs/accuracy.md and its picture
    python -m precision_time.fit.board --shared DIR --readme README.md   ... and the table between README's markers
    python -m precision_time.fit.board --shared DIR --json FILE          ... and every judged row, in FILE
    python -m precision_time.fit.board --shared DIR --from FILE          the pages again from FILE, without judging

Judging takes about nine minutes. FILE holds third parties' measurements row by row, so it belongs on your own disk; the
page shows sums and the worst rows alone.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from precision_time.errors import DataError, PrecisionTimeError
from precision_time.fit.board.cache import read_runs, write_runs
from precision_time.fit.board.facts import Facts
from precision_time.fit.board.page import page, readme_table
from precision_time.fit.board.plot import picture
from precision_time.fit.board.runs import Board, board, judge_all
from precision_time.fit.evaluation.figures import require_matplotlib
from precision_time.fit.steps import TABLE
from precision_time.job.file import write_whole
from precision_time.measurements.table import read_table

OTHER_TABLES = ("measurements_llm.csv",)
"""Tables beside the fitted one whose rows are counted too."""
BEGIN, END = "<!-- accuracy:begin -->", "<!-- accuracy:end -->"


def fill_markers(path: Path, text: str) -> None:
    """Put the text between the file's accuracy markers."""
    content = path.read_text(encoding="utf-8")
    before, begin, rest = content.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise DataError(f"{path.name} has no {BEGIN} with {END} after it; add both where the table shall stand")
    write_whole(path, f"{before}{BEGIN}\n{text.strip()}\n{END}{after}".encode())


def write_pages(found: Board, output: Path, readme: Path | None) -> None:
    """The page, its picture and the README's table."""
    image = output.parent / "images" / "accuracy.png"
    drawn, text = picture(found), page(found, image.relative_to(output.parent).as_posix())
    image.parent.mkdir(parents=True, exist_ok=True)
    write_whole(image, drawn)
    write_whole(output, text.encode())
    if readme is not None:
        fill_markers(readme, readme_table(found, Path(os.path.relpath(output, readme.parent)).as_posix()))


def _say(text: str) -> None:
    print(f"\r{text:50}", end="", file=sys.stderr, flush=True)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m precision_time.fit.board", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--shared", type=Path, required=True, help=f"folder with {TABLE.as_posix()}")
    parser.add_argument("--output", type=Path, default=Path("docs") / "accuracy.md", help="the page (docs/accuracy.md)")
    parser.add_argument("--readme", type=Path, help="put a small table between this file's accuracy markers")
    parser.add_argument("--json", type=Path, help="write every judged row to this file, outside the repository")
    parser.add_argument("--from", type=Path, dest="kept", help="read the judged rows from this file")
    given = parser.parse_args(arguments)
    path = given.shared / TABLE
    try:
        require_matplotlib("the board's picture")
        tables = [read_table(path), *(read_table(path.with_name(name)) for name in OTHER_TABLES)]
        facts = Facts.of(path, tables[0])
        if given.kept:
            facts, runs = read_runs(given.kept, facts, tables[0].rows)
        else:
            runs = judge_all(tables[0].rows, _say)
            print(file=sys.stderr)
        if given.json:
            write_runs(given.json, facts, runs)
        write_pages(board(facts, runs, tables), given.output, given.readme)
    except (PrecisionTimeError, OSError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
