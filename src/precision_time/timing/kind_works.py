"""The hardware-independent works of the distinct operators of a program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precision_time.bounded_cache import STRUCTURES, bounded
from precision_time.capture.graph import OpSignature, TensorSpec
from precision_time.capture.kinds import Form, SizedKinds
from precision_time.errors import InternalError
from precision_time.layout.segment import OpSignatures
from precision_time.timing.operators import WorkOptions, operator_key, touched, works
from precision_time.timing.recording import Recording, Repeatable
from precision_time.timing.work import (
    ATTENTION,
    CONV_DEPTHWISE,
    CONV_FEW,
    NATIVE_BF16,
    TILE_FAMILIES,
    VECTOR_CONVOLUTIONS,
    Work,
)
from precision_time.timing.work_table import TableDraft, WorkTable

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class KindWorks:
    """The works of all operators of a program in one table; `owner[i]` is the operator that work i belongs to.

    Rivals are the kernels of the next wider arithmetic (see `_WIDER`) that the library may choose instead, and does
    where they are faster: float32 (Winograd) on devices whose TF32 peak is not higher, or for products too small for
    matrix units. `with_rivals` has them after the works of `table`; `rival_of[i]` is the work that rival i may replace.
    Parts that were joined after they were timed have none. `launches` are those of the host: helper kernels (layout
    transposes) are launched within the library's call.
    """

    table: WorkTable
    owner: NDArray[np.intp]
    launches: NDArray[np.intp]
    nbytes: Array
    family: tuple[str, ...]
    unsupported: tuple[int, ...]
    is_cast: NDArray[np.bool_]
    with_rivals: WorkTable
    rival_of: NDArray[np.intp]


@bounded()
def kind_works(kinds: OpSignatures, options: WorkOptions) -> KindWorks:
    """The hardware-independent works of a program's distinct operators."""
    if isinstance(kinds.own, SizedKinds):
        form, values = kinds.own.form, kinds.own.values
        if form.in_bfloat16 is None:
            return _form_works(form, options).at(values)
        return _in_float16(_form_works(form.in_bfloat16, options).at(values))
    draft, numbers = _Draft.of(kinds, options)
    return draft.works(np.array(numbers, dtype=np.float64))


def _in_float16(works: KindWorks) -> KindWorks:
    """The works of the same operators in float16 in place of bfloat16, which differ in arithmetic and variant alone."""

    def renamed(table: WorkTable) -> WorkTable:
        classes = [
            (family, _float16_variant(family, variant, kind), _FLOAT16.get(math, math), kind)
            for family, variant, math, kind in table.classes
        ]
        return replace(table, classes=tuple(classes))

    return replace(works, table=renamed(works.table), with_rivals=renamed(works.with_rivals))


def _float16_variant(family: str, variant: str, kind: str) -> str:
    """cuDNN's batch norms serve float16, and not bfloat16 (`traffic`), as do its depthwise convolutions in NCHW
    (`operators`); convolutions of few channels have other kernels in bfloat16 (`conv_work`)."""
    if kind != "half":
        return variant
    if family == "batch_norm":
        return variant.replace(".native.", ".cudnn.")
    if family == CONV_DEPTHWISE:
        return variant.replace(NATIVE_BF16, "nchw")
    return variant.replace(".bf16.", ".") if family == CONV_FEW else variant


_FLOAT16 = {"bf16": "fp16"}


@dataclass(frozen=True, slots=True, eq=False)
class _Draft:
    """`KindWorks` apart from their numbers."""

    with_rivals: TableDraft
    owner: NDArray[np.intp]
    family: tuple[str, ...]
    unsupported: tuple[int, ...]
    is_cast: NDArray[np.bool_]
    rival_of: NDArray[np.intp]

    @classmethod
    def of(cls, kinds: Sequence[OpSignature], options: WorkOptions) -> tuple[_Draft, list[float]]:
        """The draft, and the numbers of its table."""
        works_of_all: list[Work] = []
        operators: list[str] = []
        owner: list[int] = []
        unsupported: list[int] = []
        rivals: list[Work] = []
        rival_of: list[int] = []
        for index, kind in enumerate(kinds):
            rule = works(kind, options)
            if rule is None:
                unsupported.append(index)
                rule = [touched(kind)]
            wider = _wider(kind, rule, options)
            for position, work in enumerate(rule):
                if wider is not None and work.math in _WIDER and work.family in _ARITHMETIC:
                    rivals.append(wider[position])
                    rival_of.append(len(works_of_all) + position)
            works_of_all += rule
            operators += [operator_key(kind)] * len(rule)
            owner += [index] * len(rule)
        table, numbers = TableDraft.of(works_of_all + rivals, operators)
        draft = cls(
            table,
            np.array(owner, dtype=np.intp),
            tuple([w.family for w in works_of_all]),
            tuple(unsupported),
            np.array([_is_cast(kind) for kind in kinds], dtype=np.bool_),
            np.array(rival_of, dtype=np.intp),
        )
        return draft, numbers

    def works(self, numbers: Array) -> KindWorks:
        """The works with these numbers."""
        count, with_rivals = len(self.is_cast), self.with_rivals.table(numbers)
        table = with_rivals.first(len(self.owner))
        launches = np.where(table.serial_bytes > 0.0, 1.0, table.launches)
        return KindWorks(
            table=table,
            owner=self.owner,
            launches=sum_by(self.owner, launches, count).astype(np.intp),
            nbytes=sum_by(self.owner, table.bytes, count),
            family=self.family,
            unsupported=self.unsupported,
            is_cast=self.is_cast,
            with_rivals=with_rivals,
            rival_of=self.rival_of,
        )


