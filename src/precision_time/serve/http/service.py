"""What the routes answer from: workers, the store, what is learned, and kept replies. One method for each route."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import itertools
import json
import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import precision_time
from precision_time.errors import JobError, StoreError, UnknownPredictionError
from precision_time.estimate.estimate import Estimate
from precision_time.reading import to_json
from precision_time.serve.http import metrics
from precision_time.serve.http.answers import limit_of
from precision_time.serve.http.cache import Replies
from precision_time.serve.http.corrections import Corrections
from precision_time.serve.http.kept_state import KeptState
from precision_time.serve.http.limits import CACHE_BYTES
from precision_time.serve.http.listings import board, gpus, models
from precision_time.serve.http.metrics import Metrics
from precision_time.serve.http.pool import Pool
from precision_time.serve.http.problems import ProblemError
from precision_time.serve.http.safe_job import safe_job
from precision_time.serve.records import Outcome, Prediction, Recorded, Store
from precision_time.serve.store import new_id

Result = TypeVar("Result")
DEFAULT_CLUSTER = "default"
_STORE_THREADS = 8
_LEARNED_AT_ONCE = 500
_OWN_KEY = "job "
"""Begins keys that the server makes of a job; a client's key has no space."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A body, which is JSON unless `media_type` says otherwise."""

    body: bytes
    status: int = 200
    media_type: str = "application/json"
    cache: tuple[str, int] | None = None
    """Cluster and state for which the same request has the same reply."""


def as_json(value: Any, status: int = 200) -> Reply:
    return Reply(to_json(value).encode(), status)


