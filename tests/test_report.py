"""Reporting: error statistics by hand, the four forms of a table, figures, pages and files written whole."""

from __future__ import annotations

import csv
import errno
import io
import math
import os
import re
import socket
import stat
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precision_time.errors import DataError, JobError
from precision_time.reading import read_rows
from precision_time.report import figure as figures
from precision_time.report.errors import ErrorStatistics, labels, percent
from precision_time.report.page import bullets, captioned, fill_markers, heading, page, paragraph
from precision_time.report.table import Cell, Table, csv_cell
from precision_time.report.write import check_file, compact_json, make_own_folder, write_whole


def test_error_statistics_by_hand() -> None:
    errors = ErrorStatistics.of([0.1, -0.2, 0.3, -0.4], inside=[True, True, False, True])
    assert errors.to_dict() == pytest.approx(
        {
            "n": 4, "mape": 0.25, "median_ape": 0.25, "signed_mean": -0.05, "p90_ape": 0.3 + 0.7 * 0.1, "max_ape": 0.4,
            "coverage_p10_p90": 0.75, "geo_mean_ratio": (1.1 * 0.8 * 1.3 * 0.6) ** 0.25,
        }
    )  # fmt: skip
    assert errors.cells() == ["4", "25.0%", "25.0%", "-5.0%", "37.0%", "40.0%", "75%", "0.91"]
    assert errors.cells(("n", "signed_mean")) == ["4", "-5.0%"]
    assert labels(("n", "p90_ape")) == ["rows", "P90"]


def test_error_statistics_of_nothing_and_of_what_cannot_be() -> None:
    assert ErrorStatistics.of([]) == ErrorStatistics(0)
    assert ErrorStatistics.of([]).cells() == ["0", *["-"] * 7]
    assert ErrorStatistics.of([0.5]).coverage_p10_p90 is None
    assert ErrorStatistics.of([-1.0]).geo_mean_ratio == 0.0
    with pytest.raises(ValueError, match="negative time"):
        ErrorStatistics.of([-1.5])
    with pytest.raises(ValueError, match="2 errors but 1 interval"):
        ErrorStatistics.of([0.1, 0.2], inside=[True])


def test_percent() -> None:
    assert [percent(0.1254), percent(0.1254, 0), percent(0.1, sign="+"), percent(-0.1, sign="+")] == [
        "12.5%", "13%", "+10.0%", "-10.0%",
    ]  # fmt: skip
    assert [percent(None), percent(math.nan), percent(1234.5)] == ["-", "-", "1.2e+05%"]


TABLE = Table(
    ["name", "value"],
    [
        ["a|b", "1"],
        ["by <GPU>", ""],
        ["=1+1", Cell("-2 ms", sort=-0.002, css="good")],
        ["x", Cell("y", markup="<b>y</b>")],
    ],
)


def test_table_as_text_and_markdown() -> None:
    assert str(TABLE).splitlines() == [
        "name      value", "--------  -----", "a|b           1", "by <GPU>", "=1+1      -2 ms", "x             y",
    ]  # fmt: skip
    assert TABLE.markdown().splitlines()[:3] == ["| name | value |", "| --- | ---: |", "| a\\|b | 1 |"]
    with pytest.raises(ValueError, match="1 cells for 2 columns"):
        Table(["a", "b"], [["only"]])


def test_table_as_html_is_escaped() -> None:
    html = TABLE.html(css="sort", element_id="rows", row_ids=["r1", "", "", ""])
    assert '<table class="sort" id="rows">' in html
    assert '<tr id="r1"><td class="text">a|b</td><td>1</td></tr>' in html
    assert '<tr class="group"><td colspan="2">by &lt;GPU&gt;</td></tr>' in html
    assert '<td class="good" data-v="-0.002">-2 ms</td>' in html
    assert "<td><b>y</b></td>" in html


def test_table_as_csv_runs_no_formula() -> None:
    rows = list(csv.reader(io.StringIO(TABLE.csv())))
    assert rows == [
        ["name", "value"],
        ["a|b", "1"],
        ["by <GPU>", ""],
        ["'=1+1", "'-2 ms"],
        ["x", "y"],
    ]
    assert [csv_cell(text) for text in ("-0.5", "+1e-3", "@SUM(A1)", "+x", "a=b", "")] == [
        "-0.5", "+1e-3", "'@SUM(A1)", "'+x", "a=b", "",
    ]  # fmt: skip


