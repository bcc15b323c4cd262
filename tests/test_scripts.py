"""What is read of the five usual kinds of training scripts (tests/scripts), and that it predicts the job they train."""

from __future__ import annotations

import ast
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precision_time.capture.defined_names import defined_names
from precision_time.capture.skeleton import skeleton
from precision_time.cli.main import main
from precision_time.job.scripts import Facts, facts_of, read_script
from precision_time.job.scripts.script import Call
from precision_time.job.scripts.values import Unread, Values

SCRIPTS = Path(__file__).parent / "scripts"


def facts(folder: Path, text: str) -> Facts:
    path = folder / "train.py"
    path.write_text(text, encoding="utf-8")
    return facts_of(read_script(path))


def answer(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main([*arguments, "--json"]) == 0, capsys.readouterr().err
    content: dict[str, Any] = json.loads(capsys.readouterr().out)
    return content


def command_of(text: str) -> list[str]:
    """The printed command line without "precision-time"."""
    line = next(
        line for line in text.splitlines() if line.startswith("# precision-time predict") and "THIS" not in line
    )
    return shlex.split(line[1:])[1:]


# --- scripts whose model has a name


@pytest.mark.parametrize(
    ("script", "fields"),
    [
        (
            "images.py",
            {
                "model": "resnet50",
                "precision": "amp-fp16",
                "batch_size": 32,
                "optimizer": "sgd",
                "gpus": 8,
                "layout": "dp",
                "input": {"image_size": 224},
                "run": {"epochs": 90},
            },
        ),
        (
            "hf_trainer.py",
            {
                "model": "qwen2.5-1.5b",
                "precision": "bf16-master",
                "batch_size": 4,
                "grad_accum": 8,
                "optimizer": "adamw",
                "optimizer_impl": "fused",
                "layout": {"zero": 3},
                "recompute": "full",
                "clip_norm": 1.0,
                "loss": "fp32",
                "input": {"seq_len": 2048},
                "attention": "flash",
                "run": {"epochs": 3},
            },
        ),
        (
            "unsloth_sft.py",
            {
                "model": "llama3.1-8b",
                "precision": "bf16",
                "batch_size": 2,
                "grad_accum": 4,
                "optimizer": "adamw-8bit",
                "quantized": "nf4",
                "recompute": "full",
                "clip_norm": 1.0,
                "input": {"seq_len": 2048},
                "run": {"steps": 60},
                "lora": {
                    "rank": 16,
                    "targets": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
                },
            },
        ),
    ],
)
def test_the_job_file_of_a_script(
    script: str, fields: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import yaml

    text = skeleton(SCRIPTS / script)
    assert yaml.safe_load(text) == fields
    (tmp_path / "job.yaml").write_text(text, encoding="utf-8")
    command = command_of(text)
    flags = command[command.index("--gpu") :]
    from_file = answer(["predict", str(tmp_path / "job.yaml"), *flags], capsys)
    assert answer(command, capsys) == from_file  # the printed command line is the same job
    assert from_file["memory"]["fits"]


def test_lines_and_what_is_left_open_are_said() -> None:
    text = skeleton(SCRIPTS / "images.py")
    assert (
        "batch_size: 32  # line 51 changes batch_size, 256 before: 256 samples are shared by the ranks; of 8 GPUs"
        in text
    )
    assert "gpus: 8  # chosen here; batch_size follows from it: change both together" in text
    assert "# not found: dataset: its size is not in the text; give --dataset or --dataset-size" in text
    text = skeleton(SCRIPTS / "unsloth_sft.py")
    assert "lora: {rank: 16, targets: [q_proj" in text
    assert "# line 11: get_peft_model" in text
    assert "line 34: is_bfloat16_supported() is taken as true" in text
    assert "Unsloth's kernels are not modelled" in text
    assert "--gpus 1" in text  # which trains on one GPU


# --- scripts with a model of their own


def completed(folder: Path, script: str, changes: dict[str, str]) -> list[str]:
    """Writes the make_job of a script, completed, beside the script; gives the command that predicts it."""
    for each in SCRIPTS.glob("*.py"):
        (folder / each.name).write_text(each.read_text(encoding="utf-8"), encoding="utf-8")
    text = skeleton(folder / script)
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    (folder / "job.py").write_text(text, encoding="utf-8")
    line = next(line for line in text.splitlines() if line.startswith("# precision-time predict"))
    return shlex.split(line[1:].replace("THIS_FILE.py", str(folder / "job.py")))[1:]


def test_a_gpt_whose_settings_are_globals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    text = skeleton(SCRIPTS / "small_gpt.py")
    assert "vocab_size=...,  # line 61: vocabulary if vocabulary is not None else 50304" in text
    assert "from small_gpt_model import GPT, GPTConfig  # also: Block" in text
    assert "note: line 31: exec(open('overrides.py').read()) may change settings" in text
    assert "40 micro-steps are shared by the ranks; of 8 GPUs" in text
    command = completed(tmp_path, "small_gpt.py", {"vocab_size=...": "vocab_size=50304"})
    assert "compile" in command
    command[command.index("compile")] = "eager"
    content = answer(command, capsys)
    job = content["job"]
    assert (job["batch_size"], job["grad_accum"], job["precision"], job["gpus"]) == (12, 5, "amp-bf16", 8)
    assert (content["steps"], job["optimizer_impl"], job["clip_norm"]) == (600_000, "fused", 1.0)
    width, layers = 768, 12  # by hand: embeddings, then 12 width^2 and two norms a layer, and the last norm
    assert content["parameters"] == (50304 + 1024) * width + layers * (12 * width**2 + 2 * width) + width


def test_a_network_in_a_lightning_module(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    command = completed(tmp_path, "lightning_images.py", {"from lightning_images import": "from network import"})
    source = (SCRIPTS / "lightning_images.py").read_text(encoding="utf-8")
    network = source[source.index("class Network") : source.index("class Classifier")]
    (tmp_path / "network.py").write_text("from torch import nn\n\n" + network, encoding="utf-8")  # without Lightning
    content = answer(command, capsys)
    job = content["job"]
    assert (job["batch_size"], job["precision"], job["gpus"], job["clip_norm"]) == (128, "amp-fp16", 4, 1.0)
    assert content["parameters"] == (3 * 9 * 96 + 96) + (96 * 9 * 192 + 192) + (192 * 10 + 10)
    assert content["steps"] == 30 * -(-50_000 // (128 * 4))


def test_predict_prints_what_a_script_says_and_does_not_run_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = tmp_path / "ran"
    script = tmp_path / "train_here.py"
    script.write_text(
        f"open({str(ran)!r}, 'w')\n{(SCRIPTS / 'images.py').read_text(encoding='utf-8')}", encoding="utf-8"
    )
    assert main(["predict", str(script)]) == 0
    printed = capsys.readouterr()
    assert printed.out == skeleton(script)
    assert "has no make_job, so nothing is predicted and it was not run" in printed.err
    for arguments in (["predict", str(script), "--json"], ["compare", str(script)], ["predict", f"{script}:make_job"]):
        assert main(arguments) == 2
        assert "has no function 'make_job'" in capsys.readouterr().err
    assert not ran.exists()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("def make_job(): pass", True),
        ("if x:\n    def make_job(): pass", True),
        ("make_job = other", True),
        ("from a import f as make_job", True),
        ("a, make_job = 1, f", True),
        ("try:\n    pass\nexcept E:\n    make_job = 1", True),
        ("from a import *", None),
        ("def __getattr__(name): pass", None),
        ("globals().update(x)", None),
        ("x = (", None),
        ("make_job()", False),
        ("class A:\n    def make_job(self): pass", False),
        ("exec(open('x').read())", False),
    ],
)
def test_names_that_a_file_defines(tmp_path: Path, text: str, found: bool | None) -> None:
    path = tmp_path / "a.py"
    path.write_text(text, encoding="utf-8")
    names = defined_names(path)
    assert (None if names is None else "make_job" in names) is found


# --- single facts


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("from torch.optim import AdamW\nAdamW(p, fused=True)", "optimizer_impl", "fused"),
        ("import bitsandbytes as bnb\nbnb.optim.PagedAdamW8bit(p)", "optimizer", "adamw-8bit"),
        ("import torch\nDataLoader(a, 64)", "batch_size", 64),
        ("DataLoader(train, 64, shuffle=True)\nDataLoader(val, 128)", "batch_size", 64),
        ("batch_size = 16\ndef f(batch_size=batch_size):\n    DataLoader(d, batch_size=batch_size)", "batch_size", 16),
        (
            "from dataclasses import *\n@dataclass\nclass C:\n    bs: int = 24\ndef f(c):\n    DataLoader(d, c.bs)",
            "batch_size",
            24,
        ),
        ("def f(n):\n    DataLoader(d, batch_size=n)\nf(2 * 4)", "batch_size", 8),
        ("cfg = {'b': 6}\ncfg['b'] = 12\nDataLoader(d, batch_size=cfg['b'])", "batch_size", 12),
        ("cfg = {'b': 6}\nif f():\n    cfg['b'] = 12\nDataLoader(d, batch_size=cfg['b'])", "batch_size", None),
        ("cfg = dict(b=6)\nDataLoader(d, batch_size=cfg['b'])", "batch_size", 6),
        ("b = 1\nb = 2\nDataLoader(d, b)", "batch_size", None),
        ("DataLoader(a, 1)\nDataLoader(b, 2)", "batch_size", None),
        ("import sys\nDataLoader(a, int(sys.argv[1]))", "batch_size", None),
        ("p.add_argument('--n-batch', type=int, default='7')\nDataLoader(a, args.n_batch)", "batch_size", 7),
        ("p.add_argument('--n', type=int, required=True)\nDataLoader(a, args.n)", "batch_size", None),
        (
            "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy as S\n"
            "FSDP(m, sharding_strategy=S.SHARD_GRAD_OP)",
            "layout",
            {"zero": 2},
        ),
        ("fully_shard(m)", "layout", {"zero": 3}),
        ("fully_shard(m, reshard_after_forward=False)", "layout", {"zero": 2}),
        ("fully_shard(m, reshard_after_forward=some())", "layout", None),
        (
            "import torch\nfully_shard(m, mp_policy=MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.float32))",
            "precision",
            "bf16-master",
        ),
        ("import torch\nfully_shard(m)\ntorch.autocast('cuda', torch.bfloat16)", "precision", "amp-bf16"),
        ("import torch.nn as nn\nnn.utils.clip_grad_norm_(p, 0.5)", "clip_norm", 0.5),
        ("from timm.utils import ModelEmaV2\nmodel_ema = ModelEmaV2(model)", "ema", "single"),
        (
            "from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn\n"
            "AveragedModel(m, multi_avg_fn=get_ema_multi_avg_fn(0.999))",
            "ema",
            "foreach",
        ),
        ("from torch.optim.swa_utils import AveragedModel\nAveragedModel(m)", "ema", None),
        ("x.to(memory_format=m)", "memory_format", None),
        ("import torch\nx.to(memory_format=torch.channels_last)", "memory_format", "nhwc"),
        ("model.gradient_checkpointing_enable()", "recompute", "full"),
        ("import torch\nif False:\n    torch.compile(m)", "execution", None),
        ("import torch\nmodel = torch.compile(model)", "execution", "compile"),
        ("for epoch in range(2, 12): pass", "run", {"epochs": 10}),
        ("for epoch in tqdm(range(3)): pass", "run", {"epochs": 3}),
        ("for epoch in range(n): pass", "run", None),
        ("max_steps = 5000", "run", {"steps": 5000}),
        ("from accelerate import Accelerator\nAccelerator(gradient_accumulation_steps=4)", "grad_accum", 4),
    ],
)
def test_what_a_line_says(tmp_path: Path, text: str, field: str, value: Any) -> None:
    assert facts(tmp_path, text).fields.get(field) == value


