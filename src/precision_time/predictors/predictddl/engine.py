"""The inference engine: a request comes in (a job), a forecast goes out, and how long each part of that took."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from precision_time.hardware.cluster_nodes import NodeResources, job_fields
from precision_time.job.job import Job
from precision_time.predictors.interface import Forecast
from precision_time.predictors.predictddl.network import Floats, Network
from precision_time.predictors.predictddl.task_checker import check
from precision_time.predictors.predictddl.trainer import Embedder, Trained


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one request: checking (with tracing the network, where it is new), embedding it, the regressor."""

    check_s: float
    embed_s: float
    model_s: float

    @property
    def total_s(self) -> float:
        return self.check_s + self.embed_s + self.model_s


class RememberingEmbedder:
    """Embeds each network once: equal jobs share theirs, which is what makes a second answer cheap."""

    def __init__(self, embed: Embedder) -> None:
        self._embed = embed
        self._known: dict[int, tuple[Network, Floats]] = {}

    def __call__(self, network: Network) -> Floats:
        known = self._known.get(id(network))
        if known is None:  # the network is kept beside its vector, so that its id stays its own
            known = self._known[id(network)] = (network, self._embed(network))
        return known[1]


class Engine:
    """Answers requests with trained predictors. `listen` handlers hear of every answer: a log, a store, a page."""

    def __init__(self, trained: Mapping[str, Trained], embed: Embedder) -> None:
        self._trained = trained
        self._embed = embed
        self._listeners: list[Callable[[Job, Forecast, Timing], None]] = []

    def listen(self, handler: Callable[[Job, Forecast, Timing], None]) -> None:
        self._listeners.append(handler)

    def answer(self, job: Job, nodes: Sequence[NodeResources] = ()) -> tuple[Forecast, Timing]:
        """A forecast of a job, on `nodes` (all of them) where given, else on the cluster that the job names."""
        if nodes:
            job = job.replace(**job_fields(nodes))
        start = time.perf_counter()
        facts, who = check(job, self._trained)
        checked = time.perf_counter()
        vector = self._embed(facts.network)
        embedded = time.perf_counter()
        forecast = who.forecast(facts, vector)
        timing = Timing(checked - start, embedded - checked, time.perf_counter() - embedded)
        for handler in self._listeners:
            handler(job, forecast, timing)
        return forecast, timing
