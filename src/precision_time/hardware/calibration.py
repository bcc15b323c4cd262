"""What `calibrate` measured on a device: points of kernels, host costs, contention among ranks, collectives.

All fields are tuples, so equal calibrations compare and hash equal, and results derived from them can be cached.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields


@dataclass(frozen=True, slots=True)
class KernelPoints:
    """Timed eager calls as columns, one entry per point. The names are those of `timing.work.Work`."""

    operator: tuple[str, ...]
    """"aten.mm"; a sweep over parameters is "pt.sweep:LABEL"."""
    family: tuple[str, ...]
    variant: tuple[str, ...]
    math: tuple[str, ...]
    dtype: tuple[str, ...]
    """A torch dtype name."""
    batch: tuple[float, ...]
    m: tuple[float, ...]
    n: tuple[float, ...]
    k: tuple[float, ...]
    images: tuple[float, ...]
    positions: tuple[float, ...]
    taps: tuple[float, ...]
    stride: tuple[float, ...]
    """Of a convolution: images, output positions of each, taps of the kernel, product of strides; 1 elsewhere."""
    flops: tuple[float, ...]
    bytes: tuple[float, ...]
    launches: tuple[float, ...]
    seconds: tuple[float, ...]
    """Of the whole call."""
    spread: tuple[float, ...]
    """Standard deviation of repeats over their median."""

    def __len__(self) -> int:
        return len(self.seconds)

    @property
    def maths(self) -> tuple[str, ...]:
        return tuple(sorted(set(self.math)))


KERNEL_COLUMNS = tuple(item.name for item in fields(KernelPoints))
TEXT_COLUMNS = frozenset({"operator", "family", "variant", "math", "dtype"})
OPTIONAL_COLUMNS = frozenset({"images", "positions", "taps", "stride"})


@dataclass(frozen=True, slots=True)
class HostFigures:
    """The host's costs in eager mode, as `timing.host` names them, in microseconds."""

    operator_us: float
    view_us: float
    kernel_us: float
    sweep_us: float
    list_us: float
    tensor_us: float
    step_us: float
    backward_share: float
    log_spread: float


@dataclass(frozen=True, slots=True)
class Contention:
    """How much slower kernels run when `ranks` processes work on one node at once (cores, caches, memory shared)."""

    ranks: int
    compute: float
    memory: float
    classes: tuple[tuple[str, float], ...] = ()
    """Factors of single classes, as ("conv fp32", 1.4); `compute` and `memory` are those of all others."""

    def of(self, family: str, kind: str, compute: bool) -> float:
        """The factor of a family in a dtype class."""
        return dict(self.classes).get(f"{family} {kind}", self.compute if compute else self.memory)


@dataclass(frozen=True, slots=True)
class CollectivePoints:
    """One collective timed among `ranks` processes of one node, by message size."""

    name: str
    ranks: int
    nbytes: tuple[float, ...]
    seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Calibration:
    """One run of `calibrate` on one machine."""

    made: str
    """Date."""
    noise: float
    """Relative spread of equal measurements, repeated."""
    kernels: KernelPoints
    host: HostFigures | None = None
    contention: tuple[Contention, ...] = ()
    """By rising ranks."""
    collectives: tuple[CollectivePoints, ...] = ()
    command: str = ""
    machine: str = ""
    threads: int | None = None
    versions: tuple[tuple[str, str], ...] = ()
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        content = (self.made, self.noise, self.kernels, self.host, self.contention, self.collectives)
        object.__setattr__(self, "_hash", hash(content))  # thousands of numbers, hashed for every timed operator

    def __hash__(self) -> int:
        return self._hash

    def contention_of(self, ranks: int) -> Contention:
        """The factors for `ranks` processes on the node: of the nearest count not below, else of the largest."""
        if ranks <= 1 or not self.contention:
            return Contention(ranks, 1.0, 1.0)
        return next((each for each in self.contention if each.ranks >= ranks), self.contention[-1])

    def collective(self, name: str, ranks: int) -> CollectivePoints | None:
        """The measured times of a collective among that many ranks of one node, if any."""
        return next((each for each in self.collectives if (each.name, each.ranks) == (name, ranks)), None)