def test_what_is_not_found_has_its_line(tmp_path: Path) -> None:
    said = facts(tmp_path, "import sys\nb = int(sys.argv[1])\nDataLoader(a, b)\nimport torch\ntorch.optim.RAdam(p)")
    assert said.missing == {
        "batch_size": "line 2: sys.argv[1]",
        "optimizer": "line 5: RAdam has no model here; give the nearest in its states",
    }
    said = facts(tmp_path, "import deepspeed\ndeepspeed.initialize(model=m)")
    assert said.missing["layout"] == "line 2: initialize: its config decides; add it by --import ds_config.json"


def test_settings_of_trainers_that_the_text_leaves_open(tmp_path: Path) -> None:
    said = facts(
        tmp_path,
        """
from transformers import Trainer, TrainingArguments, HfArgumentParser, AutoModel
HfArgumentParser(X)
AutoModel.from_pretrained("gpt2")
args = TrainingArguments(some(), per_device_train_batch_size=bs, bf16=flag, learning_rate=lr, optim="radam", novel=1)
""",
    )
    assert said.missing["batch_size"] == "line 5: bs"
    assert said.missing["precision"] == "line 5: flag"
    assert "radam" in said.missing["optimizer"]
    assert not {"batch_size", "precision", "optimizer"} & set(said.fields)
    assert any("novel: not understood" in text for text in said.notes)
    assert any("add them by --import FILE" in text for text in said.notes)
    assert any("names no dtype" in text for text in said.notes)
    assert not any("learning_rate" in text for text in said.notes)