@given(st.lists(st.text(st.sampled_from("=+-@\t'|\\\n\r,\"1e. aå＝"), max_size=5), min_size=1, max_size=3))
def test_csv_is_read_back_as_it_was_and_runs_no_formula(cells: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        path.write_text(Table(["mark", *map(str, range(len(cells)))], [["x", *cells]]).csv(), newline="")
        (_, head), *rows = read_rows(path)
        assert head[0] == "mark"
        unified = [cell.replace("\r\n", "\n").replace("\r", "\n") for cell in cells]
        assert [row for _, row in rows] == [["x", *unified]]
    for cell in cells:
        written = csv_cell(cell)
        assert not written.startswith(("=", "+", "-", "@", "\t", "\r", "\n", "＝")) or float(written) is not None


@given(st.lists(st.text(st.sampled_from("|\\`\n\r a"), max_size=6), min_size=2, max_size=4))
def test_a_markdown_row_keeps_its_cells(cells: list[str]) -> None:
    """A bar ends a cell unless an odd number of backslashes precedes it (GitHub Flavored Markdown, 4.10)."""
    *_, row = Table(["a", *map(str, range(len(cells)))], [["x", *cells]]).markdown().split("\n")
    assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", row)) == len(cells) + 2


def test_dollars_and_backslashes_in_names_are_drawn_as_they_are() -> None:
    pytest.importorskip("matplotlib")
    names = ["a$\\frac$b", "$x^_$", "$", "\\", "a_b^c", "two\nlines"]
    for kind in ("png", "svg"):
        figure, axes = figures.new_figure(4, 4)
        figures.bars(axes, names, {"$\\alpha_$": [1.0] * len(names)})
        axes.set(title=names[0], xlabel=names[1], ylabel=names[2], xscale="log")
        axes.legend(title=names[0])
        figure.suptitle(names[0])
        content = figures.image(figure, kind)
    text = content.decode()
    assert text.count("a$\\frac$b") == 4
    assert "mathdefault" not in re.sub(r"<!--.*?-->", "", text), "ticks of logarithmic axes are numbers"


def test_page_escapes_text_and_needs_no_network() -> None:
    body = [heading("a<b", 3, "part"), paragraph("1 < 2", "soft"), bullets(["&"]), captioned("<svg></svg>", "x>y")]
    text = page("R & D", body, script="let a = 1;")
    assert "<title>R &amp; D</title>" in text
    assert '<h3 id="part">a&lt;b</h3>' in text
    assert '<p class="soft">1 &lt; 2</p>' in text
    assert "<li>&amp;</li>" in text
    assert "<figcaption>x&gt;y</figcaption>" in text
    assert "<script>let a = 1;</script>" in text
    assert "http" not in text


def test_markers_are_filled_or_missed() -> None:
    before = "head\n<!-- board:begin -->\nold\n<!-- board:end -->\ntail\n"
    assert fill_markers(before, "board", "new\n", "x.md") == before.replace("old", "new")
    for broken in ("head", before + before, before.replace("begin", "x").replace("end", "begin").replace("x", "end")):
        with pytest.raises(DataError, match=r"x\.md does not have one <!-- board:begin -->"):
            fill_markers(broken, "board", "new", "x.md")


def test_a_file_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    write_whole(path, "å")
    assert path.read_bytes() == "å".encode()
    path.chmod(0o640)
    (tmp_path / "link").symlink_to(path)
    write_whole(tmp_path / "link", b"\x00")  # through the link
    assert (tmp_path / "link").is_symlink()
    assert path.read_bytes() == b"\x00"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    (tmp_path / "dangling").symlink_to("made")
    write_whole(tmp_path / "dangling", "text")
    assert (tmp_path / "made").read_text() == "text"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["dangling", "link", "made", "out.txt"]


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "out.txt"
    write_whole(path, "old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match="cannot be written: no space left on device"):
        write_whole(path, "new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.txt"]
    assert path.read_text() == "old"


def test_what_is_no_file_is_never_written(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "null").symlink_to("/dev/null")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "socket"))
    for name, message in (
        ("", "is a folder; name a file in it"), ("fifo", "is a FIFO"), ("loop", "is a loop of links"),
        ("socket", "is a socket"), ("null", "is a file of the system"), ("/dev/null", "is a file of the system"),
        ("/dev/stdout", "is a file of the system"), ("/proc/self/fd/1", "is a file of the system"),
        ("//dev/../dev/null", "is a file of the system"), ("no/x", "no folder"), ("fifo/x", "no folder"),
        ("x" * 300, "file name too long"), ("a\0b", "null"),
    ):  # fmt: skip
        with pytest.raises(DataError, match=message):
            write_whole(tmp_path / name, "text")
    for name, message in (("", "is empty; name a file"), (f"{tmp_path}/file/", "is the name of a folder")):
        with pytest.raises(DataError, match=message):
            write_whole(name, "text")
    assert len(list(tmp_path.iterdir())) == 4


