"""The gradient of one parameter among many."""

import numpy as np
import pytest

from hypocenter.detect.rises import Rises

N = 2000


def found(steps):
    rises = Rises()
    names = [f"layer.{i}" for i in range(len(steps[0]))]
    told = [(step, rises.add(dict(zip(names, values, strict=True)))) for step, values in enumerate(steps)]
    return [(step, *jump) for step, jump in told if jump is not None]


def norms(n_steps, spread=0.3, n=N, seed=0):
    rng = np.random.default_rng(seed)
    return np.exp(rng.normal(0, 2, n) + spread * rng.normal(0, 1, (n_steps, n)))


def test_a_parameter_that_jumps_alone_is_found():
    steps = norms(80)
    usual = float(np.median(steps[:60, 77]))
    steps[60, 77] *= 200

    ((step, name, jump),) = found(steps)

    assert (step, name) == (60, "layer.77")
    assert jump.value == steps[60, 77]
    assert jump.usual == pytest.approx(usual, rel=0.3)
    assert jump.usual < jump.limit <= jump.value


@pytest.mark.parametrize("spread", [0.05, 0.3, 1.0])
def test_thousands_of_noisy_norms_do_not_jump(spread):
    assert found(norms(400, spread)) == []


def test_a_heavy_tail_over_many_parameters_jumps_rarely():
    rng = np.random.default_rng(0)

    assert len(found(rng.pareto(2.0, (2000, 300)) + 0.1)) <= 3


def test_what_is_idle_in_most_steps_does_not_jump():
    rng = np.random.default_rng(0)
    steps = norms(400, n=64)
    steps[:, :8] *= rng.random((400, 8)) < 0.1

    assert found(steps) == []


@pytest.mark.parametrize(("to", "steps"), [(1.5e-8, []), (1e-3, [60])])
def test_what_rounding_leaves_of_zero_does_not_jump(to, steps):
    """As the gradient of a bias before a batch norm."""
    values = norms(80, 0.05, n=8)
    values[:, 3] = 1e-9
    values[60, 3] = to

    assert [step for step, _, _ in found(values)] == steps


def test_other_parameters_start_over():
    rises = Rises()
    for _ in range(20):
        rises.add({"a": 1.0})

    assert rises.add({"a": 1.0, "b": 1e6}) is None
