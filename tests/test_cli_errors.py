"""The command line: its flags, what it prints, and every mistake as one line with exit code 2."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest

from fakes import fake
from precision_time.cli.main import main
from precision_time.cli.parser import build_parser, flags_of
from precision_time.errors import MissingPeakError
from precision_time.job import Job
from precision_time.zoo.catalog import ENTRIES

JOB_FLAGS = [
    "--model", "--model-config", "--lora", "--quantized", "--loss",
    "--input", "--precision", "--batch-size", "--grad-accum", "--gpu",
    "--gpus", "--node", "--nodes", "--system", "--device", "--layout", "--optimizer", "--optimizer-impl",
    "--clip-norm", "--ema", "--loss-scale", "--memory-format", "--attention", "--recompute", "--recompute-layers",
    "--recompute-method", "--offload", "--offload-ratio", "--reference",
    "--execution", "--framework", "--torch",
    "--no-sync", "--communication-dtype", "--anchors", "--data", "--epochs", "--steps", "--samples", "--dataset",
    "--dataset-size", "--steps-per-epoch", "--evaluation-samples", "--evaluation-every-epochs",
    "--evaluation-every-steps", "--evaluation-s", "--checkpoint-every-steps", "--checkpoint-every-s", "--checkpoint-s",
    "--checkpoint-storage", "--checkpoint-async", "--start-up-s", "--compile-s", "--queue-s", "--gpu-hours-per-failure",
    "--failure-prior", "--failures-seen", "--failures-gpu-hours", "--restart-s", "--price-per-gpu-hour",
    "--price",
]  # fmt: skip
"""Growth of this list is a deliberate edit, here and in docs/job.md."""
SERVER = ["--server", "--cluster-name"]
ON_TOP = ["--anchor", "--import", "--cluster", "--help", "--json"]
EVALUATE_FLAGS = [
    "--help", "--html", "--csv", "--anchors", "--blind", "--workers", "--dask", "--worst", "--trust", "--precision",
    "--gpu", "--model", "--framework", "--allow-code", "--json",
]  # fmt: skip
"""Those of docs/evaluate.md."""
MACHINE_FLAGS = ["--budget", "--on", "--ranks", "--threads", "--help", "--json"]
NOT_VERIFIED = [
    "--anchors", "--data", "--gpu", "--node", "--nodes", "--system", "--epochs", "--samples", "--dataset",
    "--dataset-size", "--steps-per-epoch", "--evaluation-samples", "--evaluation-every-epochs",
    "--evaluation-every-steps", "--evaluation-s", "--checkpoint-every-steps", "--checkpoint-every-s", "--checkpoint-s",
    "--checkpoint-storage", "--checkpoint-async", "--start-up-s", "--compile-s", "--queue-s", "--gpu-hours-per-failure",
    "--failure-prior", "--failures-seen", "--failures-gpu-hours", "--restart-s", "--price-per-gpu-hour",
    "--price",
]  # fmt: skip
VERIFY_FLAGS = [*MACHINE_FLAGS, *(f for f in JOB_FLAGS if f not in NOT_VERIFIED), "--save", "--runs"]
CALIBRATE_FLAGS = [
    *(f for f in VERIFY_FLAGS if f not in ("--gpus", "--device", "--save", "--runs", "--steps")),
    "--output",
    "--fresh",
    "--storage",
]
MEASURE_FLAGS = [*(f for f in CALIBRATE_FLAGS if f not in ("--fresh", "--storage")), "--only"]
"""Those of docs/measure.md."""


@pytest.fixture(autouse=True)
def _fake_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def predict(job: Job) -> object:
        if job.precision == "fp8":
            raise MissingPeakError("this GPU has no fp8 peak; use precision bf16.")
        if job.precision == "fp64":
            raise KeyboardInterrupt
        return fake(job)

    module = types.ModuleType("precision_time.prediction")
    module.predict = predict  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "precision_time.prediction", module)


def test_the_flags_are_frozen() -> None:
    parser = build_parser()
    assert flags_of(parser, None) == ["--help", "--version", "--completion"]
    assert sorted(flags_of(parser, "predict")) == sorted([
        *JOB_FLAGS, *ON_TOP, "--allow-code", "--trace", "--largest-batch", "--predictor", "--trained",
        "--quantile", "--plot", "--global-batch-size", *SERVER,
    ])  # fmt: skip
    shared = ["--workers", "--dask"]
    assert sorted(flags_of(parser, "compare")) == sorted([
        *JOB_FLAGS, *ON_TOP, *shared, "--allow-code", "--plot", "--sort", "--best", "--global-batch-size",
        "--largest-batch", "--quantile", *SERVER,
    ])  # fmt: skip
    placed = ("--node", "--nodes", "--system", "--price", "--price-per-gpu-hour")
    assert sorted(flags_of(parser, "plan")) == sorted([
        *(f for f in JOB_FLAGS if f not in placed), *(f for f in ON_TOP if f != "--cluster"), *shared, "--allow-code",
        "--plot", "--deadline", "--budget", "--confidence", "--objective", "--provider", "--spot", "--pue",
        "--grid", "--schedule", "--reserved",
        "--global-batch-size", "--quantile", *SERVER,
    ])  # fmt: skip
    ranked = [f for f in JOB_FLAGS if f not in ("--layout", "--recompute-layers")]
    assert sorted(flags_of(parser, "layouts")) == sorted(
        [*ranked, *ON_TOP, *shared, "--allow-code", "--top", "--best", "--global-batch-size", "--largest-batch",
         "--quantile"]
    )  # fmt: skip
    assert sorted(flags_of(parser, "walltime")) == sorted(
        [*JOB_FLAGS, *ON_TOP, "--allow-code", "--confidence", "--format", "--global-batch-size", *SERVER]
    )
    for limits in ("slurm", "kubernetes"):
        assert sorted(flags_of(parser, limits)) == sorted(
            [*JOB_FLAGS, *ON_TOP, "--allow-code", "--confidence", "--rewrite", "--global-batch-size"]
        )
    assert flags_of(parser, "serve") == [
        "--help", "--host", "--port", "--workers", "--database", "--tokens", "--role", "--allow-host", "--quiet",
        "--json",
    ]  # fmt: skip
    kept = ("--model", "--input", "--precision", "--batch-size", "--memory-format", "--attention")
    assert sorted(flags_of(parser, "capture")) == sorted(["--help", "--json", "--output", "--allow-code", *kept])
    assert flags_of(parser, "evaluate") == EVALUATE_FLAGS
    assert sorted(flags_of(parser, "stagger")) == sorted([
        "--help", "--json", "--run", "--order", "--offset", "--folder", "--fresh", "--plot", "--points",
        "--allow-code", "--empty-cache",
    ])  # fmt: skip
    assert flags_of(parser, "search") == [
        "--help", "--state", "--result", "--run", "--most-runs", "--objective", "--deadline", "--setting", "--seed",
        "--precision", "--batch-size", "--gpu", "--gpus", "--price", "--allow-code", "--json",
    ]  # fmt: skip
    assert sorted(flags_of(parser, "calibrate")) == sorted([*CALIBRATE_FLAGS, "--allow-code"])
    assert sorted(flags_of(parser, "measure")) == sorted([*MEASURE_FLAGS, "--allow-code"])
    assert sorted(flags_of(parser, "runs")) == sorted([*MACHINE_FLAGS, "--output", "--only", "--quick"])
    assert sorted(flags_of(parser, "verify")) == sorted([*VERIFY_FLAGS, "--allow-code"])
    assert flags_of(parser, "fit") == ["--help", "--tables", "--measured", "--report", "--json"]
    assert sorted(flags_of(parser, "train")) == sorted(
        ["--help", "--tables", "--real-runs", "--rows", "--output", "--json", "--allow-code"]
    )
    assert flags_of(parser, "zoo") == ["--help", "--json"]
    assert flags_of(parser, "gpus") == ["--help", "--device", "--prices", "--json"]


def test_predict_prints_the_estimate(capsys: pytest.CaptureFixture[str]) -> None:
    command = "predict resnet50 --gpu a100-80gb-sxm --gpus 8 --precision mixed --batch-size 256 --epochs 90"
    assert main([*command.split(), "--dataset", "imagenet"]) == 0
    out = capsys.readouterr().out
    assert out == "fake estimate of resnet50 · amp-fp16 · 8 x a100-80gb-sxm · batch 256\n"


def test_job_file_with_flags_on_top(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("model: bert-large\ninput: {seq_len: 128}\ngpus: 8\nrun: {epochs: 3, dataset: squad}\n")
    arguments = ["predict", str(path), "--gpus=16", "--steps", "50", "--input", "tgt_len=64", "--json"]
    assert main(arguments) == 0
    job = json.loads(capsys.readouterr().out)["job"]
    assert job["gpus"] == 16
    assert job["run"] == {"steps": 50, "dataset": "squad"}
    assert job["input"] == {"seq_len": 128, "tgt_len": 64}


def test_trace_is_written_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "resnet50", "--trace", str(tmp_path / "out.json")]) == 0
    assert json.loads((tmp_path / "out.json").read_text()) == {"traceEvents": []}
    assert "ui.perfetto.dev" in capsys.readouterr().err
    assert main(["predict", "resnet50", "--trace", str(tmp_path / "no" / "out.json")]) == 2
    assert "make it first" in capsys.readouterr().err


def test_a_trace_never_replaces_the_job_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.json"
    path.write_text('{"model": "resnet50"}')
    assert main(["predict", str(path), "--trace", str(path)]) == 2
    assert "is an input of this command" in capsys.readouterr().err
    assert path.read_text() == '{"model": "resnet50"}'


def test_compare_crosses_lists(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = "compare resnet50 --precision fp32,amp-fp16 --precision fp8 --gpus 1,8 --batch-size 32 --json"
    assert main(arguments.split()) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["job"]["gpus"], row["job"]["precision"]) for row in rows] == [
        (n, p) for n in (1, 8) for p in ("fp32", "amp-fp16", "fp8")
    ]
    assert [row["error"] is None for row in rows] == [True, True, False] * 2


def test_compare_checks_a_layout_against_the_gpus_that_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = "compare gpt2 --layout tp=8,sp=1 --gpus 16,32 --precision bf16 --json"
    assert main(arguments.split()) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["job"]["layout"] for row in rows] == ["tp=8,dp=2,sp=1", "tp=8,dp=4,sp=1"]


def test_compare_alone_crosses_four_precisions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "resnet50"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ("fp32", "tf32", "amp-fp16", "amp-bf16"))
    assert main(["compare", "resnet50", "vgg16", "--gpus", "1,2"]) == 0
    assert capsys.readouterr().out.count("no estimate") == 0


def test_compare_in_which_nothing_can_be_predicted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "resnet50", "--precision", "fp8"]) == 2
    assert capsys.readouterr().err == "precision-time: error: this GPU has no fp8 peak; use precision bf16.\n"


def test_each_stage_of_a_fit_is_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters are read once a process: anchors fitted beside old step factors would belong to no version."""
    from types import SimpleNamespace

    from precision_time.cli import fitting

    data = tmp_path / "data"
    tables = data / "published"
    tables.mkdir(parents=True)
    for name in (
        "measurements.csv",
        "measurements_llm.csv",
        "measurements_llm_more.csv",
        "internevo.csv",
        "run_parts.csv",
    ):
        (tables / name).write_text("", encoding="utf-8")
    (data / "traced").mkdir()
    for name in ("works.parquet", "rows.parquet", "brackets.parquet"):
        (data / "traced" / name).write_text("", encoding="utf-8")
    ran: list[list[str]] = []
    ends = iter([0, 0, 0, 0, 0, 0, 1])

    def start(*command: str, **_: object) -> SimpleNamespace:
        ran.append(list(command))
        return SimpleNamespace(returncode=next(ends), communicate=lambda: (b"errors\n", None))

    monkeypatch.setattr(fitting, "start_module", start)
    monkeypatch.setattr(fitting, "end_process", lambda process: None)
    assert main(["fit", "--report", "--tables", str(tmp_path)]) == 0
    stages = ("kernel_factors", "steps", "anchors", "layouts", "run_parts", "memory")
    assert ran == [["precision_time.fit", stage, "--tables", str(data), "--report"] for stage in stages]
    assert main(["fit", "steps", "anchors", "--tables", str(data)]) == 2
    assert len(ran) == 7, "a stage that fails ends the fit"