class Service:
    """The state of a server. Its methods are called in one event loop."""

    def __init__(self, pool: Pool, store: Store, kept: KeptState | None = None) -> None:
        """`kept`: where what is learned outlasts the server; None: nowhere."""
        self.pool, self.store, self.learned, self._kept = pool, store, Corrections(), kept
        self.metrics = Metrics()
        self.replies = Replies(CACHE_BYTES)
        self.document: bytes = b"{}"
        self._threads = ThreadPoolExecutor(_STORE_THREADS, "store")
        self._asked: dict[bytes, asyncio.Future[dict[str, Any]]] = {}
        self._learning = asyncio.Lock()
        self.metrics.gauges.update(
            workers=("Processes that predict.", lambda: float(pool.count)),
            workers_replaced=("Processes that were ended and replaced.", lambda: float(pool.replaced)),
            waiting=("Requests that wait for a worker or are answered by one.", lambda: float(pool.waiting)),
            cache_bytes=("Bytes of kept replies.", lambda: float(self.replies.held_bytes)),
        )

    async def stored(self, call: Callable[..., Result], *arguments: Any) -> Result:
        """A call of the store, in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments)

    async def learn(self) -> None:
        """Learn from outcomes that the store has got since the last time, also from other servers."""
        async with self._learning:
            while found := await self.stored(self._recorded, self.learned.number):
                for recorded in found:
                    self.learned.learn(recorded)
                    await asyncio.sleep(0)  # requests go on beside a long history

    async def restore(self) -> None:
        """Begin with what an earlier server learned."""
        if self._kept is not None:
            self.learned = await self.stored(self._kept.load, self.store)

    async def write_learned(self, least: int = 1) -> None:
        """Write what was learned, for the next server, if `least` outcomes came since. Raises `DataError`."""
        if self._kept is not None:
            async with self._learning:
                await self.stored(self._kept.save, self.learned, least)

    def _recorded(self, after: int) -> list[Recorded]:
        return list(itertools.islice(self.store.recorded(after), _LEARNED_AT_ONCE))

    def close(self) -> None:
        """Close the store, once its calls have returned."""
        self._threads.shutdown(wait=True)
        self.store.close()

    # Predictions.

    async def predict(self, asked: dict[str, Any], _path: Mapping[str, str]) -> Reply:
        return await self._predicted("predict", asked)

    async def walltime(self, asked: dict[str, Any], _path: Mapping[str, str]) -> Reply:
        return await self._predicted("walltime", asked)

    async def _predicted(self, ask: str, asked: dict[str, Any]) -> Reply:
        """A prediction that is kept unless the request says otherwise. With a key that is known it is the kept one."""
        cluster, key, keep = asked.pop("cluster", DEFAULT_CLUSTER), asked.pop("key", None), asked.pop("keep", True)
        quantile = asked.pop("quantile", None)
        question = _question(asked)
        same = _same(ask, question, [cluster, key, keep, quantile])
        known = self.replies.get(same, self.learned.states)
        if known is not None:
            return Reply(known, cache=(cluster, self.learned.states.get(cluster, 0)))
        state = self.learned.states.get(cluster, 0)
        answer = await self._answer(ask, question, cluster)
        if "learned" in answer["estimate"]:
            self.metrics.count("corrected")
        estimate, limit, kept = answer["estimate"], answer.get("limit"), None
        if keep:
            made = _made(question, answer, cluster)
            kept = await self._keep(made, key, state)
            if kept.id != made.id:
                estimate, limit = kept.estimate, limit and _limit(kept.estimate, asked)
        self.metrics.count("predictions", route=ask)
        shown = {"estimate": _with_quantile(estimate, quantile)} if limit is None else limit
        body = {"id": kept.id if kept else None, **shown, "correction": estimate.get("learned")}
        reply = to_json(body).encode()
        if "graph" not in question:
            self.replies.add(same, cluster, state, reply)
        return Reply(reply, cache=(cluster, state))

    async def _answer(self, ask: str, question: dict[str, Any], cluster: str) -> dict[str, Any]:
        """The answer of a worker, corrected by the outcomes of a cluster; the same question, asked at once by many, is
        answered once."""
        lesson = self.learned.lesson(cluster)
        if "graph" in question:  # large, and its digest is only checked by the worker
            return await self.pool.ask(ask, question, lesson)
        key = json.dumps([ask, question, lesson and [cluster, lesson.number]], sort_keys=True).encode()
        asked = self._asked.get(key)
        if asked is None:
            asked = asyncio.ensure_future(self.pool.ask(ask, question, lesson))
            self._asked[key] = asked
            asked.add_done_callback(lambda _: self._asked.pop(key, None))
            asked.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(asked)

    async def _keep(self, made: Prediction, key: str | None, state: int) -> Prediction:
        """The prediction that is kept: this one, or an earlier one of the same key or job."""
        same = json.dumps([made.job, made.cluster, state, made.versions], sort_keys=True).encode()
        stored_key = key if key is not None else _OWN_KEY + hashlib.sha256(same).hexdigest()
        kept = await self.stored(self.store.add_prediction, dataclasses.replace(made, key=stored_key))
        if kept.id == made.id:
            self.metrics.count("kept_predictions")
        elif dict(kept.job) != made.job or kept.cluster != made.cluster:
            raise ProblemError(
                409, f"key {key!r} belongs to another job or cluster; give another key", field="key", value=key
            )
        return kept

    # Searches and imports, of which nothing is kept.

    async def compare(self, asked: dict[str, Any], _path: Mapping[str, str]) -> Reply:
        return await self._searched("compare", asked)

    async def plan(self, asked: dict[str, Any], _path: Mapping[str, str]) -> Reply:
        return await self._searched("plan", asked)

    async def _searched(self, ask: str, asked: dict[str, Any]) -> Reply:
        cluster = asked.pop("cluster", DEFAULT_CLUSTER)
        state = self.learned.states.get(cluster, 0)
        answer = await self._answer(ask, _question(asked), cluster)
        self.metrics.count("predictions", route=ask)
        return Reply(to_json(answer).encode(), cache=(cluster, state))

    async def import_file(self, asked: dict[str, Any], _path: Mapping[str, str]) -> Reply:
        return as_json(await self.pool.ask("import_file", asked))

    # Outcomes.

    async def record(self, asked: dict[str, Any], path: Mapping[str, str]) -> Reply:
        measured = {name: value for name, value in asked.items() if name not in ("key", "machine")}
        if not measured:
            raise JobError("the outcome has no measurement; give step_s, steps_s, run_s, peak_bytes or finished")
        content = to_json([path["id"], asked]).encode()
        key = asked.pop("key", None) or f"content-{hashlib.sha256(content).hexdigest()[:32]}"
        outcome = Outcome(key=key, prediction=path["id"], recorded_at=time.time(), **asked)
        try:
            new = await self.stored(self.store.add_outcome, outcome)
        except UnknownPredictionError:
            raise _unknown(path["id"]) from None
        self.metrics.count("outcomes", new=str(new).lower())
        if new:
            await self.learn()
        return as_json({"key": key, "new": new}, 201 if new else 200)

    async def predictions(self, asked: dict[str, Any], _path: Mapping[str, str]) -> Reply:
        limit = asked.get("limit", 50)
        found = await self.stored(self.store.predictions, asked.get("cluster"), asked.get("before"), limit)
        shown = [await self._with_outcomes(each) for each in found]
        return as_json({"predictions": shown, "next": found[-1].id if len(found) == limit else None})

    async def _with_outcomes(self, made: Prediction) -> dict[str, Any]:
        """A line of the list."""
        outcomes = await self.stored(self.store.outcomes, made.id)
        brief = {name: made.estimate.get(name) for name in ("step", "run", "cost_usd")}
        return {
            "id": made.id,
            "made_at": made.made_at,
            "cluster": made.cluster,
            "job": made.job,
            **brief,
            "memory": {name: made.estimate["memory"].get(name) for name in ("peak_bytes", "fits")},
            "outcomes": [_outcome(each) for each in outcomes],
        }

    async def prediction(self, _asked: dict[str, Any], path: Mapping[str, str]) -> Reply:
        made = await self.stored(self.store.prediction, path["id"])
        if made is None:
            raise _unknown(path["id"])
        outcomes = await self.stored(self.store.outcomes, made.id)
        kept = {
            name: getattr(made, name) for name in ("id", "made_at", "cluster", "job", "estimate", "facets", "versions")
        }
        return as_json(
            {"prediction": {**kept, "predicted": list(made.predicted)}, "outcomes": [_outcome(o) for o in outcomes]}
        )

    async def accuracy(self, asked: dict[str, Any], _path: Mapping[str, str]) -> Reply:
        return as_json(self.learned.accuracy(asked.get("cluster", DEFAULT_CLUSTER)))

    async def anomalies(self, asked: dict[str, Any], _path: Mapping[str, str]) -> Reply:
        cluster = asked.get("cluster", DEFAULT_CLUSTER)
        found = self.learned.anomalies(cluster)
        for anomaly in found:
            made = await self.stored(self.store.prediction, anomaly["prediction"])
            anomaly["job"] = made.job if made else {}
        return as_json({"cluster": cluster, "anomalies": found})

    async def clusters(self, _asked: dict[str, Any], _path: Mapping[str, str]) -> Reply:
        known = {DEFAULT_CLUSTER: (0, 0), **await self.stored(self.store.clusters)}
        counts = [{"name": name, "predictions": p, "outcomes": o} for name, (p, o) in sorted(known.items())]
        return as_json({"clusters": counts})

    # What the package knows, and the server itself.

    async def board(self, _asked: dict[str, Any], _path: Mapping[str, str]) -> Reply:
        return as_json(board())

    async def models(self, _asked: dict[str, Any], _path: Mapping[str, str]) -> Reply:
        return Reply(models())

    async def gpus(self, _asked: dict[str, Any], _path: Mapping[str, str]) -> Reply:
        return Reply(gpus())

    async def health(self, _asked: dict[str, Any], _path: Mapping[str, str]) -> Reply:
        try:
            await self.stored(self.store.check)
        except StoreError as error:
            raise ProblemError(503, str(error), retry_s=5) from error
        return as_json({"status": "ok", "version": precision_time.__version__, "workers": len(self.pool.pids)})

    async def metrics_text(self, _asked: dict[str, Any], _path: Mapping[str, str]) -> Reply:
        return Reply(self.metrics.text().encode(), media_type=metrics.MEDIA_TYPE)

    async def openapi(self, _asked: dict[str, Any], _path: Mapping[str, str]) -> Reply:
        return Reply(self.document)


def _question(asked: dict[str, Any]) -> dict[str, Any]:
    """What a worker is asked, with the job in one form. Raises what `safe_job` raises."""
    graph = asked.get("graph")
    return {**asked, "job": safe_job(asked["job"], None if graph is None else _digest(graph)).to_dict()}


def _same(ask: str, question: Mapping[str, Any], rest: list[Any]) -> bytes:
    """A key that requests for the same job share, in whatever words; of a posted graph, whose content is not in it, a
    key of its own."""
    if "graph" in question:
        return new_id().encode()
    return hashlib.sha256(json.dumps([ask, question, rest], sort_keys=True).encode()).digest()


def _with_quantile(estimate: Mapping[str, Any], probability: float | None) -> Mapping[str, Any]:
    if probability is None:
        return estimate
    return Estimate.from_dict(estimate).with_quantile(probability).to_dict()


def _limit(estimate: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    """The time limit of an estimate that was kept earlier."""
    return limit_of(Estimate.from_dict(estimate), asked)


def _made(question: Mapping[str, Any], answer: Mapping[str, Any], cluster: str) -> Prediction:
    """The prediction of an answer, not yet kept."""
    return Prediction(
        id=new_id(),
        made_at=time.time(),
        cluster=cluster,
        job=question["job"],
        estimate=answer["estimate"],
        facets=answer["facets"],
        predicted=tuple(answer["predicted"]),
        versions=_versions(),
    )


def _digest(graph: Mapping[str, Any]) -> str:
    """What a posted graph says its digest is; the worker that predicts it checks that."""
    digest = graph.get("digest")
    if not isinstance(digest, str) or not re.fullmatch("[0-9a-f]{64}", digest):
        raise JobError("graph has no digest; post what precision-time capture wrote")
    return digest


def _unknown(name: str) -> ProblemError:
    return ProblemError(404, f"there is no prediction {name[:100]!r}; POST /v1/predict gives the id", field="id")


def _outcome(outcome: Outcome) -> dict[str, Any]:
    values = {name: getattr(outcome, name) for name in Outcome.__slots__ if name != "prediction"}
    return {**values, "steps_s": list(outcome.steps_s)[:100], "machine": dict(outcome.machine)}


def _versions() -> dict[str, str]:
    return {"precision_time": precision_time.__version__}
