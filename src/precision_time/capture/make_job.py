"""`make_job` for a model of a script's own, filled in with how the script makes and calls it."""

from __future__ import annotations

import ast
import keyword
from collections.abc import Iterator
from typing import Any

from precision_time.job.scripts.facts import Reading
from precision_time.job.scripts.loops import OPTIMIZERS
from precision_time.job.scripts.models import Own, own_models
from precision_time.job.scripts.script import Call, Scope
from precision_time.job.scripts.shapes import Shape, takes_tokens
from precision_time.job.scripts.values import Dotted, Unread

_LOSSES = {
    "cross_entropy": True, "nll_loss": True, "mse_loss": False, "l1_loss": False, "smooth_l1_loss": False,
    "binary_cross_entropy_with_logits": False, "binary_cross_entropy": False,
    "CrossEntropyLoss": True, "NLLLoss": True, "MSELoss": False, "L1Loss": False, "SmoothL1Loss": False,
    "BCEWithLogitsLoss": False, "BCELoss": False,
}  # fmt: skip
"""Losses -> whether their targets are numbers of classes."""
_TORCH = ("SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "Adafactor", "Muon", "Adamax", "NAdam", "RAdam")
_BATCH = 32
"""Samples of a batch where the script does not say it, which is then noted."""
_FLAT = ("view", "reshape", "flatten", "transpose", "permute")


def make_job(reading: Reading, model: Own, shape: Shape, end: list[str]) -> str:
    """The file's text; `end`: lines of comments that follow."""
    facts = reading.facts
    written = _Expressions(reading, model)
    made = written.constructor()
    use = _Use(reading, model, shape)
    size = {"image_size": shape.image_size} if use.images else {"seq_len": shape.seq_len} if use.tokens else {}
    takes = "".join(f", {name}={value}" for name, value in size.items())
    entries = [*use.inputs(), *use.loss(), f'"optimizer": {_optimizer(reading)}']
    where = f"  # {facts.where['batch_size']}" if "batch_size" in facts.where else ""
    others = ", ".join(node.name for node, _ in own_models(reading.script) if node is not model.node)
    imports = written.imports(f"  # also: {others}" if others else "")
    if _runs_when_imported(model.script.tree):
        name = model.script.path.name
        imports.insert(0, f'# {name!r} runs code when it is imported; put that under if __name__ == "__main__"')
    return "\n".join([
        f"# The job of {reading.script.path.name!r} for precision-time; it was not run. Complete lines with ...",
        "", "import torch", "from torch import nn", "", *imports, "", "",
        f"def make_job(batch_size={facts.fields.get('batch_size', _BATCH)}{takes}):{where}",
        *f"    model = {made}".splitlines(),
        "    return {", '        "model": model,', *(f"        {_entry(each)}" for each in entries), "    }", "", "",
        *(f"# {line}".rstrip() for line in end), "",
    ])  # fmt: skip


def _entry(text: str) -> str:
    """An entry with a comma before its comment."""
    value, mark, comment = text.partition("  # ")
    return f"{value},{mark}{comment}"


def _runs_when_imported(tree: ast.Module) -> bool:
    return any(
        isinstance(node, (ast.For, ast.While, ast.With))
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call))
        for node in tree.body
    )


class _Expressions:
    """Writes the call that makes the model again, with the values that the text gives it."""

    def __init__(self, reading: Reading, model: Own) -> None:
        self.reading, self.model = reading, model
        self.classes = {node.name: file for node, file in own_models(reading.script)}
        self.classes |= {name: file for file in reading.script.files() for name in file.classes}
        self.needed: dict[str, str] = {model.node.name: model.script.path.stem}

    def imports(self, also: str) -> list[str]:
        lines = []
        for module in dict.fromkeys(self.needed.values()):
            names = [name for name, of in self.needed.items() if of == module]
            if all(part.isidentifier() and not keyword.iskeyword(part) for part in module.split(".")):
                lines.append(f"from {module} import {', '.join(names)}")
            else:
                lines += ["import importlib", "", f"of_script = importlib.import_module({module!r})"]
                lines += [f"{name} = of_script.{name}" for name in names]
        lines[-1] += also
        return lines

    def constructor(self) -> str:
        node = self.model.node
        if self.model.call is None:
            left = [f"{name}=..." for name in _arguments(node, "__init__")]
            return f"{node.name}({', '.join(left)})  # no line makes it"
        return self._call(node.name, self.model.call.node, self.model.call.scope)

    def _call(self, name: str, call: ast.Call, scope: Scope, depth: int = 0) -> str:
        """A call with one argument a line where one is left open, else in one line."""
        parts = [self._argument("", each, scope, depth) for each in call.args]
        for word in call.keywords:
            if word.arg is not None:
                parts.append(self._argument(word.arg, word.value, scope, depth))
                continue
            value = self.reading.values.of(word.value, scope)
            if isinstance(value, dict):
                parts += [self._value(f"{key}=", each) for key, each in value.items()]
            else:
                parts.append(
                    ("**...", f"{getattr(value, 'reason', 'the rest')}: arguments of **{ast.unparse(word.value)}")
                )
        if not any(why or "\n" in text for text, why in parts):
            return f"{name}({', '.join(text for text, _ in parts)})"
        indent = " " * 4 * (depth + 1)
        lines = [f"{indent}    {text},{f'  # {why}' if why else ''}" for text, why in parts]
        return "\n".join([f"{name}(", *lines, f"{indent})"])

    def _argument(self, word: str, node: ast.expr, scope: Scope, depth: int) -> tuple[str, str]:
        """An argument as text, and why it is left open."""
        values = self.reading.values
        value = values.of(node, scope)
        name = f"{word}=" if word else ""
        if isinstance(value, Unread):
            made, inner = values.made(node, scope)
            if made is not None and (of := self._importable(made)):
                self.needed.setdefault(of[0], of[1])
                text = self._call(of[0], made, inner, depth + 1)
                return name + text, ""
        return self._value(name, value)

    def _value(self, name: str, value: Any) -> tuple[str, str]:
        if isinstance(value, Dotted):
            return f"{name}{value}", "" if value.startswith(("torch.", "nn.")) else "import it"
        if isinstance(value, Unread):
            return f"{name}...", value.reason
        if isinstance(value, (list, tuple, dict)) and "Unread(" in repr(value):
            return f"{name}...", "a part of it is not in the text"
        return f"{name}{value!r}", ""

    def _importable(self, made: ast.Call) -> tuple[str, str] | None:
        """Class and module of a call that makes an object of the script's own or of transformers."""
        dotted = self.reading.script.dotted(made.func)
        module, _, name = dotted.rpartition(".")
        if name in self.classes:
            return name, self.classes[name].path.stem
        return (name, module) if module.startswith("transformers") and name.endswith("Config") else None


