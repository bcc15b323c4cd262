"""What a plan chooses among, and the candidates that it makes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from precision_time.checks import show
from precision_time.errors import CatalogError, JobError, MissingPeakError
from precision_time.field_types import (
    BATCH,
    GPUS,
    MOST_GPUS,
    SWITCH,
    TEXT,
    apply_checks,
    choice,
    number,
    option,
    optional,
    structured,
)
from precision_time.global_batch import global_batch_of
from precision_time.hardware.catalog import Catalog
from precision_time.hardware.gpu import Gpu
from precision_time.job.job import Job
from precision_time.job.precision import parse_precision
from precision_time.job.schedule import PrecisionFrom
from precision_time.placement import catalog_of, cluster_of
from precision_time.plan.floors import Work
from precision_time.plan.goal import Goal
from precision_time.plan.grid import grid_of
from precision_time.plan.layouts import arranged
from precision_time.plan.offers import Offer, offers_of, placed_offers
from precision_time.plan.schedules import Schedule, parse_schedule
from precision_time.prediction import predict
from precision_time.timing.kernels import compute_peak

LAYOUTS = ("own", "auto")
USUAL_COUNTS = tuple(1 << n for n in range(7))
"""GPUs that are tried where no counts are given: 1 to 64."""
MOST_COUNTS = 64


def _texts(field: str, value: Any) -> tuple[str, ...]:
    """A list of words, or text with commas."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, (list, tuple)) or not parts or not all(isinstance(part, str) for part in parts):
        raise JobError(f"{field} must be a list of words, not {show(value)}")
    return tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))


def counts_of(field: str, value: Any) -> tuple[int, ...]:
    """Numbers of GPUs: a list, "8,16,24", or "8..256" for the powers of two times 8."""
    if isinstance(value, str) and ".." in value:
        low, _, high = value.partition("..")
        least, most = GPUS(field, low), GPUS(field, high)
        if least > most:
            raise JobError(f"{field} {show(value)} begins above its end; write {most}..{least}")
        found = []
        while least <= min(most, MOST_GPUS):
            found.append(least)
            least *= 2
        return tuple(found)
    parts = value.split(",") if isinstance(value, str) else [value] if isinstance(value, int) else value
    if not isinstance(parts, (list, tuple)) or not 1 <= len(parts) <= MOST_COUNTS:
        raise JobError(f"{field} must be 8..256 or a list of 1 to {MOST_COUNTS} numbers, not {show(value)}")
    return tuple(dict.fromkeys(GPUS(field, part) for part in parts))


WORDS = structured("list", _texts)
COUNTS = structured("list", counts_of)


@dataclass(frozen=True, slots=True)
class Space:
    """What a plan chooses among; None: the usual.

    Prices are those of `providers`: clouds of the price list, `any`, SkyPilot catalogs (.csv), clusters of one's own
    (.yaml). `pue` multiplies the energy of the GPUs, `grid` names a country for CO2.
    """

    providers: tuple[str, ...] = option(("any",), WORDS, "clouds, any, price files (.csv) or clusters (.yaml)")
    gpu: tuple[str, ...] | None = option(None, optional(WORDS), "GPU types (default: all that the providers have)")
    gpus: tuple[int, ...] | None = option(None, optional(COUNTS), "numbers of GPUs: 8..256 or 8,12,16 (default 1..64)")
    precision: tuple[str, ...] | None = option(None, optional(WORDS), "precisions (default: the job's)")
    schedule: Schedule | None = option(  # noqa: RUF009
        None, optional(structured("text", parse_schedule)), "fp32:N%..amp-bf16: a first precision, then another"
    )
    layout: str = option("own", choice(LAYOUTS), "own: the job's layout; auto: all valid ones")
    global_batch_size: int | None = option(None, optional(BATCH), "samples of a step (default: the job's)")
    reserved: bool = option(False, SWITCH, "also prices of reserved instances, which need a commitment")
    spot: str | None = option(None, optional(TEXT), "spot instances, as the published traces or a trace file have them")
    pue: float = option(1.0, number(1.0, 5.0), "power usage effectiveness: of the building over the GPUs")
    grid: str | None = option(None, optional(structured("text", lambda field, value: grid_of(value).name)), "country")

    def __post_init__(self) -> None:
        apply_checks(self)
        if self.schedule and self.precision:
            raise JobError(f"precision is given beside schedule {self.schedule}, which names both; keep one of them")


@dataclass(frozen=True, slots=True)
class Candidates:
    """The jobs of a plan, what can be rented for each, and why GPU types and counts were left out."""

    jobs: tuple[Job, ...]
    offers: tuple[tuple[Offer, ...], ...]
    refused: tuple[tuple[str, str], ...]
    """(kind of reason, sentence)."""
    global_batch: int
    shares: tuple[float, ...] = ()
    """Of the steps of each job, those in its first precision."""
    pruned: bool = False
    """Whether floors left any out."""


