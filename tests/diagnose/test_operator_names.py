"""MindSpore's operators under the names that the causes know."""

import pytest

from hypocenter.diagnose.operators import base


@pytest.mark.parametrize(
    ("op", "name"),
    [
        ("Mul", "mul"), ("Muls", "mul"), ("SumExt", "sum"), ("ReduceSum", "sum"), ("RealDiv", "div"), ("Sqrt", "sqrt"),
        ("MatMulExt", "matmul"), ("LogSoftmaxExt", "log_softmax"), ("Select", "where"), ("MaskedFill", "masked_fill"),
        ("InplaceAddExt", "add"), ("NanToNum", "nan_to_num"), ("Cast", "to"), ("ACos", "acos"),
        ("aten.mul.Tensor", "mul"), ("aten.add_.Tensor", "add"),
    ],
)  # fmt: skip
def test_canonical_name(op, name):
    assert base(op) == name
