"""The file of co-located jobs: what it says, and every mistake in it as one sentence with the fix."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest

from precision_time.cli.main import main
from precision_time.errors import DataError, JobError
from precision_time.ingest.stagger.jobs_file import jobs_of, read_jobs, size_in_bytes

WHOLE = r"""
data: pictures
samples: 600
bytes_per_sample: 100kB
cache: {reset: page_cache, capacity: 2GiB, policy: lru, warm: {command: "cat data/*"}}
jobs:
  - {name: resnet, run: "python:train.py:train", arguments: {root: "http://localhost", batch-size: 4}, epochs: 3}
  - name: vit
    run: "python train.py --limit {samples} --skip {first} --epochs {epochs}"
    progress: 'samples=(?P<samples>\d+)'
    epochs: 5
    data: {pictures: 0.5, own: 0.5}
calibration: {samples: 120, window-s: 5}
order: same
"""


def test_every_word_arrives(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def train(progress): ...\n")
    (tmp_path / "jobs.yaml").write_text(WHOLE)
    file = read_jobs(tmp_path / "jobs.yaml")
    resnet, vit = file.jobs
    assert resnet.python_function == ("train.py", "train")
    assert resnet.arguments == {"root": "http://localhost", "batch-size": 4}
    assert (resnet.epochs, vit.epochs, file.samples_of(vit)) == (3, 5, 600)
    assert file.parts_of(resnet) == {"pictures": 1.0}
    assert file.parts_of(vit) == {"pictures": 0.5, "own": 0.5}
    assert file.cache.capacity == 2 * 1024**3
    assert file.cache.warm == "cat data/*"
    assert (file.calibration.samples, file.calibration.window_s) == (120, 5.0)
    assert file.same_order
    assert file.takes_subsets
    assert file.folder == tmp_path


def job(**words: Any) -> dict[str, Any]:
    return {"run": "train {samples} {first} {epochs}", "samples": 10, **words}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"job": []}, "unknown field 'job' in the file; nearest: jobs"),
        ({}, "jobs must be a list of at least one job"),
        ({"jobs": []}, "jobs must be a list of at least one job"),
        ({"jobs": [3]}, "jobs[0] must be a mapping, not 3"),
        ({"jobs": [{"samples": 3}]}, "jobs[0] has no run; add run: COMMAND"),
        ({"jobs": [{"run": "x"}]}, "jobs[0] has no samples; add samples: 600"),
        ({"jobs": [job(epoch=3)]}, "unknown field 'epoch' in jobs[0]; nearest: epochs"),
        ({"jobs": [job(samples=0)]}, "jobs[0].samples must be a whole number of samples from 1 to 1e15, not 0"),
        ({"jobs": [job(epochs=1.5)]}, "jobs[0].epochs must be a whole number"),
        ({"jobs": [job(name="a"), job(name="a")]}, "two jobs are called 'a'"),
        ({"jobs": [job(run="python:train.py")]}, "has no file and function; write python:train.py:train"),
        ({"jobs": [job(run="python:none.py:train")]}, "names the file 'none.py', which is not there"),
        ({"jobs": [job(run="train {sample}")]}, "placeholder {sample}; nearest: samples"),
        ({"jobs": [job(run="train {samples")]}, "unpaired brace"),
        ({"jobs": [job(arguments={"a": 1})]}, "arguments go with run: python:FILE:FUNCTION"),
        ({"jobs": [job(arguments=[1])]}, "jobs[0].arguments must be a mapping"),
        ({"jobs": [job(progress="(")]}, "is no regular expression"),
        ({"jobs": [job(progress="step (\\d+)")]}, "names 0 of the groups samples, batch, more"),
        ({"jobs": [job(progress="(?P<batch>\\d+)")]}, "batch_size is missing"),
        ({"jobs": [job(data={"a": 0.5})]}, "shares that add up to 0.5"),
        ({"jobs": [job(data=[])]}, "must be a name, or names with shares"),
        ({"jobs": [job()], "samples": "many"}, "samples must be a whole number of samples from 1 to 1e15, not 'many'"),
        ({"jobs": [job(name="a/b")]}, "jobs[0].name 'a/b' cannot be part of a file's name"),
        ({"jobs": [job(name="..")]}, "jobs[0].name '..' cannot be part of a file's name"),
        ({"jobs": [job(run="train {samples!z}")]}, "jobs[0].run 'train {samples!z}' asks for no number"),
        ({"jobs": [job(run="train {samples:q}")]}, "jobs[0].run 'train {samples:q}' asks for no number"),
        ({"jobs": [job(arguments={"a": {int: 2}})]}, "jobs[0].arguments.a has the key <class 'int'>"),
        ({"jobs": [job(arguments={"a": date(2024, 1, 1)})]}, "jobs[0].arguments.a is datetime.date(2024, 1, 1) (date)"),
        ({"jobs": [job()], "order": "sam"}, "order 'sam' is unknown; nearest: same"),
        ({"jobs": [job()], "cache": 3}, "cache must be a mapping"),
        ({"jobs": [job()], "cache": {"rest": 1}}, "unknown field 'rest' in cache; nearest: reset"),
        ({"jobs": [job()], "cache": {"reset": "pagecache"}}, "cache.reset 'pagecache' is unknown; nearest: page_cache"),
        ({"jobs": [job()], "cache": {"reset": {"folders": "x"}}}, "cache: unknown field 'folders' in reset; nearest"),
        ({"jobs": [job()], "cache": {"capacity": "2 Gigs"}}, "is no size; give bytes or a unit, for example 2GiB"),
        ({"jobs": [job()], "cache": {"capacity": 10}}, "cache.capacity needs bytes_per_sample of job job-1"),
        ({"jobs": [job()], "cache": {"policy": "lfu"}}, "cache.policy 'lfu' is unknown; nearest: lru"),
        ({"jobs": [job()], "calibration": {"windows": 3}}, "unknown field 'windows' in calibration; nearest: window_s"),
    ],
)
def test_every_mistake_names_field_and_fix(content: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(JobError) as caught:
        jobs_of(content, tmp_path)
    assert says in str(caught.value)


def test_a_cache_that_is_no_cache_is_not_emptied(tmp_path: Path) -> None:
    for name in ("code", "pictures", "cache"):
        (tmp_path / name).mkdir()
    (tmp_path / "code" / "train.py").write_text("def train(progress): ...\n")
    (tmp_path / "pictures" / "index.json").write_text("{}")
    for folder, says in (
        ("code", "holds train.py of job 'job-1', and would be emptied"),
        (".", "holds train.py of job 'job-1', and would be emptied"),
        ("pictures", "is a data set, for it has an index.json, and would be emptied"),
        ("code/train.py", "is a file; name the folder of the cache"),
    ):
        with pytest.raises(JobError) as caught:
            jobs_of({"jobs": [job(run="python:code/train.py:train")], "cache": {"reset": {"folder": folder}}}, tmp_path)
        assert says in str(caught.value)
    jobs_of({"jobs": [job(run="python:code/train.py:train")], "cache": {"reset": {"folder": "cache"}}}, tmp_path)


def test_sizes() -> None:
    assert [size_in_bytes("x", given) for given in ("2GiB", "1.5 kB", "3MB", "7", 9)] == [2 * 2**30, 1500, 3e6, 7, 9]


def test_the_file_is_named_in_the_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "jobs.yaml"
    path.write_text("jobs: [{run: train, samples: 10, epoch: 3}]\n")
    empty = tmp_path / "empty.yaml"
    empty.touch()
    with pytest.raises(DataError, match=r"jobs.yaml'.*unknown field 'epoch'"):
        read_jobs(path)
    for words, says in (
        ([str(path)], "unknown field 'epoch' in jobs[0]; nearest: epochs"),
        ([], "no jobs file is given"),
        (["none.yaml"], "jobs file 'none.yaml' cannot be read: no such file"),
        ([str(path), "--points", "1"], "flag --points is '1'"),
        ([str(path), "--offset", "-3"], "flag --offset is '-3'"),
        ([str(path), "--order", "bth"], "flag --order 'bth' is unknown; nearest: both"),
        ([str(path), "--plot", "a.gif"], "end it in .png or .svg"),
        ([str(path), "--plot", "none/a.png"], "--plot 'none/a.png': there is no folder 'none'; make it first"),
        ([str(empty)], "holds nothing; write one mapping of fields, for example samples: 600"),
    ):
        assert main(["stagger", *words]) == 2
        printed = capsys.readouterr()
        assert says in printed.err
        assert printed.err.count("\n") == 1
        assert printed.out == ""


def test_nothing_is_measured_of_one_job_or_into_the_cache(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, cache = tmp_path / "jobs.yaml", tmp_path / "cache"
    one = "cache: {reset: {folder: cache}}\njobs: [{run: train, samples: 10}"
    for content, folder, says in (
        (one + "]", tmp_path / "out", "has one job, and staggering needs two; list at least two"),
        (one + ", {run: train, samples: 10}]", cache / "out", "lies in cache.reset.folder, which is emptied"),
        (one + ", {run: train, samples: 10}]", cache, "lies in cache.reset.folder, which is emptied"),
    ):
        path.write_text(content)
        assert main(["stagger", str(path), "--folder", str(folder)]) == 2
        printed = capsys.readouterr()
        assert says in printed.err
        assert printed.err.count("\n") == 1
        assert not folder.exists()