def candidates(job: Job, space: Space, goal: Goal) -> Candidates:
    """Every job of the space at the same global batch, with its offers, but those whose floor is over the goal.

    Raises `CatalogError` for an unknown provider or GPU, and `JobError` for an unknown precision.
    """
    catalog = catalog_of(job)
    offers = offers_of(space.providers, catalog, space.reserved)
    batch = space.global_batch_size or global_batch_of(job)
    types = [catalog.gpu(name) for name in space.gpu or dict.fromkeys(offer.gpu for offer in offers)]
    precisions = _precisions(job, space, batch)
    limited = goal.deadline_hours is not None or goal.budget_usd is not None
    names = dict.fromkeys(name for precision in precisions for name in precision.names)
    work = {name: Work.of(job, name, batch) for name in names} if limited else {}
    made = _Made([], [], [], goal, work, [], [])
    for gpu in types:
        for precision in precisions:
            try:
                for name in precision.names:
                    compute_peak(gpu, parse_precision(name).math, "")
            except MissingPeakError as error:
                made.refused.append(("have no unit for the precision", f"{error}"))
                continue
            for count in space.gpus or USUAL_COUNTS:
                _place(made, _Place(job, gpu, precision, count, batch), space, offers, catalog)
    shares = tuple(made.shares)
    return Candidates(tuple(made.jobs), tuple(made.offers), tuple(made.refused), batch, shares, any(made.pruned))


@dataclass(frozen=True, slots=True)
class _Precision:
    """One precision, or a schedule of two of which the first holds for `share` of the steps."""

    entries: tuple[PrecisionFrom, ...]
    share: float = 1.0

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(entry.precision for entry in self.entries)

    def __str__(self) -> str:
        return " then ".join(self.names)


def _precisions(job: Job, space: Space, batch: int) -> list[_Precision]:
    schedule = space.schedule
    if schedule is None:
        names = [parse_precision(name).label for name in space.precision or (job.precision,)]
        return [_Precision((PrecisionFrom(0, name),)) for name in names]
    steps = steps_of(job, schedule.then, batch)
    return [_Precision(schedule.entries(share, steps), share) for share in schedule.shares]


def steps_of(job: Job, precision: str, batch: int) -> int:
    """Steps of the run at a global batch, on whichever GPUs."""
    one = job.replace(
        gpus=1, nodes=None, node=None, system=None, layout="dp", precision=precision, batch_size=batch, grad_accum=1
    )
    return predict(one).steps or 0


@dataclass(frozen=True, slots=True)
class _Place:
    job: Job
    gpu: Gpu
    precision: _Precision
    count: int
    batch: int


@dataclass(frozen=True, slots=True)
class _Made:
    jobs: list[Job]
    offers: list[tuple[Offer, ...]]
    refused: list[tuple[str, str]]
    goal: Goal
    work: Mapping[str, Work]
    pruned: list[bool]
    shares: list[float]

    def over(self, place: _Place, offer: Offer) -> str:
        """What the floor of a run on an offer's GPUs is over; "" where it is not over the goal."""
        hours = self._floor_hours(place)
        if self.goal.deadline_hours is not None and hours > self.goal.deadline_hours:
            return "are too slow even at the peak of their GPUs"
        usd = hours * offer.usd_per_hour(place.count)
        if self.goal.budget_usd is not None and usd > self.goal.budget_usd:
            return "are too expensive even at the peak of their GPUs"
        return ""

    def _floor_hours(self, place: _Place) -> float:
        if not self.work:
            return 0.0
        floors = [self.work[name].seconds(place.gpu, place.count) / 3600.0 for name in place.precision.names]
        share = place.precision.share
        return share * floors[0] + (1.0 - share) * floors[-1]


def _place(made: _Made, place: _Place, space: Space, offers: Sequence[Offer], catalog: Catalog) -> None:
    """Add the candidates of one GPU type, precision and count."""
    name = f"{place.count} x {place.gpu.name}"
    try:
        base = _based(place, None)
        cluster = cluster_of(base, catalog)
    except (JobError, CatalogError) as error:
        made.refused.append(("cannot be connected or laid out", f"{name}: {error}"))
        return
    found = placed_offers(offers, place.gpu.name, place.count, cluster.gpus_per_node)
    if not found:
        made.refused.append(("are not offered, or have no known price", name))
        return
    over = {made.over(place, offer) for offer in found}
    found = [offer for offer in found if not made.over(place, offer)]
    made.pruned.append(over != {""})
    if not found:
        made.refused.append((min(over), f"{name} in {place.precision}"))
        return
    auto = space.layout == "auto"
    before = len(made.jobs)
    for node in dict.fromkeys(offer.node for offer in found):
        there = tuple(offer for offer in found if offer.node == node)
        placed = _based(place, node)
        domain = min(cluster_of(placed, catalog).node.domain_gpus, place.count)
        for job in arranged(placed, place.count, domain, place.batch, all_layouts=auto):
            made.jobs.append(job)
            made.offers.append(there)
            made.shares.append(place.precision.share)
    if len(made.jobs) == before:
        made.refused.append(("cannot share the global batch evenly", f"{name} with {place.batch} samples a step"))


def _based(place: _Place, node: str | None) -> Job:
    """The job on these GPUs, in its own layout, without a price."""
    run = dict.fromkeys(("price", "price_per_gpu_hour"))
    changes: dict[str, Any] = {"gpu": place.gpu.name, "gpus": place.count, "nodes": None, "system": None, "node": node}
    if place.precision.names != (place.job.precision,):
        changes["precision"] = place.precision.entries
    if place.job.layout_spec.dp == place.job.gpus:  # ranks follow from the GPUs
        changes["layout"] = place.job.layout_spec.text(with_dp=False)
    return place.job.replace(**changes, **run)


def combinations(found: Candidates) -> Iterator[tuple[int, Offer]]:
    """Every candidate with every offer for it."""
    for index, offers in enumerate(found.offers):
        for offer in offers:
            yield index, offer
