"""`Client`: the calls of the library, answered by a server (`precision-time serve`).

    client = Client("https://predict.example", token="pt_...")
    estimate = client.predict(Job("resnet50", gpus=8))
    client.record(estimate, step_s=0.112, finished=True)

It needs httpx: pip install 'precision-time[client]'.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlsplit

from precision_time import errors
from precision_time.checks import show, small_number, text
from precision_time.comparison import Comparison, Row
from precision_time.errors import DataError, MissingExtraError, PrecisionTimeError, ServeError, shortened
from precision_time.estimate.estimate import Estimate
from precision_time.job.code import is_code
from precision_time.job.job import Job
from precision_time.plan import Goal, Space
from precision_time.plan.walltime import FORMAT, TimeLimit
from precision_time.reading import decoded, parse_json, to_json
from precision_time.reading.values import MOST_SAVED_VALUES

if TYPE_CHECKING:
    import httpx

TOKEN = "PRECISION_TIME_TOKEN"
"""Variable of the environment with the token, where none is given."""
_WAIT_S = (0.2, 1.0, 3.0)
"""Waits before a request is repeated, where the server is busy or the connection fails: equal requests have one
effect."""
_LONGEST_WAIT_S = 10.0
LARGEST_REPLY = 64 << 20
"""Most bytes of an answer; a comparison of 64 jobs has half a megabyte."""


_Answer = TypeVar("_Answer", Estimate, Comparison, TimeLimit, "ServedEstimate")


@dataclass(frozen=True, slots=True)
class ServedEstimate(Estimate):
    """An estimate of a server. `prediction`: the id that outcomes name; None where the server keeps none."""

    prediction: str | None = None


class Client:
    """A server at `url`. `token`: default $PRECISION_TIME_TOKEN; `cluster`: whose outcomes correct predictions.

    Methods raise what the library raises, with the sentence of the server, and `ServeError` where it does not answer.
    Closed by `close` or at the end of a `with` block; may be used by several threads.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        cluster: str | None = None,
        timeout_s: float = 60.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """`transport` replaces the connection, for tests."""
        try:
            import httpx
        except ImportError:
            raise MissingExtraError("a client needs httpx: pip install 'precision-time[client]'") from None
        if not _is_address(url):
            raise ServeError(f"server {show(url)} is no address; give http://HOST:PORT or https://HOST")
        token = token if token is not None else os.environ.get(TOKEN)
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self._http = httpx.Client(base_url=url, headers=headers, timeout=timeout_s, transport=transport)
        self._url, self._cluster, self._timeout_s = url, cluster, timeout_s
        self._errors, self._late = (httpx.HTTPError, httpx.InvalidURL, OSError), httpx.TimeoutException

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def predict(
        self, job: Job | Mapping[str, Any], *, key: str | None = None, keep: bool = True, graph: Any = None
    ) -> ServedEstimate:
        """The estimate of a job, which the server keeps unless `keep` is false.

        `key`: the same key twice is one prediction. `graph`: the content of a file of `precision-time capture`; a model
        that is a Python file is captured here, which needs PyTorch, and posted so.
        """
        body = {**self._of_job(job, graph), "key": key, "keep": keep}
        reply = self._post("/v1/predict", body)
        with self._understood():
            estimate = Estimate.from_dict(reply["estimate"])
            values = {item.name: getattr(estimate, item.name) for item in dataclasses.fields(Estimate)}
            if isinstance(job, Job) and is_code(job.model):
                values["job"] = estimate.job.replace(model=job.model)
            return _shown(ServedEstimate(**values, prediction=reply["id"] and text("id", reply["id"])))

    def compare(
        self,
        job: Job | Mapping[str, Any],
        *,
        precisions: Sequence[str] = (),
        gpus: Sequence[str] = (),
        counts: Sequence[int] = (),
        layouts: Sequence[Any] = (),
        batch_sizes: Sequence[int] = (),
    ) -> Comparison:
        """The job with every combination of precisions, GPU types, numbers of GPUs, layouts and batch sizes."""
        axes = {
            "precisions": precisions, "gpus": gpus, "counts": counts, "layouts": layouts, "batch_sizes": batch_sizes
        }  # fmt: skip
        given = {name: list(values) for name, values in axes.items() if values}
        reply = self._post("/v1/compare", {**self._of_job(job), **given})
        with self._understood():
            rows = [
                Row(
                    Job.from_dict(row["job"]),
                    None if row["estimate"] is None else Estimate.from_dict(row["estimate"]),
                    row["error"],
                )
                for row in reply["rows"]
            ]
            return _shown(Comparison(tuple(rows), None if reply["baseline"] is None else rows[reply["baseline"]]))

    def plan(
        self,
        job: Job | Mapping[str, Any],
        goal: Goal | Mapping[str, Any] | None = None,
        space: Space | Mapping[str, Any] | None = None,
        quantile: float | None = None,
    ) -> dict[str, Any]:
        """`Plan.to_dict()` of the plan, and its `text`."""
        body = {**self._of_job(job), "goal": _given(goal), "space": _given(space), "quantile": quantile}
        found = self._post("/v1/plan", body)
        with self._understood():
            if not isinstance(found["text"], str):
                raise TypeError("text is none")
        return found

    def walltime(
        self,
        job: Job | Mapping[str, Any],
        confidence: float = 0.95,
        format: str = "seconds",
        *,
        key: str | None = None,
        graph: Any = None,
    ) -> TimeLimit:
        """The time limit to ask a scheduler for; the prediction is kept under `key`, if one is given."""
        body = {**self._of_job(job, graph), "confidence": confidence, "format": format, "key": key}
        reply = self._post("/v1/walltime", body)
        with self._understood():
            values = {item.name: reply[item.name] for item in dataclasses.fields(TimeLimit)}
            if type(values["seconds"]) is not int or type(values["median_s"]) is not int:
                raise TypeError("seconds are whole numbers")
            return _shown(TimeLimit(**{**values, "format": FORMAT("format", values["format"])}))

    def record(self, prediction: str | ServedEstimate, *, key: str | None = None, **measured: Any) -> bool:
        """Record how a predicted job went; False where the prediction has an outcome of this key already.

        `measured`: step_s, steps_s, run_s, peak_bytes, finished, machine, as in `POST /v1/predictions/{id}/outcomes`.
        """
        known = prediction.prediction if isinstance(prediction, ServedEstimate) else prediction
        if known is None:
            raise ServeError("the prediction was not kept, so it has no outcomes; predict the job with keep=True")
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in measured.items()}
        reply = self._post(f"/v1/predictions/{_quoted(known)}/outcomes", {"key": key, **plain})
        with self._understood():
            return bool(reply["new"])

    def predictions(self, *, before: str | None = None, limit: int = 50) -> list[dict[str, Any]]:
        """Kept predictions with their outcomes, the latest first; `before`: the id of the last one that was seen."""
        query = {"cluster": self._cluster, "before": before, "limit": limit}
        reply = self._get("/v1/predictions", query)
        with self._understood():
            found: list[dict[str, Any]] = reply["predictions"]
            return found

    def prediction(self, id: str) -> dict[str, Any]:
        """A kept prediction with its estimate and its outcomes."""
        return self._get(f"/v1/predictions/{_quoted(id)}", {})

    def import_file(self, text: str, name: str | None = None, **job: Any) -> dict[str, Any]:
        """The job in the text of another program's file: its `kind`, `job` and `notes`."""
        return self._post("/v1/import", {"text": text, "name": name, "job": job})

    def _of_job(self, job: Job | Mapping[str, Any], graph: Any = None) -> dict[str, Any]:
        """Job, graph and cluster of a body."""
        if graph is None and isinstance(job, Job) and is_code(job.model):
            from precision_time.capture.posted_graph import captured

            graph = captured(job, [job.precision_spec]).to_dict()
        fields = job.to_dict() if isinstance(job, Job) else dict(job)
        if graph is not None:
            fields.pop("model", None)
            return {"job": fields, "graph": graph, "cluster": self._cluster}
        return {"job": fields, "cluster": self._cluster}

    def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        content = to_json({name: value for name, value in body.items() if value is not None})
        return self._answer("POST", path, content=content, headers={"content-type": "application/json"})

    def _get(self, path: str, query: Mapping[str, Any]) -> dict[str, Any]:
        return self._answer("GET", path, params={name: value for name, value in query.items() if value is not None})

    def _answer(self, method: str, path: str, **request: Any) -> dict[str, Any]:
        for wait_s in (*_WAIT_S, None):
            try:
                status, headers, content = self._whole(method, path, request)
            except self._errors as error:
                if wait_s is None or isinstance(error, self._late):
                    why = " ".join(str(error).split()) or type(error).__name__
                    raise ServeError(
                        shortened(f"server {self._url} does not answer ({why}); check its address")
                    ) from None
            else:
                if status != 503 or wait_s is None:
                    return self._read(status, content)
                wait_s = min(max(wait_s, small_number(headers.get("retry-after", "")) or 0.0), _LONGEST_WAIT_S)
            time.sleep(wait_s)
        raise AssertionError("the last try returns or raises")

    def _whole(self, method: str, path: str, request: Mapping[str, Any]) -> tuple[int, Mapping[str, str], bytes]:
        """Status, headers and body of a reply, within limits of time and size."""
        end, content = time.monotonic() + self._timeout_s, bytearray()
        with self._http.stream(method, path, **request) as reply:
            for piece in reply.iter_bytes():
                content += piece
                if len(content) > LARGEST_REPLY:
                    raise ServeError(f"server {self._url} answers more than {LARGEST_REPLY:,} bytes; ask for less")
                if time.monotonic() > end:
                    raise ServeError(
                        f"server {self._url} answers too slowly: it is not done after {self._timeout_s:g} s; try again"
                    )
            return reply.status_code, reply.headers, bytes(content)

    def _read(self, status: int, body: bytes) -> dict[str, Any]:
        content = None
        with contextlib.suppress(DataError):
            content = parse_json(decoded(body, "the answer"), "the answer", MOST_SAVED_VALUES)
        if 200 <= status < 300 and isinstance(content, dict):
            with self._understood():
                _check_intervals(content)
            return content
        if isinstance(content, dict) and isinstance(content.get("detail"), str):
            kind = getattr(errors, str(content.get("error")), ServeError)
            known = isinstance(kind, type) and issubclass(kind, PrecisionTimeError)
            refusal = (kind if known else ServeError)(shortened(content["detail"]))
            if isinstance(refusal, ServeError):
                refusal.http_status = status
            raise refusal
        raise ServeError(f"server {self._url} answered {status} without JSON; is it precision-time serve?")

    @contextlib.contextmanager
    def _understood(self) -> Iterator[None]:
        """The block reads a reply, which may be of another program or of another version."""
        try:
            yield
        except (PrecisionTimeError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
            raise ServeError(
                f"server {self._url} answered with JSON that is no answer to this request; is it precision-time serve "
                "of this version?"
            ) from None


def _check_intervals(answer: Any) -> None:
    """Raises `ValueError` for P10, P50 and P90 that are in another order or below 0."""
    if isinstance(answer, dict) and {"p10", "p50", "p90"} <= answer.keys():
        if not 0 <= answer["p10"] <= answer["p50"] <= answer["p90"]:
            raise ValueError("an interval is not ordered")
    elif isinstance(answer, (dict, list)):
        for each in answer.values() if isinstance(answer, dict) else answer:
            _check_intervals(each)


def _shown(answer: _Answer) -> _Answer:
    """The answer, once it could be written as text and as JSON: a part of a wrong type would fail only then."""
    str(answer)
    to_json(answer.to_dict())
    return answer


def _given(noun: Goal | Space | Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The fields of a goal or space that are not their defaults."""
    if noun is None or isinstance(noun, Mapping):
        return None if noun is None else dict(noun)
    usual = type(noun)()
    values = {item.name: getattr(noun, item.name) for item in dataclasses.fields(noun)}
    changed = {name: value for name, value in values.items() if value != getattr(usual, name)}
    return {
        name: list(value) if isinstance(value, tuple) else str(value) if name == "schedule" else value
        for name, value in changed.items()
    }


def _quoted(name: str) -> str:
    return quote(name, safe="")


def _is_address(url: str) -> bool:
    """Whether a text is the address of a server."""
    try:
        parts = urlsplit(url)
        return (
            parts.scheme in ("http", "https") and bool(parts.hostname) and not re.search(r"\s", url) and parts.port != 0
        )
    except ValueError:
        return False
