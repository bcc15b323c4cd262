"""Operators with the cost of a measured one: the same loop over the same bytes with similar arithmetic.

A calibration times one operator of each group; the others use its points before those of their family.
"""

from __future__ import annotations

_LIKE = {
    "add": """
        sub rsub maximum minimum mul lerp addcmul eq ne lt le gt ge logical_and logical_or logical_xor bitwise_and
        bitwise_or bitwise_xor mse_loss_backward smooth_l1_loss_backward leaky_relu_backward hardtanh_backward
        hardswish_backward hardsigmoid_backward _prelu_kernel copysign""",
    "mul": "add sub square addcmul",
    "div": "sqrt rsqrt reciprocal remainder fmod floor_divide addcdiv",
    "relu": """
        neg abs sign sgn clamp clamp_min clamp_max hardtanh hardswish hardsigmoid leaky_relu threshold square floor ceil
        round logical_not bitwise_not isnan isinf isfinite tril triu nan_to_num""",
    "threshold_backward": "leaky_relu_backward hardtanh_backward hardsigmoid_backward hardswish_backward",
    "exp": "expm1 log log1p log2 log10 pow sin cos erf erfc softplus mish elu logit",
    "sigmoid": "log_sigmoid_forward silu tanh",
    "silu": "mish softplus glu",
    "silu_backward": "mish_backward softplus_backward glu_backward elu_backward log_sigmoid_backward",
    "tanh": "sigmoid",
    "tanh_backward": "sigmoid_backward",
    "masked_fill": "where",
    "gelu": "erf",
    "clone": "copy contiguous",
    "cat": "stack",
    "_softmax": "_log_softmax",
    "_log_softmax": "_softmax",
    "_softmax_backward_data": "_log_softmax_backward_data",
    "_log_softmax_backward_data": "_softmax_backward_data",
    "native_layer_norm": "_fused_rms_norm pt.rms_norm",
    "native_layer_norm_backward": "_fused_rms_norm_backward pt.rms_norm_backward",
    "native_batch_norm": "cudnn_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional",
    "native_batch_norm_backward": "cudnn_batch_norm_backward batch_norm_backward",
    "max_pool2d_with_indices": "max_pool3d_with_indices",
    "max_pool2d_with_indices_backward": "max_pool3d_with_indices_backward",
    "zeros_like": "zeros zero ones ones_like full full_like fill new_zeros new_ones new_full",
}
ALIKE: dict[str, tuple[str, ...]] = {}
"""Operator -> the operators whose points it may take, the best first."""
for _measured, _names in _LIKE.items():
    for _name in _names.split():
        _full = _name if _name.startswith("pt.") else f"aten.{_name}"
        ALIKE[_full] = (*ALIKE.get(_full, ()), f"aten.{_measured}")
