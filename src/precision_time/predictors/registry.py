"""Names and classes of the predictors. A class is imported when it is asked for, since each needs other libraries."""

from __future__ import annotations

import importlib

from precision_time.errors import MissingExtraError, PredictorError, nearest
from precision_time.predictors.interface import Predictor

PREDICTORS: dict[str, str] = {
    "simulator": "simulator:Simulator",
    "boosting": "boosting:Boosting",
    "boosting-residual": "residual:BoostingResidual",
    "additive": "additive:Additive",
    "predictddl": "predictddl:PredictDDL",
    "ernest": "ernest:Ernest",
}
"""Name on the command line -> module and class below this package."""

BLIND: dict[str, str] = {
    "simulator": "simulator:BlindSimulator",
    "boosting": "boosting:BlindBoosting",
    "additive": "additive:BlindAdditive",
}
"""Their precision-blind twins: the same with the dtype frozen."""

FORMER_NAMES: dict[str, str] = {"line": "simulator"}
"""Former name -> name; both are accepted."""


def current_name(name: str) -> str:
    """The name of a predictor that may be given by a former one."""
    return FORMER_NAMES.get(name, name)


def predictor_class(name: str, blind: bool = False) -> type[Predictor]:
    """The class of a predictor, or of its blind twin. Raises a `PredictorError` for an unknown name."""
    name, table = current_name(name), BLIND if blind else PREDICTORS
    if name not in table:
        raise PredictorError(
            f"predictor {name!r} {'has no blind twin' if blind and name in PREDICTORS else 'is unknown'}; "
            f"nearest: {nearest(name, table)}; use one of {', '.join(table)}"
        )
    module, _, cls = table[name].partition(":")
    try:
        predictor = getattr(importlib.import_module(f"precision_time.predictors.{module}"), cls)
    except ImportError as error:
        raise MissingExtraError(
            f"predictor {name!r} needs {error.name}; install it with: pip install 'precision-time[predictors]'"
        ) from error
    return predictor  # type: ignore[no-any-return]