@pytest.mark.parametrize(
    ("text", "quantized", "lora"),
    [
        ("BitsAndBytesConfig(load_in_4bit=True)", "fp4", "LoraConfig(r=4, target_modules='all-linear')"),
        ("BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type='nf4')", "nf4", "LoraConfig(r=4)"),
        ("BitsAndBytesConfig(load_in_8bit=True)", "int8", "LoraConfig(r=4, lora_dropout=0.1)"),
    ],
)
def test_adapters_and_bits_of_peft(tmp_path: Path, text: str, quantized: str, lora: str) -> None:
    said = facts(
        tmp_path,
        f"""
import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer
bits = {text}
model = AutoModelForCausalLM.from_pretrained("m", quantization_config=bits, dtype=torch.bfloat16)
SFTTrainer(model, args=SFTConfig(output_dir="o", bf16=True, max_length=512), peft_config={lora})
""",
    )
    assert (said.fields["quantized"], said.fields["lora"]["rank"]) == (quantized, 4)
    assert said.fields["input"] == {"seq_len": 512}
    assert said.fields["precision"] == "bf16"
    assert said.where["quantized"] == "line 7: from_pretrained"


def test_a_model_that_a_trainer_loads_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "from trl import SFTConfig, SFTTrainer\nSFTTrainer('Qwen/Qwen3-0.6B', args=SFTConfig(bf16=True, max_length=8))",
        encoding="utf-8",
    )
    text = skeleton(path)
    assert "model: qwen3-0.6b  # Qwen/Qwen3-0.6B, line 2: SFTTrainer" in text
    assert "note: line 2: SFTTrainer loads the model by its name: weights are taken as fp32" in text


