"""A law of work beneath the regressor: seconds of a step as a sum over its operations, fitted to the same runs.

    seconds = steps * sum over terms of theta * x,   theta >= 0, one set for each precision

with x the ideal seconds of the network's operations and bytes by kind of layer (at the device's peak and bandwidth,
or at nominal ones where it has none), its counts of layers and of recurrent steps, its weights, and one; all of them
once more for several ranks. Fitted by non-negative least squares on relative errors. This is an addition of this
project: the regressor then predicts log(seconds / law) instead of log(seconds). The law is additive where regressors
of logs are multiplicative, so one law fits networks bound by launches and networks bound by arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from precision_time.bounded_cache import bounded
from precision_time.predictors.interface import global_batch_size
from precision_time.predictors.predictddl.facts import Facts
from precision_time.predictors.predictddl.features import activation_bytes, peak_of
from precision_time.predictors.predictddl.network import Floats, Network
from precision_time.predictors.predictddl.primitives import Primitive

NOMINAL_PEAK, NOMINAL_BANDWIDTH = 1e11, 1e10
"""FLOP/s and bytes/s of a device without peaks; theta then contains the ratio to its real ones."""
_DENSE: Mapping[str, tuple[Primitive, ...]] = {
    "convolution": (Primitive.CONV, Primitive.DIL_CONV),
    "grouped convolution": (Primitive.SEP_CONV,),
    "linear": (Primitive.LINEAR,),
    "attention": (Primitive.MSA,),
    "recurrent": (Primitive.RNN,),
}
_MOVING: Mapping[str, tuple[Primitive, ...]] = {
    "norm": (Primitive.BN, Primitive.LN),
    "activation": (Primitive.ACT,),
    "other": (Primitive.POOL, Primitive.SUM, Primitive.CSE, Primitive.CONCAT, Primitive.EMBEDDING),
}
_STATELESS = ("sgd", "none")
_LAYER_S, _STEP_S = 1e-4, 1e-3
_ROUNDS = 6
LSTM_GATES = 4
ANY = ""
"""Key of the theta for precisions without training runs."""


@bounded()  # the same jobs are asked about in every fold
def terms(facts: Facts) -> Floats:
    """The x of a job's step, seconds each, then the same again where it has several ranks (else zeros); read-only."""
    network, cluster = facts.network, facts.cluster
    precision = facts.job.precision_spec
    samples = facts.batch_size * facts.job.grad_accum
    peak = peak_of(cluster, precision) if cluster else NOMINAL_PEAK
    bandwidth = cluster.gpu.memory_bytes_per_s if cluster else NOMINAL_BANDWIDTH
    flops = network.flops * samples / peak
    moved = network.bytes * samples * activation_bytes(precision) / 4.0 / bandwidth
    dense = [np.isin(network.types, kinds) for kinds in _DENSE.values()]
    weights = 4.0 * network.parameters / bandwidth
    on_cpu = cluster is None or cluster.gpu.device_type == "cpu"
    stateless = facts.job.optimizer in _STATELESS
    step = [
        *(float(flops[mine].sum()) for mine in dense),
        float(moved[np.any(dense, axis=0)].sum()),
        *(float(moved[np.isin(network.types, kinds)].sum()) for kinds in _MOVING.values()),
        _LAYER_S * _stepped(network) * facts.job.grad_accum if on_cpu else 0.0,
        _LAYER_S * network.nodes * facts.job.grad_accum,
        weights if stateless else 0.0,
        0.0 if stateless else weights,
        _STEP_S,
    ]
    known = np.array([*step, *(step if facts.ranks > 1 else [0.0] * len(step))])
    known.flags.writeable = False
    return known


def _stepped(network: Network) -> int:
    """Time steps of recurrent layers that PyTorch runs one by one on a CPU: all but the LSTM, which oneDNN fuses."""
    mine = (network.types == Primitive.RNN) & (network.shapes[:, 3] != LSTM_GATES)
    return int(network.shapes[mine, 2].sum())


def steps(facts: Facts) -> float:
    """Steps of a job, parts of one counted as parts."""
    return facts.samples / global_batch_size(facts.job)


@dataclass(frozen=True, slots=True)
class Law:
    """Theta by precision label, and under `ANY` that of all together."""

    theta: Mapping[str, Floats]

    def log_seconds(self, facts: Sequence[Facts]) -> Floats:
        """Logs of what the law says of jobs."""
        seconds = [float(terms(each) @ self._of(each)) * steps(each) for each in facts]
        return np.log(np.maximum(seconds, 1e-9))

    def _of(self, facts: Facts) -> Floats:
        return self.theta.get(facts.job.precision_spec.label, self.theta[ANY])


def fit_law(facts: Sequence[Facts], seconds: Floats) -> Law:
    """Fit to measured seconds."""
    rows = np.stack([terms(each) * steps(each) for each in facts])
    labels = np.array([each.job.precision_spec.label for each in facts])
    theta = {ANY: _solve(rows, seconds)}
    for label in sorted(set(labels.tolist())):
        mine = labels == label
        theta[label] = _solve(rows[mine], seconds[mine])
    return Law(theta)


def _solve(rows: Floats, seconds: Floats) -> Floats:
    """Non-negative least squares whose weights turn relative errors into errors of logs, round by round.

    Weights of 1 / seconds alone favour predictions that are too small: those are off by one at most.
    """
    from scipy.optimize import nnls

    weights = 1.0 / seconds
    theta = np.zeros(rows.shape[1])
    sizes = np.maximum(np.linalg.norm(rows, axis=0), 1e-300)
    for _ in range(_ROUNDS):
        theta = nnls(rows * weights[:, None] / sizes, seconds * weights)[0] / sizes
        weights = 1.0 / np.sqrt(seconds * np.maximum(rows @ theta, 1e-3 * seconds))
    return np.asarray(theta)
