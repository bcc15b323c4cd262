"""`make_job` written from the text of training scripts: what is found, and that it can be completed and predicted."""

from __future__ import annotations

import ast
import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precision_time.capture.skeleton import skeleton
from precision_time.cli.main import main
from precision_time.errors import DataError

SCRIPT = """
import torch
from torch import nn
from torch.optim import AdamW

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = nn.Linear(width, width)
    def forward(self, x):
        return self.layer(x)

class Net(nn.Module):
    def __init__(self, classes, width=64, *, depth):
        super().__init__()
        self.blocks = nn.Sequential(*[Block(width) for _ in range(depth)])
        self.head = nn.Linear(width, classes)
    def forward(self, images, mask=None):
        return self.head(self.blocks(images))

def main():
    model = Net(10, depth=2).cuda()
    opt = AdamW(model.parameters(), lr=1e-3)
    for x, y in torch.utils.data.DataLoader([], batch_size=48):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            nn.functional.cross_entropy(model(x), y).backward()

if __name__ == "__main__":
    main()
"""


def written(folder: Path, text: str, name: str = "train_ours.py") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return skeleton(path)


def test_what_a_script_says(tmp_path: Path) -> None:
    text = written(tmp_path, SCRIPT)
    ast.parse(text)
    assert "from train_ours import Net  # also: Block" in text
    assert "def make_job(batch_size=48):" in text
    assert "model = Net(10, depth=2)\n" in text
    assert "Net.forward(images, mask)" in text
    assert '"loss": nn.functional.cross_entropy' in text
    assert "torch.optim.AdamW(model.parameters())" in text
    assert "--precision amp-bf16 --batch-size 48" in text
    assert "runs code" not in text
    assert "Net(classes=..., depth=...)  # no line makes it" in written(
        tmp_path, SCRIPT.replace("Net(10, depth=2)", "f()")
    )


