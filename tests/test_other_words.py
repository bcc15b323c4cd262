"""Words of other tools in a job: each is answered with words that the program takes."""

from __future__ import annotations

import pytest

from precision_time.errors import JobError
from precision_time.field_table import field_table
from precision_time.job import other_words
from precision_time.job.job import Job


def test_every_place_is_a_field() -> None:
    fields = {(field.section, field.name): field for field in field_table()}
    for word, place in other_words._PLACES.items():
        name, _, value = place.partition("=")
        section, _, key = name.partition(".")
        holder = (section, key) if key else ("job", section) if ("job", section) in fields else ("run", section)
        assert holder in fields, word
        if value:
            fields[holder].type(section, value)


@pytest.mark.parametrize("section", ["data", "input", "layout"])
def test_keys_of_sections_are_known(section: str) -> None:
    rare = {"nodes", "edges", "fields"}  # of graph networks and recommenders; `nodes` is a field of every job
    plain = {field.name for field in field_table() if field.section in ("job", "run")}
    for field in field_table():
        if field.section == section and field.name not in plain | rare:
            assert other_words.where(field.name), field.name


def test_a_job_says_where_a_word_goes() -> None:
    with pytest.raises(JobError, match=r"unknown field 'seq_len' in the job; write input: \{seq_len: 512\}"):
        Job.from_dict({"model": "gpt2", "seq_len": 512})
    with pytest.raises(JobError, match="unknown field 'num-gpus' in the job; write gpus: 8"):
        Job.from_dict({"model": "gpt2", "num-gpus": 8})
    with pytest.raises(JobError, match="nearest: batch_size"):
        Job.from_dict({"model": "gpt2", "batchsize": 8})


def test_only_short_plain_values_are_repeated() -> None:
    assert other_words.where("seq_len", [512]) == "write input: {seq_len: VALUE}"
    assert other_words.where("seq_len", "5; rm", flag=True) == "write --input seq_len=VALUE"
    assert other_words.where("tp", "8", flag=True) == "write --layout tp=8"
    assert other_words.where("unheard_of") == ""
