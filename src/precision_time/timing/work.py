"""The work of a GPU kernel, independent of hardware: operations, bytes, launches and the shape of its product.

A `Work` is one kernel, or a short chain of kernels that always run in a row. `flops` are the operations of the direct
algorithm, `floor_flops` those of the cheapest algorithm known; no time is below the latter. A multiply-add is two FLOP.
The constructors below are the only place that knows how an operator's sizes become a matrix product; the registry of
operators calls them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, prod

from precision_time.timing.by_element import BY_ELEMENT, STEPS_OF_ONE_OPERAND
from precision_time.timing.few_channels import WHOLE_CHANNELS

Feature = tuple[str, float]

MATMUL, CONV, CONV_GROUPED, CONV_DEPTHWISE = "matmul", "conv", "conv_grouped", "conv_depthwise"
CONV_FEW = "conv_few"  # in half precision of fewer input channels than tensor cores load at once (`few_channels`)
CONV_DILATED = "conv_dilated"  # cuDNN picks from far fewer kernels once the taps are spread out
CONV_1D = "conv_1d"  # images one row high, dilated or not: cuDNN runs the kernels it has for two dimensions
CONV_DIRECT = "conv_direct"  # grouped, on vector units: what no kernel of the tensor cores takes
CONV_UNEVEN = "conv_uneven"  # grouped, each group alone in whole tiles: widths for which there is no kernel of its own
HELPERS = "helpers"  # no family of works: the kernels behind `serial_bytes`
ATTENTION, RNN, WINOGRAD = "attention", "rnn", "winograd"
VECTOR_CONVOLUTIONS = frozenset({CONV_DEPTHWISE, CONV_DIRECT})
"""Those that run on vector units, whatever the dtype of their operands."""
NATIVE = "native"  # layout of depthwise ones in NCHW that PyTorch's own kernels run (`operators`)
NATIVE_BF16 = "bf16.native"  # of those that cuDNN would run in float16
CONVOLUTIONS = frozenset({CONV, CONV_FEW, CONV_1D, CONV_DILATED, CONV_GROUPED, CONV_UNEVEN, *VECTOR_CONVOLUTIONS})
TILED_CONVOLUTIONS = CONVOLUTIONS - VECTOR_CONVOLUTIONS
TILE_FAMILIES = TILED_CONVOLUTIONS | {MATMUL, RNN}
MULTIPLYING = TILE_FAMILIES | {ATTENTION}
MATRIX_MATH = frozenset({"fp16", "bf16", "tf32"})
"""Families and arithmetic of matrix units, whose rate GeForce cards halve (`Gpu.matrix_headroom`)."""
RIVALLED = frozenset({"fp32"})
"""Arithmetic in which convolutions may have an alternative (`Work.alternative`)."""
CONVOLUTION_FEATURES = ("images", "positions", "taps", "stride")
"""Features of convolutions with equal products that still differ: batch, output positions, kernel size, stride."""
MEMORY_FAMILIES = frozenset({
    "pointwise", "cast", "copy", "fill", "transpose", "batch_norm", "layer_norm", "group_norm", "softmax",
    "reduction", "pooling", "upsample", "embedding", "gather", "scatter", "sort", "dropout", "random",
    "cross_entropy", "optimizer", "other",
})  # fmt: skip
ALIGN = "align"
"""Variant of products, followed by the largest number of elements that divides their rows, where tensor cores would
load more at once."""
UNALIGNED_ELEMENTS_PER_SM_S = 6.5e9
"""Elements of half-precision products with rows at any even address that a multiprocessor loads and stores in a second,
one by one: on an H100 (`data/measured`) 5.4 to 8.2 billion of GPT-2's head, 5.9 of attention over 49 positions."""
EFFICIENT = "efficient"
"""Variant, after the pass, of attention in PyTorch's memory-efficient kernel that adds a mask to the scores."""
SCORES_PER_CYCLE = {
    f"fwd.{EFFICIENT}": 1.6,
    f"bwd.{EFFICIENT}": 0.7,
    f"fwd.{EFFICIENT}.dropout": 0.86,
    f"bwd.{EFFICIENT}.dropout": 0.43,
}
"""Scores in tiles of 64 queries by 64 keys that a multiprocessor computes with it in a cycle, whatever the size of the
heads: so that CoAtNet and MaxViT, and T5, which drops scores out, take what they took on an H100 at 1.98 GHz
(`data/measured/h100/profiled.csv`)."""
FUSABLE_FAMILIES = MEMORY_FAMILIES - {"embedding", "gather", "scatter", "sort", "optimizer"}
"""Families whose kernels can be fused into those that write their input or read their result."""

