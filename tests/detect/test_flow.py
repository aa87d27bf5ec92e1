"""detect/flow.py: which call made the bad values that live on."""

from __future__ import annotations

from hypocenter.detect.flow import has_flow, origin_in_update, origin_of
from hypocenter.nouns import Phase, Reading, Summary

INF = Summary(n=6, n_posinf=1, min=0.0)
MASK = Summary(n=6, n_neginf=2, max=3.0)
NAN = Summary(n=6, n_nan=1)
GOOD = Summary(n=6, min=-1.0, max=1.0, absmax=1.0)


def reading(order: int, op: str, port: str, summary: Summary, phase: Phase = "forward", site: str = "") -> Reading:
    return Reading(step=0, microbatch=0, phase=phase, site=site, port=port, order=order, op=op, summary=summary,
                   lacks="counts" if summary.n_nonfinite else "histogram")  # fmt: skip


def call(order: int, op: str, given: Summary, made: Summary, phase: Phase = "forward") -> list[Reading]:
    ins, outs = ("grad_out[0]", "grad_in[0]") if phase == "backward" else ("in[0]", "out[0]")
    return [reading(order, op, ins, given, phase), reading(order + 1, op, outs, made, phase)]


def loss(order: int, summary: Summary) -> Reading:
    return reading(order, "", "value", summary, "loss", "loss")


def test_the_origin_is_the_call_with_good_inputs_from_which_the_loss_descends() -> None:
    rows = [*call(1, "a", GOOD, INF), *call(3, "b", INF, NAN), *call(5, "mean", NAN, NAN), loss(7, NAN)]

    found = origin_of(rows)

    assert found is not None
    assert (found.kind, found.reading.op, found.is_watched) == ("call", "a", True)


def test_what_ends_in_good_results_is_not_blamed() -> None:
    masked = [*call(1, "fill", GOOD, MASK), *call(3, "softmax", MASK, GOOD)]

    found = origin_of([*masked, *call(5, "log", GOOD, NAN), loss(7, NAN)])

    assert found is not None
    assert found.reading.op == "log"
    assert origin_of([*masked, loss(7, GOOD)]) is None


def test_a_bad_parameter_or_input_is_a_leaf() -> None:
    weight = Reading(step=0, microbatch=0, phase="param", site="fc.weight", port="value", order=0, summary=NAN)
    rows = [*call(1, "linear", NAN, Summary(n=9, n_nan=3)), loss(7, Summary(n=9, n_nan=3))]

    given, held = origin_of(rows), origin_of([weight, *rows])

    assert given is not None
    assert held is not None
    assert (given.kind, held.kind, held.reading.site) == ("input", "param", "fc.weight")


def test_of_a_good_loss_gradients_are_followed() -> None:
    grad = reading(9, "", "grad", NAN, "grad", "fc.weight")
    rows = [loss(1, GOOD), *call(3, "sqrt", GOOD, INF, "backward"), *call(5, "mul", INF, NAN, "backward"), grad]

    found = origin_of(rows)

    assert found is not None
    assert (found.reading.op, found.reading.phase) == ("sqrt", "backward")
    assert origin_of([loss(1, GOOD), reading(9, "", "grad", GOOD, "grad", "fc.weight")]) is None


def test_an_update_that_divides_by_zero_is_found_before_the_next_step() -> None:
    rows = [loss(1, GOOD), *call(3, "addcdiv_", GOOD, NAN, "optimizer")]

    found = origin_in_update(rows)

    assert found is not None
    assert found.reading.op == "addcdiv_"
    assert origin_in_update([loss(1, GOOD), *call(3, "addcdiv_", GOOD, GOOD, "optimizer")]) is None


def test_rows_of_our_own_operators_have_no_inputs_to_follow() -> None:
    own = Reading(step=0, microbatch=0, phase="forward", site="fc", port="out[0]", order=1, op="aten.mm", summary=NAN)
    collective = Reading(
        step=0, microbatch=0, phase="comm", site="", port="in[0]", order=2, op="all_reduce", summary=NAN
    )

    assert not has_flow([own, collective])