def test_compare_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    assert main(["compare", "resnet50", "--plot", str(tmp_path / "out.png")]) == 0
    assert (tmp_path / "out.png").stat().st_size > 1000
    assert "picture written" in capsys.readouterr().err


WRONG = [
    (
        "predct resnet50",
        "command 'predct' is unknown; nearest: predict; use one of predict, compare, plan, layouts, ",
    ),
    ("predict", "no model is given"),
    ("compare", "no model is given"),
    ("predict resnet50 --gpuss 8", "flag '--gpuss' is unknown; nearest: --gpus"),
    ("predict resnet50 --batchsize=8", "flag '--batchsize' is unknown; nearest: --batch-size"),
    ("predict gpt2 --seq-length 512 --fp16", "flag '--seq-length' is unknown; write --input seq_len=512; see "),
    ("compare gpt2 --fsdp --gpus 8", "flag '--fsdp' is unknown; write --layout fsdp; see "),
    ("predict gpt2 --dtype=bf16", "flag '--dtype' is unknown; give --precision, one of fp64, fp32, "),
    ("predict gpt2 --lr 0.1", "flag '--lr' is unknown; leave it out, it does not change how long a step takes"),
    ("predict resnet50 --prec fp32", "flag '--prec' is unknown; nearest: "),
    ("predict resnet50 -x", "flag '-x' is unknown"),
    ("predict resnet50 vgg16", "argument 'vgg16' is one too many"),
    ("predict resnet50 --gpus", "flag --gpus needs a value"),
    ("predict resnet50 --gpus=", "flag --gpus is empty"),
    ("predict resnet50 --gpus eight", "gpus must be a whole number of GPUs from 1 to 1,048,576, not 'eight'"),
    ("predict resnet50 --gpus -4", "gpus must be a whole number of GPUs from 1 to 1,048,576, not '-4'"),
    ("predict resnet50 --batch-size 256k", "write the number out, for example 256000"),
    ("predict resnet50 --precision fp17", "precision 'fp17' is unknown; nearest: "),
    ("predict resnet50 --precision fp8", "this GPU has no fp8 peak"),
    ("predict resnet50 --model vgg16", "the model is given twice"),
    ("predict resnet50 --layout fsbp", "layout 'fsbp' is unknown; nearest: fsdp"),
    ("predict resnet50 --layout tp=8,dp=3 --gpus 16", "= 24 does not make up gpus 16; set dp to 2 or gpus to 24"),
    ("predict --import none.sh", "file 'none.sh' cannot be read: no such file"),
    ("compare --import none.toml", "file 'none.toml' cannot be read: no such file"),
    ("verify resnet50 --layout fsdp", "layout fsdp cannot be trained here"),
    ("predict resnet50 --dataset imagnet", "nearest: imagenet"),
    ("predict resnet50 --epochs 3 --steps 4", "epochs and steps; keep one"),
    ("predict none.yaml", "job file 'none.yaml' cannot be read: no such file"),
    ("predict none.json", "job file 'none.json' cannot be read"),
    ("compare resnet50 --precision ,", "flag --precision is empty"),
    ("compare resnet50 --gpus 1,x", "gpus must be a whole number of GPUs from 1 to 1,048,576, not 'x'"),
    ("compare resnet50 --plot out.gif", "end it in .png, .svg or .html"),
    ("compare resnet50 --plot none/out.png", "--plot 'none/out.png': there is no folder 'none'; make it first"),
    ("gpus nosuchgpu", "unknown GPU 'nosuchgpu'; nearest: "),
    ("gpus --device none.yaml", "none.yaml"),
    ("--completion bassh", "flag --completion 'bassh' is unknown; nearest: bash"),
    ("--versio", "flag '--versio' is unknown; nearest: --version"),
    ("stagger", "no jobs file is given"),
    ("stagger none.yaml", "jobs file 'none.yaml' cannot be read: no such file"),
    ("stagger none.yaml --offset soon", "flag --offset is 'soon'; give seconds of at least 0"),
    ("stagger none.yaml --runs", "flag '--runs' is unknown; nearest: --run"),
    ("fit stepps", "stage 'stepps' is unknown; nearest: steps"),
    ("fit kernels --report", "--report goes with kernel_factors, steps, anchors"),
    ("fit steps --tables nowhere", "folder 'nowhere' has none of published, kernels"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG, ids=[arguments for arguments, _ in WRONG])
def test_every_mistake_is_one_line(arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments.split()) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("precision-time: error: ")
    assert printed.err.count("\n") == 1
    assert message in printed.err


def test_empty_value(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", ""]) == 2
    assert "model must be" in capsys.readouterr().err


def test_interrupt(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "resnet50", "--precision", "fp64"]) == 130
    assert capsys.readouterr().out == ""


def test_help_version_and_lists(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["--help"], ["predict", "--help"], ["compare", "--help"], ["--version"], ["gpus"]):
        assert main(arguments) == 0
        assert len(capsys.readouterr().out) > 10
    assert main(["gpus", "H100", "--json"]) == 0
    assert all("h100" in gpu["name"] for gpu in json.loads(capsys.readouterr().out))


def test_the_package_is_a_command() -> None:
    command = [sys.executable, "-m", "precision_time", "--version"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.startswith("precision-time 0.")


def test_zoo_lists_every_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zoo"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[2:]] == sorted(ENTRIES)


def test_completion(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("shtab")
    for shell in ("bash", "zsh"):
        assert main(["--completion", shell]) == 0
        out = capsys.readouterr().out
        assert "--batch-size" in out
        assert "amp-bf16" in out


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("line", "offered", "never"),
    [
        ("predict resnet1", {"resnet18", "resnet152"}, "resnet50"),
        ("predict --model llama3.2", {"llama3.2-1b"}, "llama3-8b"),
        ("predict resnet50 --gpu rtx-40", {"rtx-4090"}, "rtx-3090"),
        ("compare resnet50 --gpu h100,a100-8", {"h100,a100-80gb-sxm"}, "a100-80gb-sxm"),
        ("compare resnet50 --precision fp32,amp-", {"fp32,amp-bf16", "fp32,amp-fp16"}, "fp32,fp16"),
        ("slurm job.s", {"job.sbatch"}, "resnet50"),
    ],
)
def test_bash_completes_names(
    line: str, offered: set[str], never: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("shtab")
    assert main(["--completion", "bash"]) == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)
    (tmp_path / "job.sbatch").touch()
    ask = (
        f"source ./script; COMP_WORDS=(precision-time {line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); "
        "_shtab_precision_time; printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    ran = subprocess.run(["bash", "-c", ask], cwd=tmp_path, capture_output=True, text=True, check=True)
    found = set(ran.stdout.split())
    assert offered <= found
    assert never not in found


def test_a_closed_pipe_is_quiet() -> None:
    code = "import sys; from precision_time.cli.main import main; sys.exit(main(['gpus']))"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141


def test_the_command_line_imports_nothing_heavy() -> None:
    code = (
        "import sys, precision_time.cli.main; import precision_time.cli.parser as m; m.parse(['predict', 'resnet50']); "
        "print([n for n in ('torch', 'numpy', 'yaml', 'rich', 'shtab', 'matplotlib') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