_DTYPE_OF_MATH = {
    "fp64": "float64", "fp32": "float32", "tf32": "float32", "fp16": "float16", "bf16": "bfloat16",
    "fp8": "float8_e4m3fn", "vector": "float32",
}  # fmt: skip
_DTYPE_CLASS = {
    "float64": "fp64", "complex128": "fp64", "float32": "fp32", "complex64": "fp32", "float16": "half",
    "bfloat16": "half", "float8_e4m3fn": "fp8", "float8_e5m2": "fp8",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Work:
    """One kernel's work.

    `math` names the unit: fp64, fp32, tf32, fp16, bf16, fp8 for the matrix path, "vector" for everything
    else. `variant` refines the family (a pass, a layout: "fwd.nhwc"). `shape` is (batch, m, n, k) of the
    matrix product behind it, for attention (batch x heads, queries, keys, head size). `alternative` is the
    shape of a cheaper algorithm (Winograd) that the library may choose. `serial_bytes` is traffic of helper
    kernels that the algorithm could avoid, so it costs time but does not raise the floor. `latency_s` is
    time that thread blocks of a GPU wait for their own loads, whatever its bandwidth. `repeats` runs
    the shape that many times in sequence.
    """

    family: str
    math: str
    dtype: str
    flops: float
    floor_flops: float
    bytes_read: float
    bytes_written: float
    launches: int = 1
    variant: str = ""
    shape: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    alternative: tuple[float, float, float, float] | None = None
    alternative_bytes: float = 0.0
    serial_bytes: float = 0.0
    latency_s: float = 0.0
    repeats: int = 1
    features: tuple[Feature, ...] = ()

    @property
    def bytes(self) -> float:
        return self.bytes_read + self.bytes_written

    @property
    def dtype_class(self) -> str:
        """fp64, fp32, tf32, half or fp8: the grain at which utilisation is learned."""
        return class_of_dtype(self.math, self.dtype)

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Works with an equal key share their parameters."""
        return (self.family, self.variant, self.math, self.dtype_class)


def elements_together(family: str, variant: str, dtype_class: str) -> float:
    """How many elements of a half-precision product are loaded at once; infinite where rows are whole 16 bytes."""
    unaligned = family == MATMUL and dtype_class == "half" and variant.startswith(ALIGN)
    return float(variant.removeprefix(ALIGN)) if unaligned else inf


def scores_per_cycle(family: str, variant: str) -> float:
    """Scores that a multiprocessor computes in a cycle in memory-efficient attention; infinite in other classes."""
    return SCORES_PER_CYCLE.get(variant, inf) if family == ATTENTION else inf


def class_of_dtype(math: str, dtype: str) -> str:
    """fp64, fp32, tf32, half or fp8, of work in `math` on tensors of a torch dtype."""
    return "tf32" if math == "tf32" else _DTYPE_CLASS.get(dtype, "fp32")


def matmul_work(
    shape: tuple[float, float, float, float],
    math: str,
    in_bytes: float,
    out_bytes: float | None = None,
    *,
    extra_bytes: float = 0.0,
    shared_a: bool = False,
    shared_b: bool = False,
) -> Work:
    """`shape` (batch, m, n, k): batch products of (m x k) by (k x n).

    in_bytes and out_bytes are per element (out defaults to in). `extra_bytes` covers a bias or an accumulated output;
    shared_a and shared_b mark an operand that serves all batches.
    """
    batch, m, n, k = shape
    flops = 2.0 * batch * m * n * k
    operands = (1 if shared_a else batch) * m * k + (1 if shared_b else batch) * k * n
    return Work(
        MATMUL,
        math,
        _DTYPE_OF_MATH[math],
        flops,
        flops,
        operands * in_bytes + extra_bytes,
        batch * m * n * (in_bytes if out_bytes is None else out_bytes),
        shape=(batch, m, n, k),
    )


def cheapest_convolution_gain(kernel: Sequence[int], stride: Sequence[int], groups: int) -> float:
    """How many times fewer operations the cheapest known algorithm needs than the direct one.

    Dense stride-1 convolutions: Winograd F(2, r) saves 2r/(r+1) per dimension (3x3: 2.25); FFT tiles, used
    for kernels of 25 taps or 9 long, need about 4 operations per output and channel pair, not 2 x taps.
    """
    if groups != 1 or any(s != 1 for s in stride):
        return 1.0
    gain = prod(2.0 * r / (r + 1.0) for r in kernel)
    taps = prod(kernel)
    return max(gain, taps / 2.0) if taps >= 25 or max(kernel) >= 9 else gain


@dataclass(frozen=True, slots=True)
class Convolution:
    """A 1-, 2- or 3-d convolution in the sizes of its forward pass.

    A transposed convolution is the dgrad of the convolution that maps its output to its input, and so on.
    """

    images: int
    c_in: int
    c_out: int
    in_spatial: Sequence[int]
    out_spatial: Sequence[int]
    kernel: Sequence[int]
    stride: Sequence[int]
    groups: int = 1
    dilated: bool = False


def conv_work(
    conv: Convolution,
    math: str,
    element_bytes: float,
    *,
    direction: str = "fwd",
    layout: str = "nchw",
    out_bytes: float | None = None,
    extra_bytes: float = 0.0,
    grouped: str = CONV_GROUPED,
) -> Work:
    """One pass ("fwd", "dgrad", "wgrad") of a convolution; `grouped`: the family if it has groups. Depthwise ones in
    half precision in NHWC are grouped ones if they have several outputs a channel.

    Tensor cores work on NHWC: in NCHW every pass transposes its operands (2 x (input + output) bytes more). Kernels of
    few channels (CONV_FEW) are others for float16 than for bfloat16 in NHWC; with filters of one tap they are products.
    """
    n, c_in, c_out, groups = conv.images, conv.c_in, conv.c_out, conv.groups
    out_spatial, kernel, dilated = conv.out_spatial, conv.kernel, conv.dilated
    positions, pixels = n * prod(out_spatial), n * prod(conv.in_spatial)
    taps = prod(kernel)
    per_in, per_out = c_in // groups, c_out // groups
    flops = 2.0 * positions * c_out * per_in * taps
    sizes = {
        "x": pixels * c_in * element_bytes,
        "w": c_out * per_in * taps * element_bytes,
        "y": positions * c_out * element_bytes,
    }
    reads, writes = {"fwd": ("xw", "y"), "dgrad": ("yw", "x"), "wgrad": ("xy", "w")}[direction]
    written = sizes[writes] * (1.0 if out_bytes is None else out_bytes / element_bytes)
    few = groups == 1 and taps > 1 and c_in < WHOLE_CHANNELS and math in ("fp16", "bf16") and len(kernel) > 1
    shape = {
        "fwd": (groups, positions, per_out, per_in * taps),
        "dgrad": (groups, pixels, per_in, flops / (2.0 * pixels * c_in)),
        "wgrad": (groups, per_out, per_in * taps, positions),
    }[direction]
    depthwise = groups > 1 and per_in == 1 and (per_out == 1 or layout != "nhwc" or math not in ("fp16", "bf16"))
    dense = CONV_1D if len(kernel) == 1 else CONV_FEW if few else CONV_DILATED if dilated else CONV
    kernels = "bf16." if few and math == "bf16" and layout == "nhwc" else ""
    family = dense if groups == 1 else CONV_DEPTHWISE if depthwise else grouped
    gain = cheapest_convolution_gain(kernel, conv.stride, groups)
    alternative, transforms = _alternative(conv, direction, gain) if math in RIVALLED else (None, 0.0)
    transposes = layout == "nchw" and math in ("fp16", "bf16", "tf32", "fp8") and not depthwise
    return Work(
        family,
        math,
        _DTYPE_OF_MATH[math],
        flops,
        flops / gain,
        sizes[reads[0]] + sizes[reads[1]] + extra_bytes,
        written,
        launches=3 if transposes else 1,
        variant=f"{direction}.{kernels}{layout}",
        shape=shape,
        alternative=alternative,
        alternative_bytes=0.0 if alternative is None else transforms + sizes["x"] + sizes["w"] + sizes["y"],
        serial_bytes=2.0 * (sizes["x"] + sizes["y"]) if transposes else 0.0,
        features=(
            ("images", n),
            ("positions", prod(out_spatial)),
            ("taps", taps),
            ("groups", groups),
            ("stride", prod(conv.stride)),
        ),
    )


def _alternative(
    conv: Convolution, direction: str, gain: float
) -> tuple[tuple[float, float, float, float] | None, float]:
    """Matrix product of a Winograd or FFT algorithm where fp32 has a cheaper one, and bytes of its transforms."""
    if gain == 2.25:
        return _winograd(conv.images, conv.c_in, conv.c_out, conv.out_spatial, direction)
    if gain > 1.0 and len(conv.kernel) == 1 and conv.kernel[0] <= _FFT_TAPS and not conv.dilated:
        return _fourier(conv.images, conv.c_in, conv.c_out, conv.out_spatial[0], conv.kernel[0], direction)
    return None, 0.0


def _winograd(
    n: int, c_in: int, c_out: int, out_spatial: Sequence[int], direction: str
) -> tuple[tuple[float, float, float, float], float]:
    """The products of a non-fused Winograd F(4x4, 3x3) and the traffic of its three fp32 transforms.

    36 products over the 6x6 tiles; every transformed operand is written once and read once. This structure
    fits NeuSight's convolution rows on every device there, the fused F(2x2) does not.
    """
    tiles = n * prod(-(-size // 4) for size in out_spatial)
    rows, columns, depth = {
        "fwd": (tiles, c_out, c_in),
        "dgrad": (tiles, c_in, c_out),
        "wgrad": (c_out, c_in, tiles),
    }[direction]
    traffic = 4.0 * 2.0 * 36.0 * (tiles * (c_in + c_out) + c_in * c_out)
    return (36.0, rows, columns, depth), traffic


_FFT_TILE, _FFT_TAPS = 256, 32


def _fourier(
    n: int, c_in: int, c_out: int, length: int, taps: int, direction: str
) -> tuple[tuple[float, float, float, float], float]:
    """The products of a one-dimensional convolution by FFT in tiles of 256 positions, and its transforms' traffic.

    cuDNN's FFT_TILING takes such tiles where the filter is one row high, at most 32 long, undilated and of stride 1
    (cuDNN API reference, cudnnConvolutionFwdAlgo_t). 129 complex frequencies, each a product of four real ones. Every
    transformed operand is written, transposed for the products (or back) and read: four trips (arXiv:1412.7580).
    """
    frequencies = _FFT_TILE // 2 + 1
    tiles = n * -(-length // (_FFT_TILE - taps + 1))
    rows, columns, depth = {
        "fwd": (tiles, c_out, c_in),
        "dgrad": (tiles, c_in, c_out),
        "wgrad": (c_out, c_in, tiles),
    }[direction]
    traffic = 4.0 * 8.0 * frequencies * (tiles * (c_in + c_out) + c_in * c_out)
    return (4.0 * frequencies, rows, columns, depth), traffic


@dataclass(frozen=True, slots=True)
class Attention:
    """Fused attention of `queries` by `keys` positions. `window` > 0 keeps that many keys per query."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    head_dim: int
    causal: bool = False
    window: int = 0
    v_head_dim: int | None = None


def attention_work(attention: Attention, math: str, element_bytes: float, direction: str = "fwd") -> Work:
    """A fused (flash or memory-efficient) attention kernel; "bwd" recomputes the scores: 2.5 x the forward FLOPs.

    Scores never reach memory; the backward pass also reads the output, its gradient and the row statistics.
    """
    batch, heads, kv_heads = attention.batch, attention.heads, attention.kv_heads
    sq, sk, head_dim, causal = attention.queries, attention.keys, attention.head_dim, attention.causal
    keys: float = sk
    if causal:
        keys = sk - (sq - 1) / 2.0 if sk >= sq else (sk + 1) / 2.0
    if attention.window:
        keys = min(keys, attention.window)
    v_dim = head_dim if attention.v_head_dim is None else attention.v_head_dim
    forward = 2.0 * batch * heads * sq * keys * (head_dim + v_dim)
    q, o = batch * heads * sq * head_dim, batch * heads * sq * v_dim
    kv = batch * kv_heads * sk * (head_dim + v_dim)
    if direction == "fwd":
        flops, read, written, launches = forward, q + kv, o, 1
    else:
        flops, read, written, launches = 2.5 * forward, q + kv + 2 * o, q + kv, 3
    return Work(
        ATTENTION,
        math,
        _DTYPE_OF_MATH[math],
        flops,
        flops,
        read * element_bytes,
        written * element_bytes,
        launches=launches,
        variant=direction,
        shape=(batch * heads, sq, sk, (head_dim + v_dim) / 2.0),
        features=(("causal", float(causal)), ("kv_heads", kv_heads)),
    )


def memory_work(
    family: str,
    bytes_read: float,
    bytes_written: float,
    launches: int = 1,
    *,
    dtype: str = "float32",
    flops: float = 0.0,
    variant: str = "",
    shape: tuple[float, float] = (0.0, 0.0),
) -> Work:
    """A kernel limited by traffic; `family` is one of MEMORY_FAMILIES, bytes count every pass.

    `shape`: rows and columns, where the kernel depends on them.
    """
    return Work(
        family,
        "vector",
        dtype,
        flops,
        flops,
        bytes_read,
        bytes_written,
        launches=launches,
        variant=variant,
        features=(("rows", shape[0]), ("cols", shape[1])),
    )


def reduction_work(elements: float, bytes_read: float, bytes_written: float, dtype: str) -> Work:
    """A sum, mean, maximum or norm of `elements`, whose kernels load each alone."""
    return memory_work(
        "reduction",
        bytes_read,
        bytes_written,
        dtype=dtype,
        flops=STEPS_OF_ONE_OPERAND * elements,
        variant=f"fwd.{BY_ELEMENT}",
    )


def column_sum_work(rows: int, columns: int, bytes_read: float, bytes_written: float, dtype: str) -> Work:
    """Sums of the columns of a matrix, one row after another in memory.

    Blocks of 128 threads, each of four neighbouring columns, share the rows out. The last block to end adds up what the
    others found, in turns of as many as it has threads for a column; a fill clears the counter by which it knows that
    it is the last (aten/src/ATen/native/cuda/Reduce.cuh).
    """
    threads, odd = divmod(int(columns), _COLUMNS_OF_THREAD)
    if odd:
        return reduction_work(rows * columns, bytes_read, bytes_written, dtype)
    wide = min(2 ** (threads.bit_length() - 1), _WARP)
    high, beside = _BLOCK // wide, -(-threads // wide)
    each = rows / high
    work = memory_work("reduction", bytes_read, bytes_written, dtype=dtype, flops=rows * columns, variant="fwd.columns")
    if each < _ROWS_SHARED:
        return replace(work, latency_s=each * _ROW_S)
    blocks = max(min(_BLOCKS_AT_ONCE / beside, each / 16), each / 256)
    turn_s = _TURN_S if beside > 1 else _SHORT_TURN_S
    return replace(work, launches=2, latency_s=blocks / high * turn_s)


_COLUMNS_OF_THREAD, _WARP, _BLOCK = 4, 32, 128
_ROWS_SHARED = 256
"""Rows of a thread from which on blocks share them."""
_BLOCKS_AT_ONCE = 2112
"""Blocks that the multiprocessors of an H100 hold at once; others hold up to half as many."""
_TURN_S, _SHORT_TURN_S, _ROW_S = 0.35e-6, 0.25e-6, 0.06e-6
"""Seconds of a turn of the last block, of one where a block spans all columns, and of a row where one block has all: on
an H100 0.3 to 0.45 us, 0.25 and 0.04 to 0.09 (`data/measured/h100/profiled.csv`)."""


@dataclass(frozen=True, slots=True)
class Recurrent:
    """One layer of a recurrent network; `gates`: LSTM 4, GRU 3, plain 1."""

    timesteps: int
    batch: int
    input_size: int
    hidden: int
    gates: int
    directions: int = 1


def rnn_works(layer: Recurrent, math: str, element_bytes: float, direction: str = "fwd") -> tuple[Work, ...]:
    """One layer of a cuDNN RNN: large products over all steps plus a serial chain.

    Forward: the input product, then per step a (batch x hidden) by (hidden x gates*hidden) product.
    Backward: the same chain transposed, the input gradient, and the two weight gradients over all steps at once.
    """
    timesteps, batch, input_size = layer.timesteps, layer.batch, layer.input_size
    hidden, gates, directions = layer.hidden, layer.gates, layer.directions
    rows, width = timesteps * batch, gates * hidden
    recurrent = 2.0 * directions * rows * hidden * width
    weights = directions * hidden * width * element_bytes
    state = directions * rows * (width + 2 * hidden) * element_bytes
    n, k = (width, hidden) if direction == "fwd" else (hidden, width)
    chain = Work(
        RNN,
        math,
        _DTYPE_OF_MATH[math],
        recurrent,
        recurrent,
        weights + state,
        directions * rows * hidden * element_bytes,
        launches=timesteps,
        variant=direction,
        shape=(directions, batch, n, k),
        repeats=timesteps,
    )
    if direction == "fwd":
        return (matmul_work((directions, rows, width, input_size), math, element_bytes, shared_a=True), chain)
    return (
        chain,
        matmul_work((directions, rows, input_size, width), math, element_bytes),
        matmul_work((directions, width, input_size, rows), math, element_bytes),
        matmul_work((directions, width, hidden, rows), math, element_bytes),
    )
