"""Operators in human terms."""

from __future__ import annotations

import pytest

from hypocenter.diagnose.evidence import OpFacts
from hypocenter.diagnose.operators import base, forward_of, subject


@pytest.mark.parametrize(
    ("op", "name"),
    [
        ("aten.mul.Tensor", "mul"),
        ("aten.add_.Tensor", "add"),
        ("aten._softmax.default", "_softmax"),
        ("aten::mm", "mm"),
        ("prims.convert_element_type.default", "convert_element_type"),
        ("mylib.fused_norm.default", "fused_norm"),
        ("", ""),
    ],
)
def test_base_name(op, name):
    assert base(op) == name


@pytest.mark.parametrize(
    ("node", "name"),
    [
        ("SqrtBackward0", "sqrt"),
        ("LinalgEighBackward0", "linalg_eigh"),
        ("PowBackward1", "pow"),
        ("NativeLayerNormBackward0", "native_layer_norm"),
    ],
)
def test_forward_operator_of_a_node(node, name):
    assert forward_of(node) == name


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"op": "aten.mul.Tensor"}, "the product"),
        ({"op": "aten.bmm.default"}, "the matrix product"),
        ({"op": "aten.addmm.default", "module": "Linear"}, "linear"),
        ({"op": "aten.addmm.default", "module": "Conv1D"}, "the matrix product"),
        ({"op": "aten._softmax.default"}, "softmax"),
        ({"op": "aten.exp.default"}, "exp"),
        ({"op": "aten.erfinv.default"}, "erfinv"),
        ({"op": "aten.mm.default", "phase": "backward", "node": "MmBackward0"}, "the gradient of the matrix product"),
        ({"op": "aten.native_layer_norm_backward.default", "phase": "backward"}, "the gradient of layer norm"),
    ],
)
def test_subject_of_a_title(facts, words):
    assert subject(OpFacts(**{"index": 0, "phase": "forward", "site": "", **facts})) == words