ACCELERATE = """
import argparse
from accelerate import Accelerator
MOST = 16
def loaders(batch_size=16):
    return DataLoader(data["train"], shuffle=True, batch_size=batch_size), DataLoader(data["val"], batch_size=64)
def run(config, args):
    accelerator = Accelerator(mixed_precision=args.mixed_precision)
    batch_size, steps = config["batch_size"], int(config["num_epochs"])
    gradient_accumulation_steps = 1
    if batch_size > MOST:
        gradient_accumulation_steps = batch_size // MOST
        batch_size = MOST
    loaders(batch_size)
    for epoch in range(steps):
        pass
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mixed_precision", default=None)
    run({"batch_size": 64, "num_epochs": 3}, parser.parse_args())
main()
"""


def test_values_pass_through_functions_and_branches(tmp_path: Path) -> None:
    said = facts(tmp_path, ACCELERATE)
    assert said.fields["run"] == {"epochs": 3}
    assert "batch_size is assigned in lines 9 and 13" in said.missing["batch_size"]  # 64, and 16 of the branch
    assert "`accelerate config` wrote decides it" in said.missing["precision"]
    said = facts(tmp_path, ACCELERATE.replace('"batch_size": 64', '"batch_size": 8').replace("=None", "='bf16'"))
    assert (said.fields["batch_size"], said.fields["grad_accum"]) == (8, 1)
    assert said.fields["precision"] == "amp-bf16"


