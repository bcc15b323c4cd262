"""A model as a file: the operators of one training step, traced where the model is and predicted where it is not.

`captured` traces the model of a job in the dtype regimes of some precisions; `CapturedGraph.to_dict` is what the
command `capture` writes. A process that is given the content (`posted`) keeps it under its digest, and a job whose
model is `graph:DIGEST` is predicted from it as the model itself would be, in every precision of those regimes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from precision_time.capture import symbolic
from precision_time.capture.composed_norms import composed_rms_norms
from precision_time.capture.graph import OpGraph
from precision_time.capture.graph_json import graph_of, graph_values
from precision_time.capture.lengths import settle_lengths
from precision_time.capture.regimes import channels_last, dtype_renames, regime_of, transform
from precision_time.checks import show
from precision_time.errors import DataError, JobError
from precision_time.field_types import BATCH, SHARE
from precision_time.job import Job
from precision_time.job.choices import OPTIMIZER_IMPLS, OPTIMIZERS
from precision_time.job.code import POSTED
from precision_time.job.precision import Precision

FORMAT = "precision-time graph 1"
REGIMES = ("full", "autocast", "half")
_AGAIN = "capture the model again (precision-time capture)"


@dataclass(frozen=True, slots=True, eq=False)
class CapturedGraph:
    """A traced model.

    name           of the model, as its job had it
    graphs         regime -> operators as traced (`regimes`)
    attention      the attention that was traced, flash or math
    channels_last  whether images are stored so
    sizes          input sizes as the job gave them
    """

    name: str
    graphs: Mapping[str, OpGraph]
    attention: str
    channels_last: bool
    batch_size: int
    optimizer: str
    implementation: str | None
    sizes: Mapping[str, Any]
    length_spread: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values with their digest."""
        content = {
            "format": FORMAT,
            "name": self.name,
            "attention": self.attention,
            "channels_last": self.channels_last,
            "batch_size": self.batch_size,
            "optimizer": self.optimizer,
            "implementation": self.implementation,
            "input": dict(self.sizes),
            "length_spread": self.length_spread,
            "graphs": {regime: graph_values(graph) for regime, graph in self.graphs.items()},
        }
        plain = _whole_as_integers(json.dumps(content))
        return {**plain, "digest": digest_of(plain)}

    @classmethod
    def from_dict(cls, given: Any) -> CapturedGraph:
        """The inverse. Raises `DataError` for what `to_dict` has not written, or what was changed since."""
        if not isinstance(given, Mapping) or given.get("format") != FORMAT:
            found = given.get("format") if isinstance(given, Mapping) else given
            raise DataError(f"graph has the format {show(found)}, and {FORMAT!r} is read; {_AGAIN}")
        content = {key: value for key, value in given.items() if key != "digest"}
        if given.get("digest") != digest_of(content):
            raise DataError(f"graph was changed after it was captured: its digest is another one; {_AGAIN}")
        names = ("name", "attention", "channels_last", "batch_size", "optimizer", "implementation", "input",
                 "length_spread", "graphs")  # fmt: skip
        if set(content) != {"format", *names}:
            odd = sorted(set(content) ^ {"format", *names})[0]
            raise DataError(f"graph has a wrong set of fields ({show(odd)}); {_AGAIN}")
        graphs = content["graphs"]
        if not isinstance(graphs, Mapping) or not graphs or not set(graphs) <= set(REGIMES):
            raise DataError(f"graph has graphs {show(graphs)}; {_AGAIN}")
        name = content["name"]
        if not isinstance(name, str) or not 1 <= len(name) <= 300 or not name.isprintable():
            raise DataError(f"graph has the name {show(name)}; {_AGAIN}")
        return cls(
            name=name,
            graphs={regime: graph_of(values, name) for regime, values in graphs.items()},
            attention=_one_of("attention", content["attention"], ("flash", "math")),
            channels_last=_one_of("channels_last", content["channels_last"], (True, False)),
            batch_size=BATCH.entry(content["batch_size"], "graph: batch_size"),
            optimizer=_one_of("optimizer", content["optimizer"], OPTIMIZERS),
            implementation=_one_of("implementation", content["implementation"], (None, *OPTIMIZER_IMPLS)),
            sizes=dict(Job("any", input=content["input"] if isinstance(content["input"], Mapping) else {}).input),
            length_spread=SHARE.entry(content["length_spread"], "graph: length_spread"),
        )


def _one_of(field: str, value: Any, choices: Sequence[Any]) -> Any:
    if not any(value == choice and type(value) is type(choice) for choice in choices):
        raise DataError(f"graph has {field} {show(value)}; {_AGAIN}")
    return value


