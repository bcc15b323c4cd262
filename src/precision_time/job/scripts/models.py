"""Which model a script trains: a class of its own, one of transformers from a config, or one of a library by name."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import Any

from precision_time.job.scripts.facts import Reading
from precision_time.job.scripts.script import Call, Script
from precision_time.job.scripts.values import Values

_BASES = ("Module", "PreTrainedModel")
"""Ends of the names of classes that models derive from."""
_HELPERS = frozenset(
    "get_model_weights get_weight list_models segmentation detection video quantization optical_flow".split()
)
_NAMES = ("model_name", "name", "pretrained_model_name_or_path", "model_id")
_MADE = re.compile("Model|LM|For[A-Z]")
_MIRROR = re.compile(r"unsloth/(.+?)(?:-(?:unsloth-)?bnb-[48]bit)?")
"""Copies of other organisations' repositories, and of their weights in 4 bits, which have the same shape."""


@dataclass(frozen=True, slots=True)
class Library:
    """A model by the name that a library knows, as `precision-time predict` takes it: torchvision:resnet50."""

    name: str
    call: Call

    @property
    def head(self) -> str:
        """The class of transformers that loads it; "" for other libraries."""
        return self.call.name.split(".")[-2] if self.call.last in ("from_pretrained", "from_config") else ""


@dataclass(frozen=True, slots=True)
class Own:
    """A class of the script or of a file beside it, and the call that makes it (None: there is none)."""

    node: ast.ClassDef
    script: Script
    values: Values
    call: Call | None


def own_models(script: Script) -> list[tuple[ast.ClassDef, Script]]:
    """The classes of modules in a script and in the files beside it, those of each file in its order."""
    return [
        (node, file)
        for file in script.files()
        for node in sorted(file.classes.values(), key=lambda each: each.lineno)
        if any(_last(base).endswith(_BASES) and not _last(base).endswith("DataModule") for base in node.bases)
    ]


def is_lightning(node: ast.ClassDef) -> bool:
    return any(_last(base) == "LightningModule" for base in node.bases)


def library_models(reading: Reading) -> list[Library]:
    """The models of libraries that a script makes, in the order of its text, each once."""
    found: dict[str, Library] = {}
    for call in reading.calls:
        if name := _library_name(reading, call):
            found.setdefault(name, Library(name, call))
    return list(found.values())


def _library_name(reading: Reading, call: Call) -> str:
    *before, last = call.name.split(".")
    helper = last in _HELPERS or last.endswith("_weights")
    if before[:2] == ["torchvision", "models"] or before[:1] == ["timm"]:
        if last in ("get_model", "create_model"):
            text = _text(reading, call)
            return f"{before[0]}:{text}" if text else ""
        return f"torchvision:{last}" if before[0] == "torchvision" and last.islower() and not helper else ""
    if last == "from_pretrained" and before and _MADE.search(before[-1]):
        return _repository(_text(reading, call))
    if last == "from_config" and before and _MADE.search(before[-1]):
        config, scope = reading.values.made(call.argument("config", 0), call.scope)
        if config is not None and _last(config.func) == "from_pretrained" and config.args:
            text = reading.values.of(config.args[0], scope)
            return _repository(text) if isinstance(text, str) else ""
    if call.last.endswith("Trainer"):  # of TRL, which loads the model itself
        name = reading.values.argument(call, "model", 0)
        return _repository(name) if isinstance(name, str) and "/" in name and "." not in name.partition("/")[0] else ""
    return _by_key(reading, call)


def _by_key(reading: Reading, call: Call) -> str:
    """torchvision.models.__dict__[name](), getattr(torchvision.models, name)()."""
    function = call.node.func
    if isinstance(function, ast.Subscript):
        of, key = reading.script.dotted(function.value).removesuffix(".__dict__"), function.slice
    elif isinstance(function, ast.Call) and _last(function.func) == "getattr" and len(function.args) > 1:
        of, key = reading.script.dotted(function.args[0]), function.args[1]
    else:
        return ""
    name = reading.values.of(key, call.scope)
    return f"torchvision:{name}" if of == "torchvision.models" and isinstance(name, str) else ""


def _repository(name: str) -> str:
    mirror = _MIRROR.fullmatch(name)
    return mirror[1] if mirror else name


