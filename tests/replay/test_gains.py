"""Blame by gain, on traces made by hand."""

import math

import pytest

from hypocenter.replay.gains import Usual, begins, is_amplifying, new_operators, own_part, suspects
from hypocenter.tap.gains import Sized


def leaf(octave, name="batch"):
    return Sized(key=(name, "x", "float32", 0), inputs=(), octaves=[octave], n_given=64)


def op(name, octave, *inputs, line=1, nth=0, is_gradient=False):
    key = (f"aten.{name}.Tensor", "forward", "model", "train.py", line, "", nth)
    return Sized(key=key, inputs=tuple((p, 0) for p in inputs), octaves=[octave], n_given=64, is_gradient=is_gradient)


def usual_of(*traces):
    usual = Usual()
    for trace in traces:
        usual.learn(trace)
    return usual


def found(sized, usual, last):
    """Suspects, of a step whose last producer is too large."""
    amplifying = {
        p: is_amplifying(each, sized, usual, is_forward=True)
        for p, each in sized.items()
        if p >= 0 and begins(each, sized, usual)
    }
    return suspects([last], sized, usual, amplifying)


def chain(x, scaled, squared):
    return {-1: leaf(x), 0: op("div", scaled, -1), 1: op("pow", squared, 0, line=2)}


def test_the_first_operator_that_gives_more_is_named():
    usual = usual_of(chain(0, 0, 0), chain(0.2, 0.2, 0.4))

    (suspect,) = found(chain(0, 8, 16), usual, 1)

    assert (suspect.producer, suspect.above) == (0, pytest.approx(7.8))


def test_what_comes_in_too_large_is_named_and_no_operator():
    usual = usual_of(chain(0, 0, 0), chain(0.2, 0.2, 0.4))

    (suspect,) = found(chain(8, 8, 16), usual, 1)

    assert suspect.producer == -1


@pytest.mark.parametrize(("scaled", "first"), [(20, 0), (3, -1)])
def test_a_product_is_named_for_what_its_operands_do_not_explain(scaled, first):
    usual = usual_of(chain(0, 0, 0), chain(0.2, 0.2, 0.4))

    assert found(chain(2, scaled, 2 * scaled), usual, 1)[0].producer == first


def test_an_exponential_of_something_too_large_is_not_named():
    def trace(x, out):
        return {-1: leaf(x), 0: op("exp", out, -1)}

    usual = usual_of(trace(0, 1), trace(0.2, 1.2))

    assert [s.producer for s in found(trace(4, 23), usual, 0)] == [-1]


def test_what_was_zero_before_comes_last_and_is_a_number():
    def trace(mark, out):
        return {-1: leaf(mark), -2: leaf(0.0, "param"), 0: op("mul", out, -1), 1: op("exp", out, -2, line=2),
                2: op("add", out, 0, 1, line=3)}  # fmt: skip

    usual = usual_of(trace(-math.inf, 0), trace(-math.inf, 0))

    got = found(trace(0, 9), usual, 2)

    assert [s.producer for s in got] == [1, -1]
    assert all(math.isfinite(s.above) for s in got)


def test_turns_of_a_loop_add_up():
    def trace(gain):
        turns = {t: op("mul", gain * (t + 1), t - 1 if t else -1, nth=t) for t in range(8)}
        return {-1: leaf(0.0), **turns}

    usual = usual_of(trace(0.0), trace(0.1))

    (suspect,) = found(trace(2.0), usual, 7)

    assert suspect.producer == 0
    assert suspect.in_all > 10 > suspect.above


def test_in_backward_what_gradients_do_not_explain_is_an_operators_own():
    def trace(came, gave):
        return {0: op("sum", came, is_gradient=True), 1: op("div", gave, 0, line=2, is_gradient=True)}

    usual = usual_of(trace(0, 0), trace(0, 0.5))

    assert own_part(trace(1.6, 20)[1], trace(1.6, 20), usual) == pytest.approx(17.9)


def test_operators_that_no_healthy_step_ran_are_told():
    healthy = {-1: leaf(0.0), 0: op("mean", 0.0, -1)}
    now = {-1: leaf(0.0), 0: op("sum", 4.0, -1, line=7), 1: op("mul", 4.0, 0, line=8)}
    usual = usual_of(healthy, healthy)

    assert new_operators([1], now, usual) == [0]
    assert new_operators([0], healthy, usual) == []
    assert new_operators([1], now, usual_of(healthy)) == []
