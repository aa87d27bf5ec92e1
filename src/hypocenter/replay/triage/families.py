"""Which expectation belongs to which operator, by its name in aten. An operator that is not listed is not judged."""

from __future__ import annotations

from collections.abc import Callable

from hypocenter.replay.triage import elements, products, sums
from hypocenter.replay.triage.expected import Call, Expected

Expect = Callable[[Call], list[Expected | None]]

_MOVED = """_to_copy copy clone cat stack index_select gather index where masked_fill repeat slice_backward flip roll
    select_backward constant_pad_nd tril triu amax amin maximum minimum clamp clamp_min clamp_max relu neg abs
    threshold_backward max_pool2d_with_indices embedding fill zeros_like ones_like hardtanh scatter contiguous"""
_MULTIPLIED = """mul div reciprocal sqrt rsqrt exp pow square leaky_relu leaky_relu_backward nll_loss_backward
    exp2 true_divide"""
_BOUNDED = "sigmoid tanh erf sin cos log log1p log2 log10"
_GATED = "gelu silu softplus mish hardswish"
_GATED_BACKWARD = "gelu_backward silu_backward tanh_backward sigmoid_backward"

_FAMILIES: dict[Expect, str] = {
    products.matmul: "mm bmm mv dot matmul",
    products.addmm: "addmm baddbmm addmv",
    products.linear: "linear",
    products.convolution: "convolution",
    products.convolution_backward: "convolution_backward",
    sums.total: "sum mean nansum cumsum avg_pool2d _adaptive_avg_pool2d embedding_dense_backward",
    sums.norm: "linalg_vector_norm",
    sums.losses: "mse_loss l1_loss smooth_l1_loss huber_loss",
    sums.loss_backward: "mse_loss_backward",
    sums.nll: "nll_loss_forward nll_loss2d_forward",
    sums.softmax: "_softmax _safe_softmax",
    sums.log_softmax: "_log_softmax",
    sums.softmax_backward: "_softmax_backward_data",
    sums.log_softmax_backward: "_log_softmax_backward_data",
    sums.layer_norm: "native_layer_norm",
    sums.layer_norm_backward: "native_layer_norm_backward",
    sums.attention: "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention",
    elements.moved: _MOVED,
    elements.multiplied: _MULTIPLIED,
    elements.bounded: _BOUNDED,
    elements.exponential_unit: "elu",
    elements.gated: _GATED,
    elements.gated_backward: _GATED_BACKWARD,
    elements.added: "add sub rsub addcmul addcdiv lerp",
}

BY_ROWS: frozenset[Expect] = frozenset({sums.attention})  # they bring to float64 what they need, row by row
FAMILIES: dict[str, Expect] = {name: expect for expect, names in _FAMILIES.items() for name in names.split()}
