"""Plain data-parallel jobs, against what the former simulator of these jobs alone predicted."""

from __future__ import annotations

import pytest

from golden.one_simulator import jobs, on_file, seconds

SOME = ("resnet50", "quartznet-15x5", "bert-large", "t5-base", "ncf", "hifigan", "mpt-125m", "llama3-8b")


def check(names: tuple[str, ...] | None) -> None:
    known = on_file()
    for name, job in jobs():
        if name in known and (names is None or name.split()[0] in names):
            former, ratio = known[name]
            now = seconds(job)
            assert (now is None) == (ratio is None), name
            assert now is None or now / former == pytest.approx(ratio, abs=1e-3), name


def test_predictions_differ_from_the_former_ones_by_what_is_recorded() -> None:
    check(SOME)


@pytest.mark.slow
def test_predictions_differ_from_the_former_ones_by_what_is_recorded_for_every_model() -> None:
    check(None)
