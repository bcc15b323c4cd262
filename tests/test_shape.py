"""model_config over a named model: derived shapes by hand, and one sentence for what cannot be."""

from __future__ import annotations

import pytest

from precision_time.errors import JobError
from precision_time.zoo.catalog import ENTRIES
from precision_time.zoo.shape import with_overrides

GPT = ENTRIES["gpt"]
LLAMA = ENTRIES["llama3-8b"]


def test_sizes_that_follow_from_the_given_ones() -> None:
    config = with_overrides(GPT, {"layers": 2, "hidden": 1024, "heads": 16})
    assert (config["kv_heads"], config["head_dim"], config["ffn"]) == (16, 64, 4096)


def test_what_is_given_stays_and_grouped_heads_stay_grouped() -> None:
    config = with_overrides(LLAMA, {"hidden": 2048, "heads": 16, "ffn": 5632})
    assert (config["kv_heads"], config["head_dim"], config["ffn"]) == (8, 128, 5632)


def test_nothing_given_changes_nothing() -> None:
    for entry in ENTRIES.values():
        assert with_overrides(entry, {}) == dict(entry.config)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ({"layrs": 2}, "model_config 'layrs' is not known to gpt; nearest: layers"),
        ({"hidden": 100, "heads": 3}, "hidden=100 of gpt is not a multiple of heads=3; use hidden=99"),
        ({"kv_heads": 5}, "kv_heads=5 of gpt does not divide heads=12"),
        ({"heads": 0}, "model_config.heads must be a whole number of heads from 1"),
    ],
)
def test_impossible_shapes_are_one_sentence(overrides: dict[str, int], sentence: str) -> None:
    with pytest.raises(JobError, match=sentence):
        with_overrides(GPT, overrides)