class _FormWorks:
    """Works of the operators of a form at any sizes, by the recordings made so far, the last used first."""

    def __init__(self, form: Form, options: WorkOptions) -> None:
        self._form, self._options = form, options
        self._recorded: tuple[tuple[_Draft, Repeatable], ...] = ()

    def held_bytes(self) -> int:
        """Bytes of memory, once there is a recording."""
        return 330 * len(self._form)

    def at(self, values: Sequence[int]) -> KindWorks:
        """The works; `values`: of the form's polynomials."""
        sizes = np.array(values, dtype=np.float64)
        for place, (draft, repeatable) in enumerate(self._recorded):
            numbers = repeatable.at(sizes)
            if numbers is not None:
                if place:
                    others = (*self._recorded[:place], *self._recorded[place + 1 :])
                    self._recorded = ((draft, repeatable), *others)
                return draft.works(numbers)
        recording = Recording()
        draft, wanted = _Draft.of(self._form.at(_Inputs(recording, values, self._form.fixed)), self._options)
        repeatable = recording.finish(wanted)
        self._recorded = ((draft, repeatable), *self._recorded[: _MOST_RECORDED - 1])
        numbers = repeatable.at(sizes)
        if numbers is None:
            raise InternalError("a recording does not hold for the sizes it was made with")
        return draft.works(numbers)


_MOST_RECORDED = 4
"""Recordings kept of one form. Another is made where a comparison comes out differently: where a rule takes the larger
of two tensors and that is another one."""

_form_works = bounded(budget=STRUCTURES)(_FormWorks)


class _Inputs(Sequence[Any]):
    """Values of polynomials, those that differ between sizes as inputs of a recording."""

    def __init__(self, recording: Recording, values: Sequence[int], fixed: Sequence[bool]) -> None:
        self._recording, self._values, self._fixed = recording, values, fixed

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, number: Any) -> Any:
        value = self._values[number]
        return value if self._fixed[number] else self._recording.input(number, value)


_WIDER = {"tf32": "float32", "fp16": "float32", "bf16": "float32", "fp8": "bfloat16"}
"""Arithmetic of a product -> dtype of the kernels that may replace it; float32 ones then do without TF32."""
_NARROW = {"bfloat16": "float32", "float16": "float32", "float8_e4m3fn": "bfloat16", "float8_e5m2": "bfloat16"}
_ARITHMETIC = TILE_FAMILIES | VECTOR_CONVOLUTIONS | {ATTENTION}


def _wider(kind: OpSignature, rule: Sequence[Work], options: WorkOptions) -> list[Work] | None:
    """The works of an operator of products in the next wider arithmetic; None where there is none."""
    maths = {work.math for work in rule if work.family in _ARITHMETIC and work.math in _WIDER}
    if not maths:
        return None
    fp8 = "fp8" in maths

    def widened(specs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        return tuple(
            replace(spec, dtype=_NARROW.get(spec.dtype, spec.dtype))
            if not fp8 or spec.dtype.startswith("float8")
            else spec
            for spec in specs
        )

    without = replace(options, tf32=False, tf32_convolutions=False)
    return works(replace(kind, inputs=widened(kind.inputs), outputs=widened(kind.outputs)), without)


def sum_by(owner: NDArray[np.intp], values: Array, count: int) -> Array:
    if not len(owner):
        return np.zeros(count)
    return np.asarray(np.bincount(owner, weights=values, minlength=count), dtype=np.float64)


def _is_cast(kind: OpSignature) -> bool:
    return kind.name in ("aten._to_copy", "pt.quantize", "pt.dequantize") or (
        kind.name == "pt.sweep" and kind.attr("label") in ("master_gradients", "master_to_weights")
    )
