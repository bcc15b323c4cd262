"""Optimizers that work on whole matrices: Muon, SOAP and Shampoo. All other weights have AdamW.

Matrices are the weights with two dimensions inside blocks, and those of every expert; embeddings, heads, norms and
biases are not. Each is updated by itself:

muon     one momentum; five Newton-Schulz iterations in bf16, three products each, the first and second of the smaller
         side (torch.optim.Muon of PyTorch 2.13, `_single_tensor_muon`; Jordan et al. 2024; arXiv:2502.16982)
soap     Adam in the eigenbasis of Shampoo's preconditioners (arXiv:2409.11321, algorithm 3): moments of gradients, and
         for either side of at most 10,000 its preconditioner and eigenbasis; in every step an outer product and three
         projections a side, in every tenth a product and a QR decomposition a side (its section 4: f = 10)
shampoo  Distributed Shampoo (arXiv:2309.06497) with Adam's step length: moments, and for either side, in blocks of at
         most 8,192, its preconditioner and inverse root; in every step an outer product and a product a side, in every
         hundredth an eigendecomposition and two products a side (the values of its README's examples)

What is rarer than once a step is spread evenly: of 448 decompositions in every tenth step each has 44 and one with the
attribute `share`, 0.8.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from precision_time.capture.graph import OpSignature, TensorSpec

ITERATIONS = 5
"""Newton-Schulz iterations of Muon."""
_HALF = "bfloat16"


class Matrix(NamedTuple):
    """`times` matrices of one shape."""

    rows: int
    columns: int
    times: int

    @property
    def elements(self) -> int:
        """Of all of them."""
        return self.rows * self.columns * self.times


@dataclass(frozen=True, slots=True)
class MatrixRule:
    """How one of these optimizers keeps and updates a matrix.

    states       tensors of the matrix's shape that it keeps
    side_states  square matrices that it keeps for either side
    longest      longest side that has them; with `blocks` longer ones are cut into blocks, else they have none
    every        steps between decompositions of such a square matrix
    decomposes   operator of the decomposition; `products`: products of square matrices beside it
    projects     products of the matrix with a square one, for either side in every step
    """

    states: int
    side_states: int = 0
    longest: int = 0
    blocks: bool = False
    every: int = 1
    decomposes: str = ""
    products: int = 0
    projects: int = 0

    def state_elements(self, matrix: Matrix) -> int:
        """Elements that are kept for all matrices of a shape."""
        kept = self.states * matrix.rows * matrix.columns
        return matrix.times * (kept + self.side_states * sum(n * side * side for side, n in self._squares(matrix)))

    def temporary_bytes(self, matrix: Matrix) -> int:
        """Bytes of temporaries while one matrix is updated: the update in fp32 and, of Muon, two copies in bf16 and two
        products of the smaller side; of the others, a projection and a square matrix of the larger side."""
        elements, sides = matrix.rows * matrix.columns, (matrix.rows, matrix.columns)
        if not self.side_states:
            return 8 * elements + 4 * min(sides) ** 2
        return 8 * elements + 4 * max((side * side for side, _ in self._squares(matrix)), default=0)

    def operators(self, matrix: Matrix, gradient: str, state: str) -> Iterator[tuple[OpSignature, int]]:
        """The operators of one update, with how often each runs for all matrices of a shape."""
        if self.side_states:
            yield from self._preconditioned(matrix, state)
            return
        for kind, count in _newton_schulz(matrix, gradient, state):
            yield kind, count * matrix.times

    def _squares(self, matrix: Matrix) -> list[tuple[int, int]]:
        """Sides of the square matrices kept for a matrix, and how many there are of each."""
        if not self.blocks:
            return [(side, 1) for side in (matrix.rows, matrix.columns) if side <= self.longest]
        (rows, down), (columns, across) = (_blocks(side, self.longest) for side in (matrix.rows, matrix.columns))
        return [(rows, down * across), (columns, down * across)]

    def _preconditioned(self, matrix: Matrix, state: str) -> Iterator[tuple[OpSignature, int]]:
        whole = TensorSpec((matrix.rows, matrix.columns), state)
        for side, each in self._squares(matrix):
            count = each * matrix.times
            square = TensorSpec((side, side), state)
            across = -(-matrix.rows * matrix.columns // (side * each))
            wide, tall = TensorSpec((side, across), state), TensorSpec((across, side), state)
            yield OpSignature("aten.mm", (wide, tall), (square,)), count  # outer product
            yield OpSignature("aten.lerp_", (square, square), (square,)), count
            yield OpSignature("aten.mm", (square, wide), (wide,)), self.projects * count
            yield OpSignature("aten.mm", (square, square), (square,)), -(-self.products * count // self.every)
            steady, rest = divmod(count, self.every)
            decomposition = OpSignature(self.decomposes, (square,), (square,))
            yield decomposition, steady
            yield replace(decomposition, attrs=(("share", rest / self.every),)), int(rest > 0)
        pointwise = partial(OpSignature, outputs=(whole,))
        yield pointwise("aten.lerp_", (whole, whole)), matrix.times
        yield pointwise("aten.mul_", (whole,)), 2 * matrix.times  # second moment, weight decay
        yield pointwise("aten.addcmul_", (whole, whole)), matrix.times
        yield pointwise("aten.sqrt", (whole,)), matrix.times
        yield pointwise("aten.div", (whole, whole)), matrix.times
        yield pointwise("aten.add_", (whole, whole)), matrix.times


def _blocks(side: int, longest: int) -> tuple[int, int]:
    """Length and number of the equal blocks of a side."""
    count = -(-side // longest)
    return -(-side // count), count


def _newton_schulz(matrix: Matrix, gradient: str, state: str) -> Iterator[tuple[OpSignature, int]]:
    """Of torch.optim.Muon, with Nesterov's momentum and weight decay."""
    full = TensorSpec((matrix.rows, matrix.columns), state)
    half, scalar = replace(full, dtype=_HALF), TensorSpec((), _HALF)
    small, large = sorted((matrix.rows, matrix.columns))
    wide, tall = TensorSpec((small, large), _HALF), TensorSpec((large, small), _HALF)
    square = TensorSpec((small, small), _HALF)
    yield OpSignature("aten.lerp_", (full, replace(full, dtype=gradient)), (full,)), 1
    yield OpSignature("aten.lerp", (replace(full, dtype=gradient), full), (full,)), 1
    yield OpSignature("aten._to_copy", (full,), (half,)), 1
    yield OpSignature("aten.linalg_vector_norm", (half,), (scalar,)), 1
    yield OpSignature("aten.clamp", (scalar,), (scalar,)), 1
    yield OpSignature("aten.div_", (half, scalar), (half,)), 1
    yield OpSignature("aten.mm", (wide, tall), (square,)), ITERATIONS
    yield OpSignature("aten.addmm", (square, square, square), (square,)), ITERATIONS
    yield OpSignature("aten.addmm", (wide, square, wide), (wide,)), ITERATIONS
    yield OpSignature("aten.mul_", (full,), (full,)), 1
    yield OpSignature("aten.add_", (full, half), (full,)), 1


MATRIX_RULES: dict[str, MatrixRule] = {
    "muon": MatrixRule(1),
    "soap": MatrixRule(2, side_states=2, longest=10_000, every=10, decomposes="aten.linalg_qr", products=1, projects=3),
    "shampoo": MatrixRule(
        2, side_states=2, longest=8192, blocks=True, every=100, decomposes="aten._linalg_eigh", products=2, projects=1
    ),
}
