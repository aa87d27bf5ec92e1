"""Where the carets go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypocenter.report.caret import span


@pytest.mark.parametrize(
    ("text", "op", "pointed_at"),
    [
        ("    h = hidden_gelu * hidden_linear", "aten.mul.Tensor", "hidden_gelu * hidden_linear"),
        ("loss = (a - b) / n + eps", "aten.div.Tensor", "(a - b) / n"),
        ("return torch.softmax(scores, -1) @ v", "aten._softmax.default", "torch.softmax(scores, -1)"),
        ("if (x / y).sum() > 0:", "aten.div.Tensor", "x / y"),
        ("y = a * b + c * d", "aten.mul.Tensor", "a * b + c * d"),
        ("x = self.wo(hidden_states)", "aten.mm.default", "self.wo(hidden_states)"),
        ("x.mul_(2.0)", "aten.mul_.Tensor", "x.mul_(2.0)"),
        ("x += y", "aten.add_.Tensor", "x += y"),
        ("größe = α * β", "aten.mul.Tensor", "α * β"),
        ("scores = torch.baddbmm(", "aten.baddbmm.default", "scores = torch.baddbmm("),
        ("", "aten.mul.Tensor", ""),
    ],
)
def test_span_is_the_operator_or_the_whole_right_hand_side(text: str, op: str, pointed_at: str) -> None:
    start, stop = span(text, op)

    assert text[start:stop] == pointed_at


@given(st.text(max_size=80), st.one_of(st.none(), st.text(max_size=20)))
def test_span_lies_within_any_line(text: str, op: str | None) -> None:
    start, stop = span(text, op)

    assert 0 <= start <= stop <= len(text)
