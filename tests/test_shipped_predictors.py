"""Predictors that ship trained: they answer from the core's libraries alone, and say where they come from."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from precision_time.cli.main import main
from precision_time.errors import PredictorError
from precision_time.fit.cases import is_data_parallel
from precision_time.job import Job
from precision_time.measurements.repository import data_folder
from precision_time.predictors.published import all_published
from precision_time.predictors.store import SHIPPED, UNTRAINED, card_of, load_trained, train
from precision_time.shipped import ROOT

NAMES = ("boosting", "boosting-residual", "additive", "predictddl", "ernest")
ASKED = ["predict", "resnet50", "--gpu", "a100-80gb-sxm", "--gpus", "8", "--precision", "amp-fp16"]
MEASURED_S = 0.12
"""NVIDIA's DeepLearningExamples: 8 A100 at batch 256 take 0.123 s a step."""
EXTRAS = "torch,scipy,pandas,sklearn,lightgbm,cvxpy,torch_geometric,matplotlib,pyarrow"
BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in sys.argv[1].split(","):
            raise ImportError(f"{name} is no library of the core")
sys.meta_path.insert(0, Blocked())
from precision_time.cli.main import main
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize("name", NAMES)
def test_it_answers_from_the_core_alone(name: str) -> None:
    found = subprocess.run(
        [sys.executable, "-c", BLOCKED, EXTRAS, *ASKED, "--predictor", name, "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    answer = json.loads(found.stdout)
    assert answer["p10_s"] < answer["seconds"] < answer["p90_s"]
    assert MEASURED_S / 2 < answer["seconds"] < MEASURED_S * 2
    assert answer["job"]["batch_size"] == 256
    if name not in UNTRAINED:
        assert any("held out" in note for note in answer["notes"])


@pytest.mark.parametrize("name", sorted({*NAMES} - {*UNTRAINED}))
def test_its_card_says_what_it_was_trained_on(name: str) -> None:
    card = card_of(name, None)
    assert card["learned_from"] == "published"
    assert card["rows"] > 200
    assert all(0.0 < error < 1.0 for error in card["held_out"].values())
    assert sum(path.stat().st_size for path in (ROOT / SHIPPED / name).iterdir()) < 3 << 20


@pytest.mark.parametrize(
    ("model", "words", "refusal"),
    [
        ("bert-base", [], r"dataset type 'squad' has no trained predictor, only imagenet; measure runs"),
        ("resnet50", ["--dataset", "cifar10", "--epochs", "1"], r"dataset type 'cifar10' has no trained predictor"),
        ("resnet50", ["--layout", "fsdp"], r"layout fsdp is not plain data parallelism"),
        ("resnet50", ["--gpu", "my-own-gpu"], r"my-own-gpu"),
    ],
)
def test_predictddl_refuses_what_it_was_not_trained_on(
    model: str, words: list[str], refusal: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["predict", model, "--gpu", "a100-80gb-sxm", "--gpus", "8", "--predictor", "predictddl", *words]
    assert main(asked) == 2
    said = capsys.readouterr().err
    assert len(said.strip().splitlines()) == 1
    assert re.search(refusal, said)


@pytest.mark.parametrize(
    ("words", "note"),
    [
        (["--gpu", "b200-180gb-sxm"], "No training run was on b200-180gb-sxm"),
        (["--framework", "megatron"], "No training run was in megatron"),
        (["--precision", "amp-bf16"], "No training run was in amp-bf16"),
        (["--gpus", "8"], "training rows are of several GPUs"),
    ],
)
def test_predictddl_flags_what_no_run_was_in_by_a_wider_interval(
    words: list[str], note: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["predict", "resnet50", "--predictor", "predictddl", "--json", "--batch-size", "64"]
    known = ["--gpu", "a100-80gb-sxm", "--gpus", "1", "--precision", "amp-fp16"]
    widths = []
    for more in ([], words):
        given = dict(zip(known[::2], known[1::2], strict=True)) | dict(zip(more[::2], more[1::2], strict=True))
        assert main([*asked, *(word for pair in given.items() for word in pair)]) == 0
        answer = json.loads(capsys.readouterr().out)
        widths.append(answer["p90_s"] / answer["p10_s"])
        assert any(note in each for each in answer["notes"]) == bool(more)
    assert widths[1] > widths[0]


def test_ernest_is_fitted_to_the_users_own_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Seconds 0.1 + 0.001 x samples of a rank, which no published row of ResNet-50 has."""
    runs = tmp_path / "runs.csv"
    header = "id,source,trust,framework,model,input,gpu,gpus,precision,batch_size,optimizer,step_time_s"
    rows = [
        f"{n}-{b},mine,A,pytorch,resnet50,image_size=224,a100-80gb-sxm,{n},amp-fp16,{b},sgd,{0.1 + 0.001 * b}"
        for n, b in ((1, 32), (1, 64), (2, 64))
    ]
    runs.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    words = ["predict", "resnet50", "--gpu", "a100-80gb-sxm", "--gpus", "4", "--precision", "amp-fp16"]
    assert main([*words, "--batch-size", "128", "--predictor", "ernest", "--anchors", str(runs), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["seconds"] == pytest.approx(0.228, rel=1e-6)
    assert "fitted to 3 measured jobs of anchors, not to published ones" in answer["notes"]


def test_training_on_rows_of_a_user(tmp_path: Path) -> None:
    with pytest.raises(PredictorError, match=r"rows 'absent.csv' is no file"):
        train(["boosting"], tmp_path, rows=["absent.csv"])
    with pytest.raises(PredictorError, match="train on one of them"):
        train(["boosting"], tmp_path, rows=["a.csv"], runs="b")
    with pytest.raises(PredictorError, match="'additive' needs no training"):
        train(["additive"], tmp_path)
    published = data_folder()
    assert published is not None
    card = train(["ernest"], tmp_path, rows=[str(published / "published" / "measurements.csv")])["ernest"]
    assert card["learned_from"] == "rows"
    again = load_trained("ernest", tmp_path)
    job = Job("resnet50", gpu="a100-80gb-sxm", gpus=8, precision="amp-fp16", batch_size=256)
    assert again.predict(job).seconds == pytest.approx(MEASURED_S, rel=0.2)


@pytest.mark.slow
def test_all_published_rows_are_known_without_tracing() -> None:
    data = data_folder()
    assert data is not None
    found = all_published(data)
    assert len(found) > 4000
    traced = [each for each in found if ":" in each.job.model]
    assert all(each.facts is not None for each in traced)
    assert all(is_data_parallel(each.job) for each in traced)
