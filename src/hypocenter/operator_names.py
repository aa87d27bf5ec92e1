"""One name for an operator, whatever framework ran it: `Mul` and `Muls` are `mul`, as is `aten.mul.Tensor`.

MindSpore names its operators in CamelCase with endings for variants (`SumExt`, `MaxDim`). The canonical name is the
middle part of torch's, which the causes know. What a report shows stays what the framework says.
"""

from __future__ import annotations

import re

MINDSPORE = {
    "MatMul": "matmul", "MatMulExt": "matmul", "BatchMatMul": "bmm", "BatchMatMulExt": "bmm", "Dense": "linear",
    "BiasAdd": "add", "TensorAdd": "add", "AddN": "sum", "Addmm": "addmm", "Baddbmm": "baddbmm", "Mm": "mm",
    "RealDiv": "div", "Divs": "div", "DivMod": "div", "DivMods": "div", "Xdivy": "div", "DivNoNan": "div_no_nan",
    "Inv": "reciprocal", "Muls": "mul", "Adds": "add", "Subs": "sub", "SubScalar": "sub", "AddScalar": "add",
    "PowTensorScalar": "pow", "PowScalarTensor": "pow", "ReduceSum": "sum", "SumExt": "sum", "ReduceMean": "mean",
    "MeanExt": "mean", "ReduceStd": "std", "StdMean": "std", "ReduceProd": "prod", "ReduceMax": "max",
    "ReduceMin": "min", "ReduceAll": "all", "ReduceAny": "any", "CumSum": "cumsum", "CumsumExt": "cumsum",
    "LpNormV2": "norm", "LpNorm": "norm", "L2Loss": "norm", "LogSoftmaxExt": "log_softmax", "Cast": "to",
    "Select": "where", "SelectExt": "select", "MaskedFillScalar": "masked_fill", "ClampScalar": "clamp",
    "ClampTensor": "clamp", "Gather": "index_select", "GatherD": "gather", "GatherNd": "index", "GetItem": "index",
    "StridedSlice": "slice", "Concat": "cat", "ConcatD": "cat", "LayerNorm": "native_layer_norm",
    "LayerNormV3": "native_layer_norm", "LayerNormExt": "native_layer_norm", "BatchNorm": "native_batch_norm",
    "BatchNormExt": "native_batch_norm", "GroupNorm": "native_group_norm", "RmsNorm": "rms_norm",
    "Conv2D": "conv2d", "Conv3D": "conv3d", "Conv2DExt": "conv2d", "Conv1DExt": "conv1d", "Convolution": "convolution",
    "SoftmaxCrossEntropyWithLogits": "cross_entropy", "SparseSoftmaxCrossEntropyWithLogits": "cross_entropy",
    "NLLLoss": "nll_loss", "ACos": "acos", "Acosh": "acosh", "Asin": "asin", "EmbeddingLookup": "embedding",
    "FlashAttentionScore": "scaled_dot_product_attention", "ScatterAddExt": "scatter_add", "IndexAddExt": "index_add",
    "TensorScatterAdd": "index_add", "UnsortedSegmentSum": "segment_reduce", "BNTrainingReduce": "native_batch_norm",
    "StandardNormal": "randn", "UniformReal": "rand", "UniformExt": "uniform", "NormalExt": "normal",
}  # fmt: skip
"""MindSpore's operators whose canonical name does not follow from their own."""

_VARIANT = re.compile(r"(Ext|Scalar|Tensor|View|Dim|V[2-9]|D)+$")


def canonical(op: str) -> str:
    """Return torch's name of an operator of MindSpore: `sum` for `SumExt`, `div` for `RealDiv`."""
    op = op.removeprefix("Inplace") or op
    if op in MINDSPORE:
        return MINDSPORE[op]
    stem = _VARIANT.sub("", op) or op
    if stem in MINDSPORE:
        return MINDSPORE[stem]
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", stem).lower()