def test_a_folder_of_other_files_is_not_filled(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine")
    with pytest.raises(DataError, match=r"holds 'README\.md' and nothing that this command wrote"):
        make_own_folder(tmp_path, ["journal.jsonl"])
    (tmp_path / "journal.jsonl").touch()
    assert make_own_folder(tmp_path, ["journal.jsonl"]) == tmp_path
    assert make_own_folder(tmp_path / "new", ["journal.jsonl"]).is_dir()


def test_an_output_is_no_input_by_whatever_name(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("model: resnet50")
    (tmp_path / "link").symlink_to(path)
    (tmp_path / "hard").hardlink_to(path)
    for name in ("job.yaml", "link", "hard", "../" + tmp_path.name + "/job.yaml"):
        with pytest.raises(DataError, match="is an input of this command"):
            check_file("--trace", tmp_path / name, [tmp_path / "absent", path])
    check_file("--trace", tmp_path / "other", [path])


def test_compact_json_keeps_innermost_lists_on_a_line() -> None:
    assert compact_json({"a": [1, 2], "b": {"c": [[1], [2]]}}).splitlines()[1] == ' "a": [1, 2],'


def test_kinds_of_images() -> None:
    assert figures.image_kind("a/b.PNG") == "png"
    with pytest.raises(JobError, match=r"plot 'b\.pdf' is no picture this can write; end it in \.png or \.svg"):
        figures.image_kind("b.pdf", ("png", "svg"))


def test_figures_draw_every_row_and_repeat_exactly() -> None:
    pytest.importorskip("matplotlib")

    def draw() -> str:
        figure, (seconds, ratio) = figures.new_figure(6, 6, rows=2)
        points = figures.Points([0.1, 1.0], [0.11, 0.5], figures.precision_colour("fp32"), "fp32", links=["#r1", "#r2"])
        figures.measured_vs_predicted(seconds, [points])
        figures.measured_vs_predicted(ratio, [points], ratio=True)
        return figures.svg(figure, "test")

    text = draw()
    assert text == draw()
    assert text.startswith("<svg")
    assert text.count('xlink:href="#r1"') == 2
    assert "predicted / measured" in text
    assert "0.5x" in text
    assert "#000000" not in text


def test_bars_stand_in_groups_with_their_values() -> None:
    pytest.importorskip("matplotlib")
    figure, axes = figures.new_figure(6, 3)
    figures.bars(axes, ["fp32", "bf16"], {"ours": [10.0, 20.0], "theirs": [30.0, math.nan]}, {"ours": "#123456"})
    assert [bar.get_width() for bar in axes.patches] == [10, 20, 30, 0]
    text = figures.svg(figure, "bars")
    assert [text.count(value) for value in (" 10 %<", " 20 %<", " 30 %<", "nan %")] == [1, 1, 1, 0]
    assert "#123456" in text
    assert figures.image(figure, "png").startswith(b"\x89PNG")


def test_colours_follow_the_precision() -> None:
    assert figures.precision_colour("fp8-rowwise") == figures.precision_colour("fp8")
    assert figures.precision_colour("fp3") == figures.PALETTE[-1]
    assert figures.precisions_in_order(["zzz", "bf16", "fp32", "bf16"]) == ["fp32", "bf16", "zzz"]
