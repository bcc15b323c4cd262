"""The four regressors of PredictDDL on standardised columns: linear, degree-2 ridge, RBF-SVR, MLP.

scikit-learn fits them. The fitted arrays are evaluated here without it and saved as npz.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from precision_time.errors import PredictorError, nearest
from precision_time.predictors.predictddl.network import Floats

Arrays = Mapping[str, Floats]


@dataclass(frozen=True, slots=True)
class Setting:
    """A kind of regressor with its options."""

    kind: str
    options: tuple[tuple[str, float], ...] = ()

    @property
    def label(self) -> str:
        options = ", ".join(f"{name} {value:g}" for name, value in self.options)
        return f"{self.kind} ({options})" if options else self.kind


LINEAR, QUADRATIC, SVR, MLP = "linear", "quadratic-ridge", "rbf-svr", "mlp"

SETTINGS: tuple[Setting, ...] = (
    *(Setting(LINEAR, (("alpha", a),)) for a in (1e5, 1000.0, 10.0)),
    *(Setting(QUADRATIC, (("alpha", a),)) for a in (10000.0, 300.0)),
    *(Setting(SVR, (("C", c), ("width", w))) for c, w in ((0.3, 0.1), (0.3, 0.3), (3.0, 0.1), (3.0, 0.3))),
    Setting(MLP, (("alpha", 30.0),)),
)
"""Settings that the selection compares. `width` scales the RBF's 1 / columns."""
MANY_ROWS = 1000
SETTINGS_OF_MANY: tuple[Setting, ...] = (
    Setting(LINEAR, (("alpha", 10.0),)),
    *(Setting(QUADRATIC, (("alpha", a),)) for a in (3000.0, 300.0)),
    Setting(MLP, (("alpha", 30.0),)),
    *(Setting(SVR, (("C", c), ("width", w))) for c, w in ((10.0, 0.3), (3.0, 1.0))),
)
"""The same from `MANY_ROWS` rows on, where more flexible ones pay."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """Standardisation and a regressor, as arrays."""

    setting: Setting
    arrays: Arrays

    def predict(self, x: Floats) -> Floats:
        """Log seconds of rows."""
        a = self.arrays
        z = np.clip((x - a["mean"]) / a["deviation"], -_FAR, _FAR)
        return np.asarray(_PREDICT[self.setting.kind](z, a) * float(a["y_deviation"]) + float(a["y_mean"]))


_FAR = 6.0
"""Standard deviations at which columns are clipped, so that the square of an outlier does not dominate."""


_Solver = Callable[[Floats, Floats, Mapping[str, float], int], dict[str, Floats]]


def fit(setting: Setting, x: Floats, y: Floats, seed: int = 0) -> Fitted:
    """A regressor of log seconds `y` on columns `x`. Raises a `PredictorError` for an unknown kind."""
    if setting.kind not in _FIT:
        raise PredictorError(f"regressor {setting.kind!r} is unknown; nearest: {nearest(setting.kind, _FIT)}")
    mean, deviation = x.mean(0), x.std(0)
    deviation = np.where(deviation > 1e-9, deviation, 1.0)  # constant columns
    y_mean, y_deviation = float(y.mean()), float(y.std()) or 1.0
    z = (x - mean) / deviation
    learned = _FIT[setting.kind](z, (y - y_mean) / y_deviation, dict(setting.options), seed)
    scales = {"mean": mean, "deviation": deviation, "y_mean": np.array(y_mean), "y_deviation": np.array(y_deviation)}
    return Fitted(setting, {name: _rounded(array) for name, array in (scales | learned).items()})


def _rounded(array: Floats) -> Floats:
    """To single precision, in which arrays are saved, so that a saved regressor answers as the fitted one."""
    return np.asarray(array, dtype=np.float32).astype(np.float64)


def _squares(z: Floats) -> Floats:
    """Columns, and the products of every two of them."""
    i, j = np.triu_indices(z.shape[1])
    return np.hstack([z, z[:, i] * z[:, j]])


def _fit_linear(z: Floats, y: Floats, options: Mapping[str, float], _seed: int) -> dict[str, Floats]:
    ridge = _ridge(z, y, options["alpha"])
    # The median of the residuals is robust against a few outlying networks.
    return {**ridge, "intercept": np.array(np.median(y - z @ ridge["coefficients"]))}


def _fit_quadratic(z: Floats, y: Floats, options: Mapping[str, float], _seed: int) -> dict[str, Floats]:
    return _ridge(_squares(z), y, options["alpha"])


def _ridge(z: Floats, y: Floats, alpha: float) -> dict[str, Floats]:
    from sklearn.linear_model import Ridge

    model = Ridge(alpha=alpha).fit(z, y)
    return {"coefficients": model.coef_, "intercept": np.array(model.intercept_)}


def _fit_svr(z: Floats, y: Floats, options: Mapping[str, float], _seed: int) -> dict[str, Floats]:
    from sklearn.svm import SVR

    gamma = options["width"] / z.shape[1]
    model = SVR(C=options["C"], gamma=gamma, epsilon=0.01).fit(z, y)
    return {
        "support": model.support_vectors_,
        "dual": model.dual_coef_[0],
        "intercept": model.intercept_[0:1],
        "gamma": np.array(gamma),
    }


def _fit_mlp(z: Floats, y: Floats, options: Mapping[str, float], seed: int) -> dict[str, Floats]:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPRegressor

    net = MLPRegressor(
        hidden_layer_sizes=(32,), alpha=options["alpha"], solver="lbfgs", max_iter=150, random_state=seed
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=ConvergenceWarning)  # stopping early is its regularisation
        net.fit(z, y)
    return {
        f"{name}{i}": part
        for name, parts in (("w", net.coefs_), ("b", net.intercepts_))
        for i, part in enumerate(parts)
    }


def _say_linear(z: Floats, a: Arrays) -> Floats:
    return np.asarray(z @ a["coefficients"] + float(a["intercept"]))


def _say_quadratic(z: Floats, a: Arrays) -> Floats:
    return _say_linear(_squares(z), a)


def _say_svr(z: Floats, a: Arrays) -> Floats:
    support = a["support"]
    apart = (z**2).sum(1)[:, None] + (support**2).sum(1) - 2.0 * z @ support.T
    return np.asarray(np.exp(-float(a["gamma"]) * apart) @ a["dual"] + float(a["intercept"][0]))


def _say_mlp(z: Floats, a: Arrays) -> Floats:
    layers = sum(name.startswith("w") for name in a)
    for i in range(layers):
        z = z @ a[f"w{i}"] + a[f"b{i}"]
        z = np.maximum(z, 0.0) if i + 1 < layers else z
    return z[:, 0]


_FIT: dict[str, _Solver] = {LINEAR: _fit_linear, QUADRATIC: _fit_quadratic, SVR: _fit_svr, MLP: _fit_mlp}
_PREDICT: dict[str, Callable[[Floats, Arrays], Floats]] = {
    LINEAR: _say_linear,
    QUADRATIC: _say_quadratic,
    SVR: _say_svr,
    MLP: _say_mlp,
}
