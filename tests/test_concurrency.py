"""Threads and processes give the answers of one, also at first use, when all fill the caches at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import precision_time

SOURCE = str(Path(precision_time.__file__).parents[1])
SCRIPT = """
import hashlib, json, multiprocessing, random, sys, threading
from precision_time.job import Job
from precision_time.prediction import predict

MODELS = ("resnet50", "gpt2", "bert-base", "dlrm-small", "mixtral-8x7b", "vit-b-16", "gpt", "llama3-8b")
GPUS = ("a100-80gb-sxm", "h100-80gb-sxm", "v100-32gb-sxm", "l4")
LAYOUTS = ("dp", "fsdp", "zero1")

def job(index):
    chance = random.Random(index)
    shape = {"layers": 2 + index % 5, "hidden": 512, "heads": 8} if MODELS[index % 8] == "gpt" else {}
    return Job(MODELS[index % 8], model_config=shape, gpu=chance.choice(GPUS), gpus=chance.choice((1, 2, 8, 16)),
               precision=chance.choice(("fp32", "amp-fp16", "fp16")), layout=chance.choice(LAYOUTS),
               batch_size=chance.choice((1, 4, 7)), grad_accum=chance.choice((1, 3)))

def answer(index):
    text = json.dumps(predict(job(index)).to_dict(), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()

def some(indices):
    return [[index, answer(index)] for index in indices]

def shuffled(count, seed):
    indices = list(range(count))
    random.Random(seed).shuffle(indices)
    return indices

def main(how, count):
    if how == "one":
        found = some(range(count))
    elif how == "threads":
        gate, found, errors = threading.Barrier(50), [], []
        def work(seed):
            gate.wait()
            try:
                found.extend(some(shuffled(count, seed)[: 2 + count // 8]))
            except BaseException as error:
                errors.append(repr(error))
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors, errors
    else:
        if how == "fork":
            some(range(0, count, 3))
        with multiprocessing.get_context(how).Pool(4) as pool:
            parts = pool.map(some, [shuffled(count, seed)[: count // 2] for seed in range(4)])
        found = [pair for part in parts for pair in part]
    print(json.dumps(found))

if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
"""


def answers(how: str, folder: Path, count: int) -> dict[int, set[str]]:
    """By number of the job: the digests of all its answers in a fresh process."""
    script = folder / "answers.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    done = subprocess.run(
        [sys.executable, str(script), how, str(count)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[int, set[str]] = {}
    for index, digest in json.loads(done.stdout):
        found.setdefault(index, set()).add(digest)
    return found


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> dict[int, set[str]]:
    found = answers("one", tmp_path_factory.mktemp("one"), 32)
    assert len(set.union(*found.values())) > 24, "the jobs do not differ"
    return found


@pytest.mark.parametrize("how", ["threads", "spawn", "fork"])
def test_many_give_the_answers_of_one(how: str, one: dict[int, set[str]], tmp_path: Path) -> None:
    if how == "fork" and not hasattr(os, "fork"):
        pytest.skip("no fork here")
    found = answers(how, tmp_path, 32)
    assert len(found) > 20
    assert {index: digests for index, digests in found.items() if digests != one[index]} == {}
