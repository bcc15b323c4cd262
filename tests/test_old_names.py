"""Former names of flags and values: accepted, with a note."""

from __future__ import annotations

import pytest

from precision_time.cli.old_names import OLD_FLAGS, OLD_VALUES, with_present_names
from precision_time.cli.parser import build_parser, flags_of, parse


def test_former_names_are_replaced_with_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    assert with_present_names(["fit", "--shared", "a", "--report"]) == ["fit", "--tables", "a", "--report"]
    assert capsys.readouterr().err == "note: flag --shared is now --tables\n"
    assert with_present_names(["fit", "--shared=a=b"]) == ["fit", "--tables=a=b"]
    assert with_present_names(["predict", "line", "--predictor", "line"]) == [
        "predict",
        "line",
        "--predictor",
        "simulator",
    ]
    assert with_present_names(["predict", "--predictor=line"]) == ["predict", "--predictor=simulator"]
    assert "note: --predictor line is now --predictor simulator\n" in capsys.readouterr().err


def test_present_names_stay_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["predict", "resnet50", "--predictor", "boosting", "--model-config", "a=b;c=d", "--quick", "line", ""]
    assert with_present_names(words) == words
    assert capsys.readouterr().err == ""


def test_every_present_name_exists() -> None:
    parser = build_parser()
    assert all(flag in {f for c in ("fit", "train") for f in flags_of(parser, c)} for flag in OLD_FLAGS.values())
    assert all(flag in flags_of(parser, "predict") for flag, _ in OLD_VALUES)
    assert parse(["train", "--shared", "x"]).tables == "x"
