"""What operators are called, and which family they are of: `aten.mul.Tensor` is "the product"."""

from __future__ import annotations

import re

from hypocenter.diagnose.evidence import OpFacts
from hypocenter.operator_names import canonical
from hypocenter.optrace import UNSEEN, UNWRITTEN

MATMUL = frozenset(
    {
        "mm",
        "addmm",
        "bmm",
        "baddbmm",
        "addbmm",
        "matmul",
        "linear",
        "mv",
        "addmv",
        "dot",
        "vdot",
        "addr",
        "ger",
        "outer",
    }
    | {"einsum", "bilinear", "_trilinear", "_addmm_activation", "_scaled_mm", "tensordot", "mkldnn_linear"}
)
CONVOLUTION = frozenset({"convolution", "_convolution", "conv1d", "conv2d", "conv3d", "mkldnn_convolution"})
REDUCTION = frozenset(
    {"sum", "mean", "cumsum", "var", "var_mean", "std", "std_mean", "nansum", "nanmean", "norm", "linalg_vector_norm"}
    | {"logsumexp", "logcumsumexp", "prod", "cumprod", "index_add", "scatter_add", "scatter_reduce", "segment_reduce"}
    | {"avg_pool1d", "avg_pool2d", "_adaptive_avg_pool2d", "trace", "native_layer_norm", "native_group_norm"}
    | {"native_batch_norm", "_native_batch_norm_legit", "_fused_rms_norm", "rms_norm", "layer_norm", "cdist"}
)
SOFTMAX = frozenset({"softmax", "_softmax", "log_softmax", "_log_softmax", "_safe_softmax", "logsumexp"})
ATTENTION = frozenset(
    {"scaled_dot_product_attention", "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention"}
    | {"_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_attention_math"}
    | {"_scaled_dot_product_cudnn_attention", "_scaled_dot_product_fused_attention_overrideable", "flex_attention"}
)
LOG = frozenset({"log", "log2", "log10", "log1p", "logit", "xlogy", "special_xlogy", "binary_cross_entropy"})
DIVISION = frozenset({"div", "divide", "true_divide", "reciprocal", "rsqrt", "addcdiv", "remainder", "fmod"})
PRODUCT = frozenset({"mul", "multiply", "addcmul", "square"})
SUM = frozenset({"add", "sub", "subtract", "rsub"})
CAST = frozenset({"_to_copy", "to", "copy", "half", "bfloat16"})
RANDOM = frozenset(
    {"bernoulli", "native_dropout", "dropout", "rand", "randn", "rand_like", "randn_like", "uniform", "normal"}
    | {"exponential", "multinomial", "randint", "randperm", "rrelu_with_noise"}
)
UNORDERED = frozenset(
    {"scatter_add", "index_add", "index_put", "scatter_reduce", "embedding_dense_backward", "put", "histc", "bincount"}
    | {"embedding_backward", "_embedding_bag_dense_backward", "upsample_bilinear2d_backward", "convolution_backward"}
    | {f"{name}_backward" for name in ATTENTION}
    | {"_flash_attention_backward", "_efficient_attention_backward"}
)
"""Kernels that may add in any order on an accelerator: two executions may differ in the last bits."""

_NAMES = {
    "mul": "the product", "addcmul": "the product", "square": "the square", "pow": "the power", "div": "the division",
    "reciprocal": "the reciprocal", "rsqrt": "the reciprocal square root", "sqrt": "the square root",
    "add": "the addition", "sub": "the subtraction", "rsub": "the subtraction", "sum": "the sum", "mean": "the mean",
    "cumsum": "the running sum", "var": "the variance", "var_mean": "the variance", "std": "the standard deviation",
    "norm": "the norm", "linalg_vector_norm": "the norm", "prod": "the product over a dimension",
    "_to_copy": "the conversion", "to": "the conversion", "copy": "the copy", "exp": "exp", "log": "the logarithm",
    "nll_loss": "the negative log-likelihood", "nll_loss_forward": "the negative log-likelihood",
    "nll_loss2d_forward": "the negative log-likelihood", "linalg_eigh": "eigh", "linalg_svd": "svd",
    "native_layer_norm": "layer norm", "native_batch_norm": "batch norm", "native_group_norm": "group norm",
    "embedding": "the embedding", "where": "where", "masked_fill": "masked_fill", "clamp": "clamp",
    "nan_to_num": "nan_to_num", "baddbmm": "the matrix product", "addcdiv": "the division", "log1p": "log1p",
    "mse_loss": "the mean squared error", "index_add": "the indexed sum", "scatter_add": "the scattered sum",
    "compiled_function": "the compiled function", UNSEEN: "a kernel that the dispatcher does not show",
    UNWRITTEN: "memory that nothing has written to",
}  # fmt: skip


def base(op: str) -> str:
    """Return the operator without namespace, overload and in-place mark: `add` for `aten.add_.Tensor` and `AddExt`."""
    if is_of_mindspore(op):
        return canonical(op)
    parts = op.split("::")[-1].split(".")
    name = parts[1] if len(parts) > 1 and parts[0] in ("aten", "prims", "quantized", "torchvision") else parts[0]
    if len(parts) > 1 and name == parts[0] and parts[0] not in _NAMES:
        name = parts[1]  # a custom op: mylib.myop.default
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


def is_of_mindspore(op: str) -> bool:
    """Return whether MindSpore names operators so; advice for another framework would be useless."""
    return op[:1].isupper() and "." not in op


def forward_of(node: str) -> str:
    """Return the operator whose gradient an autograd node computes: `linalg_eigh` for `LinalgEighBackward0`."""
    stem = re.sub(r"Backward\w*$", "", node.split("::")[-1])
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", stem).lower()


def subject(facts: OpFacts) -> str:
    """Name the operator as the subject of a sentence; in backward "the gradient of ..."."""
    if facts.phase != "backward" or facts.op in (UNSEEN, UNWRITTEN):
        return called(base(facts.op), facts.module)
    name = forward_of(facts.node) if facts.node else re.sub(r"_backward(_data|_input|_weight)?$", "", base(facts.op))
    if name in ("accumulate_grad", "error", "") or name.endswith(("accumulate_grad",)):
        return f"{called(base(facts.op), facts.module)} in backward"
    return f"the gradient of {called(name, facts.module)}"


def called(name: str, module: str) -> str:
    """Name an operator, by its base name, in human terms: "the square root"."""
    if name == "t" or name in MATMUL:
        return "linear" if name in ("linear", "mm", "addmm") and module.endswith("Linear") else "the matrix product"
    if name in CONVOLUTION:
        return "the convolution"
    if name in ATTENTION:
        return "attention"
    if name in SOFTMAX:
        return name.strip("_").replace("safe_", "")
    return _NAMES.get(name, name.strip("_"))