def digest_of(content: Mapping[str, Any]) -> str:
    """SHA-256 of the content without its digest, in one form of JSON, whichever program has written it again: jq and
    JavaScript write 0.0 as 0, others 0 as 0.0."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    if _WHOLE.search(text):
        text = json.dumps(_whole_as_integers(text), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


_WHOLE = re.compile(r"\.0[,\]}]|\de\+")
"""Finds every text in which `json` wrote a whole number as a float."""


def _whole_as_integers(text: str) -> Any:
    return json.loads(text, parse_float=lambda each: int(float(each)) if float(each).is_integer() else float(each))


def captured(job: Job, precisions: Sequence[Precision]) -> CapturedGraph:
    """The model of a job, FILE.py:FUNCTION, traced in the regimes of these precisions; needs PyTorch.

    Raises `CaptureError` where it cannot be traced, and `JobError` for any other model.
    """
    from precision_time.capture.user_model import traced_user_model

    formats = {channels_last(job.memory_format, precision) for precision in precisions}
    if len(formats) > 1:
        raise JobError("precision has fp64 and others, whose memory formats differ with nhwc; capture fp64 apart")
    graphs: dict[str, OpGraph] = {}
    for precision in precisions:
        if regime_of(precision) not in graphs:
            traced = traced_user_model(job, precision)
            graphs[regime_of(precision)] = traced.graph
    return CapturedGraph(
        name=job.model,
        graphs=graphs,
        attention="math" if job.attention == "math" else "flash",
        channels_last=formats.pop(),
        batch_size=traced.batch_size,
        optimizer=traced.optimizer,
        implementation=traced.optimizer_impl,
        sizes=dict(job.input),
        length_spread=settle_lengths(job.input)[1],
    )


MOST_KEPT_BYTES = 64 << 20
_posted: OrderedDict[str, CapturedGraph] = OrderedDict()


def posted(given: Any) -> tuple[str, CapturedGraph]:
    """Keep the content of a captured graph in this process; returns its digest and the graph. Raises `DataError`.

    The latest ones are kept, of `MOST_KEPT_BYTES` together.
    """
    content = dict(given) if isinstance(given, Mapping) else {}
    digest = content.pop("digest", None)
    known = _posted.get(digest) if isinstance(digest, str) and digest_of(content) == digest else None
    if known is None:
        known = CapturedGraph.from_dict(given)
        _posted[str(digest)] = known
        while len(_posted) > 1 and sum(map(_held_bytes, _posted.values())) > MOST_KEPT_BYTES:
            _posted.popitem(last=False)
    else:
        _posted.move_to_end(str(digest))
    return str(digest), known


def _held_bytes(captured_graph: CapturedGraph) -> int:
    return sum(graph.held_bytes() + 1000 * len(graph.kinds) for graph in captured_graph.graphs.values())


def posted_step(job: Job, precision: Precision, device_type: str) -> tuple[CapturedGraph, OpGraph]:
    """The graph of a job whose model is `graph:DIGEST`, and its operators in a precision.

    Raises `JobError` where the job asks for what was not traced.
    """
    found = _posted.get(job.model.removeprefix(POSTED))
    if found is None:
        raise JobError(f"model {job.model[:30]}... is a posted graph that is no longer kept; post it again")
    regime = regime_of(precision)
    if regime not in found.graphs:
        names = {"full": "fp32", "autocast": "amp-bf16", "half": "bf16"}
        raise JobError(
            f"precision {precision.label} needs a graph traced as {names[regime]}, and this one was traced as "
            f"{', '.join(names[each] for each in found.graphs)}; capture it with --precision {names[regime]} too"
        )
    if device_type != "cuda":
        raise JobError(f"gpu {job.gpu} is a CPU, and the graph was traced for a GPU; name a GPU")
    _check_same("batch_size", job.batch_size, found.batch_size)
    _check_same("input", dict(job.input) or None, dict(found.sizes))
    _check_same("attention", "math" if job.attention == "math" else "flash", found.attention)
    last = channels_last(job.memory_format, precision)
    _check_same("memory_format", "nhwc" if last else "nchw", "nhwc" if found.channels_last else "nchw")
    if job.lora is not None:
        raise JobError("lora adds adapters to models of the zoo; leave lora out and capture a model with its adapters")
    if job.loss is not None:
        raise JobError(f"loss {job.loss} changes models of the zoo; leave it out, and capture a model with its loss")
    if job.model_config:
        raise JobError("model_config changes models of the zoo; leave it out and capture the changed model")
    graph = replace(found.graphs[regime], name=job.model)
    graph = symbolic.rename_dtypes(graph, dtype_renames(precision))
    graph = transform(graph, precision, job.execution, device_type)
    return found, composed_rms_norms(graph) if job.composes_rms_norms else graph


def _check_same(field: str, asked: Any, traced: Any) -> None:
    if asked is not None and asked != traced:
        raise JobError(f"{field} is {show(asked)}, and the graph was captured with {show(traced)}; capture it again")