def test_completed_it_is_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    text = written(tmp_path, SCRIPT, "train_completed.py")
    text = text.replace("batch_size, ...", "batch_size, 64")
    (tmp_path / "job_completed.py").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert main(["predict", "job_completed.py", "--precision", "amp-bf16", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["parameters"] == 2 * (64 * 64 + 64) + 64 * 10 + 10


@pytest.mark.parametrize(
    ("line", "precision"),
    [("torch.amp.GradScaler('cuda')", "amp-fp16"), ("torch.amp.GradScaler(enabled=False)", "torch-fp32"),
     ("Args(bf16=True)", "..."), ("Args(bf16=False)", "torch-fp32"), ("x.to(torch.float16)", "..."),
     ("torch.autocast('cuda')", "amp-fp16"), ("torch.autocast('cuda', torch.bfloat16)", "amp-bf16"),
     ("torch.autocast('cuda', enabled=some())", "..."), ("torch.autocast('cpu', torch.bfloat16)", "torch-fp32"),
     ("torch.cuda.amp.autocast(dtype=torch.bfloat16)", "amp-bf16"), ("model.half()", "fp16"),
     ("model.to('cuda', torch.bfloat16)", "bf16"), ("model.bfloat16(); torch.autocast('cuda', torch.bfloat16)", "bf16"),
     ("model.bfloat16(); torch.autocast('cuda')", "..."), ("torch.set_default_dtype(torch.float16)", "fp16"),
     ("torch.set_float32_matmul_precision('high')", "tf32"), ("torch.backends.cuda.matmul.allow_tf32 = True", "tf32"),
     ("torch.backends.cudnn.allow_tf32 = True", "torch-fp32"), ("Accelerator(mixed_precision='bf16')", "amp-bf16"),
     ("if False: model.half()", "torch-fp32")],
)  # fmt: skip
def test_precisions(tmp_path: Path, line: str, precision: str) -> None:
    text = f"import torch\nfrom accelerate import Accelerator\nclass A(Module):\n    pass\ndef main():\n    {line}\n"
    text = written(tmp_path, text)
    assert f"--precision {precision} " in text
    assert ("not found: precision: line 6: " in text) == (precision == "...")


def test_names_that_are_no_modules_and_code_at_the_top(tmp_path: Path) -> None:
    text = written(tmp_path, "class A(Module): pass\nfor x in []: pass\n", "my-train 2.py")
    ast.parse(text)
    assert "of_script = importlib.import_module('my-train 2')\nA = of_script.A\n" in text
    assert "runs code when it is imported" in text
    assert '"loss": ...' in text


def test_what_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for content, says in (
        ("x = (", "line 1 is no Python"),
        ("x = 1", "defines no torch.nn.Module"),
        ("(" * 5000, "no Python"),
        ("-" * 100_000 + "1", "no Python"),
        ("\0", "control character"),
    ):
        path = tmp_path / "a.py"
        path.write_text(content, encoding="utf-8")
        assert main(["skeleton", str(path)]) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert says in printed.err
    with pytest.raises(DataError, match="no such file"):
        skeleton(tmp_path / "missing.py")


@given(st.text(max_size=200))
def test_any_text_gives_python_or_a_sentence(text: str) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.py"
        path.write_bytes(f"class A(Module):\n    x = {text!r}\n{text}".encode("utf-8", "surrogatepass"))
        with contextlib.suppress(DataError):
            ast.parse(skeleton(path))


# --- models of libraries

LIBRARY = """
import torch
{imports}

def main():
    model = {model}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(data, batch_size=128)
    for epoch in range({epochs}):
        with torch.autocast("cuda", dtype=torch.float16):
            step(model)
"""


@pytest.mark.parametrize(
    ("imports", "model", "found"),
    [
        ("from torchvision import models", "models.resnet50(weights=None)", "resnet50  # torchvision:resnet50"),
        ("import torchvision", "torchvision.models.get_model('vit_b_16')", "vit-b-16  # torchvision:vit_b_16"),
        ("import torchvision.models as m", "m.__dict__['resnet18']()", "resnet18  # torchvision:resnet18"),
        ("from torchvision import models", "getattr(models, 'resnet18')()", "resnet18  # torchvision:resnet18"),
        (
            "from torchvision.models import regnet_y_400mf as net",
            "net()",
            "torchvision:regnet_y_400mf  # torchvision:regnet_y_400mf",
        ),
        (
            "import timm",
            "timm.create_model('convnextv2_tiny', pretrained=True)",
            "timm:convnextv2_tiny  # timm:convnextv2_tiny",
        ),
        (
            "from timm import create_model",
            "create_model(model_name='vit_small_patch16_224')",
            "timm:vit_small_patch16_224  # timm:vit_small_patch16_224",
        ),
        (
            "from transformers import AutoModelForCausalLM",
            "AutoModelForCausalLM.from_pretrained('Qwen/Qwen3-8B')",
            "qwen3-8b  # Qwen/Qwen3-8B",
        ),
        (
            "from transformers import AutoConfig, AutoModelForCausalLM as M",
            "M.from_config(AutoConfig.from_pretrained('gpt2'))",
            "gpt2  # gpt2",
        ),
        (
            "import transformers as t",
            "t.BertForPreTraining.from_pretrained('bert-large-uncased')",
            "bert-large  # bert-large-uncased",
        ),
        (
            "from transformers import AutoTokenizer as A, AutoModel",
            "AutoModel.from_pretrained(pretrained_model_name_or_path='bigscience/bloom-560m')",
            "hf:CONFIG.json  # the config.json of bigscience/bloom-560m, which is not among the named models",
        ),
    ],
)
def test_a_model_of_a_library_gives_a_job_file(tmp_path: Path, imports: str, model: str, found: str) -> None:
    text = written(tmp_path, LIBRARY.format(imports=imports, model=model, epochs=90))
    where = text.index("model: ")
    assert text[where:].startswith(f"model: {found}")
    assert ", line 6: " in text[where:].splitlines()[0]
    assert text[where:].splitlines()[1:5] == [
        "precision: amp-fp16  # line 10: autocast",
        "batch_size: 128  # line 8: DataLoader(batch_size=128)",
        "optimizer: sgd  # line 7: SGD",
        "run: {epochs: 90}  # line 9: for epoch in range",
    ]
    assert "# not found: dataset: its size is not in the text; give --dataset or --dataset-size" in text


def test_the_job_file_of_a_script_is_predicted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = written(
        tmp_path, LIBRARY.format(imports="from torchvision import models", model="models.resnet50()", epochs=9)
    )
    path = tmp_path / "job.yaml"
    path.write_text(text, encoding="utf-8")
    assert main(["predict", str(path), "--gpu", "a100", "--gpus", "8", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    job = content["job"]
    assert (job["model"], job["precision"], job["batch_size"], job["optimizer"]) == ("resnet50", "amp-fp16", 128, "sgd")
    assert content["steps"] == 9 * content["steps_per_epoch"]


def test_names_that_only_look_like_models(tmp_path: Path) -> None:
    """Weights, tokenizers, other modules named models, and a repository in a variable."""
    for line in (
        "from torchvision import models\nw = models.get_model_weights('resnet50')",
        "from torchvision.models import resnet50_weights\nresnet50_weights()",
        "from transformers import AutoTokenizer\nAutoTokenizer.from_pretrained('gpt2')",
        "import models\nmodels.resnet50()",
        "from transformers import AutoModel\nAutoModel.from_pretrained(name)",
    ):
        with pytest.raises(DataError, match="makes no model of torchvision, timm or Hugging Face"):
            written(tmp_path, line)


def test_several_models_are_named_in_their_order(tmp_path: Path) -> None:
    text = written(tmp_path, "from torchvision import models\na = models.resnet18()\nb = models.resnet34()")
    assert "model: resnet18  # torchvision:resnet18, line 2: resnet18; also: torchvision:resnet34" in text.splitlines()
