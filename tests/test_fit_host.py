"""The fit of the host's costs, against planted ones and against launch times of our H100."""

from pathlib import Path

import numpy as np
import pytest

from precision_time.fit import host
from precision_time.fit.cases import case_of
from precision_time.fit.host import COSTS, USUAL_US, Launched, errors_of, fitted_us
from precision_time.measurements.table import read_table
from precision_time.timing.host import RelativeCosts, host_costs, kind_of, relative_costs

TABLES = Path(__file__).parent.parent / "data"
PLANTED_US = dict(zip(COSTS, (15.0, 45.0, 130.0, 30.0, 60.0, 50.0, 8.0, 900.0), strict=True))


def steps_of(costs_us: dict[str, float], without: str = "") -> list[Launched]:
    """200 steps of random networks whose launches take exactly `costs_us`."""
    random = np.random.default_rng(7)
    counts = np.round(10.0 ** random.uniform(0.0, 3.0, size=(200, len(COSTS))))
    counts[:, COSTS.index("step")] = 1.0
    if without:
        counts[:, COSTS.index(without)] = 0.0
    costs = np.array([costs_us[name] for name in COSTS])
    return [Launched(line, float(line @ costs) * 1e-6) for line in counts]


def test_planted_costs_are_found() -> None:
    steps = steps_of(PLANTED_US)
    found = fitted_us(steps)
    for name in COSTS:
        assert found[name] == pytest.approx(PLANTED_US[name], rel=0.1), name
    assert np.abs(errors_of(steps, found)).max() < 0.02


def test_a_cost_that_no_step_tells_keeps_its_usual_value() -> None:
    found = fitted_us(steps_of(PLANTED_US, without="product"))
    assert found["product"] == pytest.approx(USUAL_US[COSTS.index("product")], rel=1e-6)
    assert found["convolution"] == pytest.approx(PLANTED_US["convolution"], rel=0.05)


def test_one_step_of_another_host_moves_little() -> None:
    steps = steps_of(PLANTED_US)
    slow = Launched(steps[0].counts, 30.0 * steps[0].seconds)
    found = fitted_us([*steps, slow])
    for name in COSTS:
        assert found[name] == pytest.approx(PLANTED_US[name], rel=0.2), name


@pytest.mark.parametrize(
    ("operator", "kind"),
    [
        ("aten.convolution", "convolution"),
        ("aten.convolution_backward", "convolution_backward"),
        ("aten.native_batch_norm", "batch_norm"),
        ("aten.cudnn_batch_norm_backward", "batch_norm_backward"),
        ("aten.addmm", "product"),
        ("aten.native_layer_norm", None),
        ("aten.add", None),
    ],
)
def test_operators_have_the_cost_of_their_kind(operator: str, kind: str | None) -> None:
    assert kind_of(operator) == kind
    relative = RelativeCosts(
        convolution=2.0, convolution_backward=6.0, batch_norm=3.0, batch_norm_backward=4.0, product=5.0
    )
    assert relative.of(operator) == (1.0 if kind is None else getattr(relative, kind))
    assert relative.batch_norm_backward == relative.of("aten.native_batch_norm_backward") == 4.0


@pytest.mark.slow
def test_launch_times_of_our_h100_follow_from_the_shipped_costs() -> None:
    """Of the zoo's networks. Of the median, as some that the device limits waited for it (U-Net 3D's loss scaler)."""
    lines = host.host_seconds(TABLES)
    rows = [r for r in read_table(TABLES / host.STEPS).rows if r.job and "timm" not in r.model and r.id in lines]
    steps = [
        host.launched_step(case_of(row, row.job), lines[row.id])
        for row in rows
        if row.job is not None and host.tells_of_the_host(row, lines[row.id])
    ]
    assert len(steps) >= 30
    eager, relative = host_costs("eager"), relative_costs()
    found = {name: eager.operator_s * 1e6 * getattr(relative, name) for name in host.RELATIVE}
    found |= {"operator": eager.operator_s * 1e6, "view": eager.view_s * 1e6, "step": eager.step_s * 1e6}
    assert np.median(np.abs(errors_of(steps, found))) < 0.25
