"""Whatever numbers two logs hold, there is an answer: no exception, no warning, no verdict without a reason."""

from __future__ import annotations

import json
import warnings

import jsonschema
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hypocenter.compare.curves.compare import compare_curves
from hypocenter.compare.curves.comparison import CurveComparison
from hypocenter.compare.curves.curve import Curve, Series
from hypocenter.json_answer import published, to_json
from hypocenter.report import curves_picture, curves_screen

value = st.one_of(st.floats(), st.sampled_from([0.0, 1.0, 2.5, -1.0, float("nan"), float("inf"), 1e308, 5e-324]))


@st.composite
def curves(draw: st.DrawFn) -> Curve:
    """Up to four series of up to 60 entries, at any steps, with any values."""
    series = {}
    for name in draw(st.sets(st.sampled_from(["loss", "grad_norm", "lr", "loss_scale"]))):
        n = draw(st.integers(1, 60))
        first, every = draw(st.integers(0, 5)), draw(st.integers(1, 3))
        values = draw(st.one_of(st.lists(value, min_size=n, max_size=n), value.map(lambda v, n=n: [v] * n)))
        series[name] = Series(
            name=name, steps=first + every * np.arange(n), values=np.array(values), is_mean=draw(st.booleans())
        )
    known = draw(st.sampled_from([None, 0, 1]))
    return Curve(source="any", kind=draw(st.sampled_from(["csv", "megatron"])), series=series, counts_from=known)


@given(curves(), curves(), st.lists(curves(), max_size=2), st.sampled_from([None, 0, 3, -100]))
def test_there_is_always_an_answer(one: Curve, other: Curve, repeats: list[Curve], offset: int | None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = compare_curves(one, other, repeats, offset=offset)
        text, chart = curves_screen.render(found), curves_picture.document(found)

    jsonschema.validate(json.loads(to_json(found)), published(CurveComparison))
    assert text.startswith(found.status.replace("cannot-tell", "cannot tell"))
    assert chart.endswith("</svg>\n")
    is_settled = bool(found.checks) and not any(c.decides and c.status in ("fail", "cannot-tell") for c in found.checks)
    assert (found.status == "accepted") == is_settled
    if found.status == "departed":
        assert any(check.status == "fail" for check in found.checks)


@given(curves())
def test_a_curve_never_departs_from_itself(one: Curve) -> None:
    assert compare_curves(one, one).status != "departed"