# --- values


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("x = 2 + 3 * 4 - 1", 13),
        ("x = 7 // 2", 3),
        ("x = -5", -5),
        ("x = 'a' + 'b'", "ab"),
        ("x = 1 if True else 2", 1),
        ("n = 3\nx = f'm{n}'", "m3"),
        ("x = {'a': [1, 2]}['a'][1]", 2),
        ("x = not False and 5", 5),
        ("x = 0 or 6", 6),
        ("x = 'A'.lower() == 'a'", True),
        ("x = int('12')", 12),
        ("x = float('1e3')", 1000.0),
        ("x = 'a' in ('a', 'b')", True),
        ("if 1 > 2:\n    x = 1\nelse:\n    x = 2", 2),
        ("x = 1\nif unknown:\n    x = 1", 1),
        ("x: int = 4", 4),
        ("if __name__ == '__main__':\n    x = 9", 9),
        ("(x, y) = (1, 2)", 1),
    ],
)
def test_values(tmp_path: Path, text: str, value: Any) -> None:
    assert value_of(tmp_path, text) == value


@pytest.mark.parametrize(
    "text",
    [
        "x = f()",
        "x = 1\nx = 2",
        "x = 1\nif unknown:\n    x = 2",
        "x = x",
        "x = y\ny = x",
        "x = 1 / 0",
        "x = 'a' * 10**9",
        "x = 10**10",
        "x = [1][5]",
        "for x in range(3): pass",
        "x = 1\nx += 1",
        "x = int('a')",
        "x = a.b.c",
        "x = 9 * 10 ** 20",
        "x = 999999999999 * 999999999999 * 99999999",
    ],
)
def test_values_that_the_text_leaves_open(tmp_path: Path, text: str) -> None:
    assert isinstance(value_of(tmp_path, text), Unread)


def value_of(folder: Path, text: str) -> Any:
    path = folder / "a.py"
    path.write_text(text, encoding="utf-8")
    script = read_script(path)
    return Values(script).of(ast.Name("x", ast.Load(), lineno=1), script.scope)


NAMES = st.sampled_from(
    ["a", "b", "args.a", "self.b", "a['k']", "torch.float16", "f(a)", "1", "'t'", "[a, b]", "{**a}"]
)
LINES = st.one_of(
    st.builds("{} = {}".format, st.sampled_from(["a", "b", "args.a", "self.b", "a['k']"]), NAMES),
    st.builds("if {}: a = {}".format, NAMES, NAMES),
    st.builds("DataLoader({}, batch_size={})".format, NAMES, NAMES),
    st.builds("TrainingArguments(*{}, bf16={}, fsdp={}, **b)".format, NAMES, NAMES, NAMES),
    st.builds("L.Trainer(strategy={}, devices={}, precision={})".format, NAMES, NAMES, NAMES),
    st.builds("def f(a, b={}): return {}".format, NAMES, NAMES),
    st.builds("for epoch in range({}): pass".format, NAMES),
    st.builds("b = LoraConfig(r={}, target_modules={})".format, NAMES, NAMES),
)


@given(st.lists(LINES, max_size=12))
def test_any_order_of_lines_is_answered(lines: list[str]) -> None:
    """Names that depend on themselves, strange arguments: a text is printed that is Python, and nothing is raised."""
    import tempfile

    head = (
        "import torch, lightning as L\nfrom transformers import TrainingArguments\nclass Net(torch.nn.Module): pass\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.py"
        path.write_text(head + "\n".join(lines) + "\nmodel = Net(a, b)\n", encoding="utf-8")
        ast.parse(skeleton(path))


def test_arguments_that_are_left_open(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "class A(Module): pass\nmodel = A(*x, width=y, **z, depth=2)\n", encoding="utf-8"
    )
    text = skeleton(tmp_path / "train.py")
    ast.parse(text)
    for line in (
        "        ...,  # line 2: *x",
        "        width=...,  # line 2: y",
        "        **...,  # line 2: z",
        "        depth=2,",
    ):
        assert line in text


def test_calls_keep_their_place() -> None:
    node = ast.parse("f(*a, 2, key=3)").body[0].value  # type: ignore[attr-defined]
    call = Call(node, "f", read_script(SCRIPTS / "images.py").scope, (), "")
    assert call.argument("key", 5).value == 3  # type: ignore[union-attr]
    assert call.argument("other", 1) is None  # behind *a no place is known
