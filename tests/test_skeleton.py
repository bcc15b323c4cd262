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
    assert "model = Net(classes=..., depth=...)" in text
    assert "Net.forward(images, mask)" in text
    assert '"loss": nn.functional.cross_entropy' in text
    assert "torch.optim.AdamW(model.parameters())" in text
    assert "--precision amp-bf16 --batch-size 48" in text
    assert "runs code" not in text


def test_completed_it_is_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    text = written(tmp_path, SCRIPT, "train_completed.py")
    text = text.replace("classes=..., depth=...", "classes=10, depth=2").replace("batch_size, ...", "batch_size, 64")
    (tmp_path / "job_completed.py").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert main(["predict", "job_completed.py", "--precision", "amp-bf16", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["parameters"] == 2 * (64 * 64 + 64) + 64 * 10 + 10


@pytest.mark.parametrize(
    ("line", "precision"),
    [("torch.amp.GradScaler('cuda')", "amp-fp16"), ("Args(fp16=True)", "amp-fp16"), ("Args(bf16=True)", "amp-bf16"),
     ("Args(bf16=False)", "torch-fp32"), ("x.to(torch.float16)", "amp-fp16")],
)  # fmt: skip
def test_precisions(tmp_path: Path, line: str, precision: str) -> None:
    text = f"class A(Module):\n    pass\ndef main():\n    {line}\n"
    assert f"--precision {precision} " in written(tmp_path, text)


def test_names_that_are_no_modules_and_code_at_the_top(tmp_path: Path) -> None:
    text = written(tmp_path, "class A(Module): pass\nfor x in []: pass\n", "my-train 2.py")
    ast.parse(text)
    assert "import_module('my-train 2').A" in text
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
