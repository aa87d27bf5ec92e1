"""The table of domains against the functions themselves: outside it, and only there, float64 gives no number."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hypocenter.domains import DOMAINS
from hypocenter.replay.measured import outside

GRID = [-3.0, -2.5, -1.0 - 1e-9, -1.0, -0.5, -0.25, 0.0, 0.25, 0.5, 1.0, 1.0 + 1e-9, 2.0, 2.5]
ONE_OPERAND = {
    "sqrt", "rsqrt", "log", "log2", "log10", "log1p", "acosh", "acos", "asin", "atanh", "erfinv", "logit",
    "special_ndtri", "special_modified_bessel_k0", "special_modified_bessel_k1", "special_bessel_y0",
    "special_bessel_y1",
}  # fmt: skip
SECOND_OPERAND = {"xlogy", "special_xlog1py", "igamma", "igammac"}
OTHER = {"pow", "native_batch_norm", "cudnn_batch_norm", "_native_batch_norm_legit_no_training"}
INFINITE_THERE = {"lgamma", "digamma", "special_entr"}


def aten(name):
    packet = getattr(torch.ops.aten, name)
    return packet.Tensor if "Tensor" in packet.overloads() else packet.default


def test_every_function_of_the_table_is_looked_at_here():
    assert set(DOMAINS) == ONE_OPERAND | SECOND_OPERAND | OTHER | INFINITE_THERE


@pytest.mark.parametrize("name", sorted(ONE_OPERAND))
def test_a_function_is_nan_exactly_outside_its_domain(name):
    x = torch.tensor(GRID, dtype=torch.float64)

    bad = torch.isnan(aten(name)(x)).numpy()

    found = outside(name, [x.numpy()], bad)
    assert (found["n_outside"], found["is_all_outside"]) == (bad.sum(), 1.0)
    assert bad[GRID.index(found["worst_outside"])]
    assert found["at_outside"] == str([GRID.index(found["worst_outside"])])


@pytest.mark.parametrize("name", sorted(SECOND_OPERAND))
def test_the_second_operand_is_looked_at_where_it_counts(name):
    x, y = torch.ones(len(GRID), dtype=torch.float64), torch.tensor(GRID, dtype=torch.float64)

    bad = torch.isnan(aten(name)(x, y)).numpy()

    found = outside(name, [x.numpy(), y.numpy()], bad)
    assert (found["n_outside"], found["is_all_outside"]) == (bad.sum(), 1.0)


@pytest.mark.parametrize("name", sorted(INFINITE_THERE))
def test_poles_are_outside_too(name):
    x = torch.tensor(GRID, dtype=torch.float64)

    bad = ~torch.isfinite(aten(name)(x)).numpy()

    found = outside(name, [x.numpy()], bad)
    assert (found["n_outside"], found["is_all_outside"]) == (bad.sum(), 1.0)


@pytest.mark.parametrize("exponent", [0.5, -1.5, 2.0, -3.0, "tensor", "base"])
def test_a_negative_base_needs_a_whole_exponent(exponent):
    x = torch.tensor(GRID, dtype=torch.float64)
    exponents = torch.tensor([[0.5], [2.0], [1.0 / 3.0]], dtype=torch.float64)
    given = {"tensor": [x, exponents], "base": [-2.0, x]}.get(exponent, [x, exponent])

    bad = torch.isnan(torch.pow(*given)).numpy()

    found = outside("pow", [v.numpy() if isinstance(v, torch.Tensor) else v for v in given], bad)
    assert found.get("n_outside", 0.0) == bad.sum()
    assert found.get("is_all_outside", 1.0) == 1.0


def test_a_negative_running_variance_spoils_its_channel():
    x, variance = torch.randn(2, 3, 4), torch.tensor([1.0, -1.0, 2.0])
    y = torch.nn.functional.batch_norm(x, torch.zeros(3), variance)

    found = outside("native_batch_norm", [x.numpy(), None, None, None, variance.numpy()], torch.isnan(y).numpy())

    assert found == {"n_outside": 1.0, "worst_outside": -1.0, "at_outside": "[1]", "is_all_outside": 1.0}


def test_nothing_is_said_of_what_lies_within_or_is_not_real():
    assert outside("sqrt", [np.array([0.0, 2.0])], np.array([False, True])) == {}
    assert outside("sqrt", [np.array([-1.0 + 0j])], np.array([True])) == {}
    assert outside("exp", [np.array([-1.0])], np.array([True])) == {}
    assert outside("xlogy", [np.array([-1.0])], np.array([True])) == {}


def test_elements_that_are_bad_for_another_reason_are_seen():
    found = outside("sqrt", [np.array([-1.0, 4.0])], np.array([True, True]))

    assert (found["n_outside"], found["is_all_outside"]) == (1.0, 0.0)