class _Use:
    """How the script calls its model: what goes in, and which loss comes out."""

    def __init__(self, reading: Reading, model: Own, shape: Shape) -> None:
        self.reading, self.model, self.shape = reading, model, shape
        names = {call.last for call in model.script.calls}
        self.tokens = shape.seq_len is not None and (takes_tokens(model.node) or "Embedding" in names)
        self.images = not self.tokens and shape.image_size is not None and shape.channels is not None
        self.images = self.images and bool(names & {"Conv2d", "LazyConv2d"} or "torchvision" in str(names))
        self.forward = list(_arguments(model.node, "forward"))
        self.calls = [call for call in reading.calls if self._is_model(call)]
        self.given = max((len(call.node.args) + len(call.node.keywords) for call in self.calls), default=1)

    def _is_model(self, call: Call) -> bool:
        if self.model.call is None or not isinstance(call.node.func, (ast.Name, ast.Attribute)):
            return False
        made, _ = self.reading.values.made(call.node.func, call.scope)
        return made is self.model.call.node

    def inputs(self) -> list[str]:
        signature = f"{self.model.node.name}.forward({', '.join(self.forward)})"
        if self.tokens:
            one = "torch.empty(batch_size, seq_len, dtype=torch.long)"
            number = self.given if self.given > 1 and self.returned() is not None else 1
            number = min(number, len(self.forward) or number)
            text = one if number == 1 else "tuple(" + one + f" for _ in range({number}))"
        elif self.images:
            text = f"torch.empty(batch_size, {self.shape.channels}, image_size, image_size)"
        else:
            return [f'"inputs": torch.empty(batch_size, ...)  # shape of a batch: {signature}']
        return [f'"inputs": {text}  # {signature}; {self.shape.where}']

    def returned(self) -> int | str | None:
        """Where the model returns its loss: a place in a tuple, or an attribute; None: it returns none."""
        nodes = {id(call.node): call for call in self.calls}
        for node in ast.walk(self.reading.script.tree):
            if isinstance(node, ast.Assign) and id(node.value) in nodes and isinstance(node.targets[0], ast.Tuple):
                names = [each.id if isinstance(each, ast.Name) else "" for each in node.targets[0].elts]
                place = next((i for i, name in enumerate(names) if "loss" in name.lower()), None)
                if place is not None:
                    return place
            if isinstance(node, ast.Attribute) and node.attr == "loss":
                made, _ = self.reading.values.made(node.value, self.reading.script.scope)
                if id(node.value) in nodes or (made is not None and id(made) in nodes):
                    return "loss"
        return None

    def loss(self) -> list[str]:
        place = self.returned()
        if place == "loss" or self.reading.facts.by_trainer:
            return []  # the model returns an object with .loss
        if place is not None:
            return [f'"loss": lambda output: output[{place}]']
        calls = [call for file in self.reading.script.files() for call in file.calls if call.last in _LOSSES]
        if not calls:
            return ['"loss": ...']
        call = calls[0]
        made = f"nn.{call.last}()" if call.last[0].isupper() else f"nn.functional.{call.last}"
        if not _LOSSES[call.last]:
            return ['"targets": torch.empty(batch_size, ...)', f'"loss": {made}']
        if self.tokens:
            flat = f"lambda output, targets: {made}(output.flatten(0, 1), targets.flatten())"
            return ['"targets": torch.empty(batch_size, seq_len, dtype=torch.long)', f'"loss": {flat}']
        return ['"targets": torch.empty(batch_size, dtype=torch.long)', f'"loss": {made}']


def _arguments(model: ast.ClassDef, method: str) -> Iterator[str]:
    """Names of a method's arguments; of `__init__` those without a default."""
    for node in model.body:
        if isinstance(node, ast.FunctionDef) and node.name == method:
            given = [*node.args.posonlyargs, *node.args.args][1:]
            if method == "__init__":
                given = given[: len(given) - len(node.args.defaults)] if node.args.defaults else given
                given += [a for a, d in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if d is None]
            yield from (each.arg for each in given)
            return


def _optimizer(reading: Reading) -> str:
    """The optimizer as torch makes it, or its name."""
    field = reading.facts.fields.get("optimizer")
    if field is None:
        return f'"adamw"  # to be chosen: {reading.facts.missing.get("optimizer", "none was found")}'
    classes = [name for name, of in OPTIMIZERS.items() if of == field and name in _TORCH]
    fused = ", fused=True" if reading.facts.fields.get("optimizer_impl") == "fused" else ""
    return f"torch.optim.{classes[0]}(model.parameters(){fused})" if classes else f'"{field}"'