def _text(reading: Reading, call: Call) -> str:
    """The first argument, or that of one of `_NAMES`, where the text says it."""
    for node in (call.argument("", 0), *(call.argument(name) for name in _NAMES)):
        value: Any = reading.values.of(node, call.scope)
        if isinstance(value, str) and value:
            return str(value)
    return ""


def trained_model(reading: Reading) -> Own | Library | None:
    """The model that the script trains; None where it makes none.

    Among several, that whose parameters an optimizer gets or that a trainer is given; else of a script's own classes
    the one that no other names, else the first of a library.
    """
    own = own_models(reading.script)
    named = library_models(reading)
    for given, scope in _given_to_training(reading):
        made, _ = reading.values.made(given, scope)
        for each in named:
            if each.call.node is made:
                return each
        for call in reading.calls:
            if call.node is made and (found := _own(reading, own, call)) is not None:
                return _inside(reading, found, named)
    if own:
        near = [each for each in own if each[1] is reading.script] or own
        calls = [call for call in reading.calls if _own(reading, own, call) is not None]
        node, file = _largest(near)
        found = next((o for call in calls if (o := _own(reading, own, call)) and o.node is node), None)
        if found is None and named and not (near and near[0][1] is reading.script):
            return named[0]
        return _inside(reading, found or Own(node, file, reading.values, None), named)
    return named[0] if named else None


def _given_to_training(reading: Reading) -> list[tuple[ast.expr, Any]]:
    """Models whose parameters go to an optimizer, and models that trainers get."""
    found: list[tuple[ast.expr, Any]] = []
    for call in reading.calls:
        function = call.node.func
        if isinstance(function, ast.Attribute) and function.attr in ("parameters", "named_parameters"):
            found.append((function.value, call.scope))
        elif call.last.endswith("Trainer") and (model := call.argument("model", 0)) is not None:
            found.append((model, call.scope))
        elif isinstance(function, ast.Attribute) and function.attr == "fit" and call.node.args:
            found.append((call.node.args[0], call.scope))
    return [each for each in found if _text_of(each[0]) not in ("self", "")]


def _text_of(node: ast.expr) -> str:
    return ast.unparse(node) if isinstance(node, (ast.Name, ast.Attribute, ast.Call)) else ""


def _own(reading: Reading, own: list[tuple[ast.ClassDef, Script]], call: Call) -> Own | None:
    """The class of the script that a call makes."""
    module, _, name = call.name.rpartition(".")
    for node, file in own:
        local = file is reading.script and call.name == node.name
        if local or (file is not reading.script and name == node.name and module.partition(".")[0] == file.path.stem):
            return Own(node, file, reading.values, call)
    return None


def _inside(reading: Reading, found: Own, named: list[Library]) -> Own | Library:
    """Of a LightningModule that has one model and no layers of its own, that model."""
    if not is_lightning(found.node):
        return found
    parts = [
        call
        for call in reading.calls
        if call.scope.of_class == found.node.name and call.target and call.scope.function is not None
        and call.scope.function.name == "__init__" and f"self.{call.target}" in _assigned(reading)
    ]  # fmt: skip
    layers = [call for call in parts if re.match(r"(torch\.)?nn\.", call.name) and not call.last.endswith("Loss")]
    models = [each for each in named if any(each.call is call for call in parts)]
    own = [o for call in parts if (o := _own(reading, own_models(reading.script), call)) is not None]
    if len(models) == 1 and not layers and not own:
        return models[0]
    return own[0] if len(own) == 1 and not layers and not models else found


def _assigned(reading: Reading) -> set[str]:
    return {each.target for bindings in reading.script.attributes.values() for each in bindings}


def _largest(models: list[tuple[ast.ClassDef, Script]]) -> tuple[ast.ClassDef, Script]:
    """The model that no other one names, the last of several; parts of a model stand before it."""
    named = {
        node.id
        for model, _ in models
        for node in ast.walk(model)
        if isinstance(node, ast.Name) and node.id != model.name
    }
    return next((each for each in reversed(models) if each[0].name not in named), models[-1])


def _last(node: ast.expr) -> str:
    """The last name of a dotted one: AdamW of torch.optim.AdamW."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
