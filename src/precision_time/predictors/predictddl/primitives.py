"""The node types of a network's graph, and the bins of its channels and kernel sizes.

GHN-2 (Knyazev et al., "Parameter Prediction for Unseen Deep Architectures", 2021) has fifteen primitives: max_pool,
avg_pool, sep_conv, dil_conv, conv, msa, cse, sum, concat, input, bias, bn, ln, pos_enc and glob_avg. Fourteen of them
are here. A bias is no node, since it takes no kernel of its own; pos_enc is the type of all tables (`EMBEDDING`).
Added, for networks that are no image classifiers and for time, are linear layers (1 x 1 convolutions in GHN-2),
recurrent layers and activations. The bins of GHN-2 are not known here; those below are this project's.
"""

from __future__ import annotations

from bisect import bisect_right
from enum import IntEnum


class Primitive(IntEnum):
    """Operation of a node."""

    INPUT = 0
    CONV = 1
    SEP_CONV = 2  # grouped and depthwise
    DIL_CONV = 3  # dilated and transposed
    LINEAR = 4
    RNN = 5
    EMBEDDING = 6  # tables, positions, gathers by index
    MSA = 7  # attention, and the batched products it is written out in
    BN = 8
    LN = 9  # layer, group, instance and RMS norm
    ACT = 10  # pointwise and softmax
    MAX_POOL = 11  # and other selections: maxima, top-k
    AVG_POOL = 12  # and any other change of resolution
    GLOB_AVG = 13  # and any other mean or sum over a dimension
    SUM = 14
    CSE = 15  # product of two activations: gates, squeeze and excitation
    CONCAT = 16


POOLS = (Primitive.MAX_POOL, Primitive.AVG_POOL, Primitive.GLOB_AVG)


CHANNEL_EDGES = (
    1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144,
    8192, 16384, 32768, 65536,
)  # fmt: skip
"""First value of every bin but the first, which stands for "has none" (0). Two bins an octave."""

KERNEL_EDGES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512, 1024)
"""The same of kernel heights and widths; an input node carries the height and width of its data here."""

CHANNEL_BINS = len(CHANNEL_EDGES) + 1
KERNEL_BINS = len(KERNEL_EDGES) + 1


def channel_bin(channels: int) -> int:
    """Bin of a number of channels; 0 where there are none."""
    return bisect_right(CHANNEL_EDGES, channels)


def kernel_bin(size: int) -> int:
    """Bin of one side of a kernel; 0 where there is none."""
    return bisect_right(KERNEL_EDGES, size)


CONVOLUTIONS = frozenset({"aten.convolution", "aten._convolution", "aten.cudnn_convolution"})
PRODUCTS = frozenset({"aten.mm", "aten.addmm", "pt.grouped_mm", "pt.scaled_mm", "pt.scaled_grouped_mm", "aten.mv"})
BATCHED_PRODUCTS = frozenset({"aten.bmm", "aten.baddbmm"})

OF_OPERATOR: dict[str, Primitive] = {
    **dict.fromkeys(("pt.attention", "pt.window_attention", *BATCHED_PRODUCTS), Primitive.MSA),
    **dict.fromkeys(("pt.rnn", "pt.state_scan_forward"), Primitive.RNN),
    **dict.fromkeys(
        ("aten.embedding", "aten._embedding_bag", "aten.gather", "aten.index_select", "aten.index"), Primitive.EMBEDDING
    ),
    **dict.fromkeys(("aten.native_batch_norm", "aten._native_batch_norm_legit", "aten.cudnn_batch_norm"), Primitive.BN),
    **dict.fromkeys(("aten.native_layer_norm", "aten.native_group_norm", "pt.rms_norm"), Primitive.LN),
    **dict.fromkeys(
        (
            "aten.max_pool2d_with_indices", "aten.max_pool3d_with_indices", "aten.amax", "aten.amin", "aten.max",
            "aten.topk",
        ),
        Primitive.MAX_POOL,
    ),
    **dict.fromkeys(
        (
            "aten.avg_pool2d", "aten.avg_pool3d", "aten._adaptive_avg_pool2d", "aten.upsample_nearest2d",
            "aten.upsample_bilinear2d", "aten.grid_sampler_2d", "aten.index_add", "aten.scatter_add",
            "aten.scatter_add_", "aten.index_add_", "aten.scatter_reduce",
        ),
        Primitive.AVG_POOL,
    ),
    **dict.fromkeys(("aten.mean", "aten.sum"), Primitive.GLOB_AVG),
    **dict.fromkeys(("aten.cat", "aten.stack"), Primitive.CONCAT),
    **dict.fromkeys(("aten.add", "aten.add_", "aten.sub", "aten.sub_", "aten.addcmul"), Primitive.SUM),
    **dict.fromkeys(("aten.mul", "aten.mul_", "aten.div", "aten.glu"), Primitive.CSE),
    **dict.fromkeys(
        (
            "aten.relu", "aten.relu_", "aten.silu", "aten.silu_", "aten.gelu", "aten.sigmoid", "aten.sigmoid_",
            "aten.tanh", "aten.tanh_", "aten.hardswish", "aten.hardswish_", "aten.hardsigmoid", "aten.leaky_relu",
            "aten.leaky_relu_", "aten.elu", "aten.elu_", "aten.hardtanh", "aten.hardtanh_", "aten.softplus",
            "aten.mish", "aten.prelu", "aten._prelu_kernel", "aten._softmax", "aten._log_softmax", "aten.exp",
            "aten.pow", "aten.clamp", "aten.erf", "aten._safe_softmax", "aten.log_sigmoid_forward",
        ),
        Primitive.ACT,
    ),
}  # fmt: skip
"""Operators by name, beside convolutions and products. Other operators (casts, copies, dropout,
masks, random numbers) pass their inputs on, so the graph is the same in every precision."""

GATES: dict[object, int] = {0: 1, 1: 1, 2: 4, 3: 3}
"""Of a recurrent layer by the mode of `pt.rnn` (cuDNN's numbering): relu, tanh, LSTM, GRU."""

TWO_SIDED = frozenset({Primitive.SUM, Primitive.CSE})
"""Nodes only where two different activations are combined, not for a bias or a scalar factor."""
