"""What a loss is multiplied by is read off its graph, or not told at all."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hypocenter.tap.loss_graph import multiplier

numbers = st.floats(min_value=2.0**-8, max_value=2.0**20, width=32)


def loss():
    return torch.nn.functional.mse_loss(torch.nn.Linear(3, 1)(torch.ones(2, 3)), torch.zeros(2, 1))


@given(factors=st.lists(numbers, max_size=4), n=st.integers(1, 8), is_tensor=st.booleans())
def test_the_product_of_all_factors_in_any_order(factors, n, is_tensor):
    root, product = loss(), 1.0
    for factor in factors:
        root = root * (torch.tensor(factor) if is_tensor else factor) / n
        product *= factor / n

    assert multiplier(root) == pytest.approx(product, rel=1e-5)


@pytest.mark.parametrize(
    "way",
    [
        lambda x: x * 8.0,
        lambda x: 8.0 * x,
        lambda x: x / 0.125,
        lambda x: torch.stack([x, x]).mul(8.0).mean(),
        lambda x: (x + 1.0) * 8.0 + 3.0 * x,
        lambda x: (x * 8.0).double().float().clone().reshape(1).squeeze(),
        lambda x: torch.amp.GradScaler("cpu", init_scale=8.0).scale(x),
    ],
)
def test_ways_to_scale(way):
    assert multiplier(way(loss())) == pytest.approx(8.0)


def test_a_mask_does_not_hide_a_factor_before_it():
    each = torch.nn.functional.mse_loss(torch.nn.Linear(3, 1)(torch.ones(4, 3)), torch.zeros(4, 1), reduction="none")

    assert multiplier((each * 8.0 * torch.tensor([[1.0], [0.0], [1.0], [1.0]])).sum()) == pytest.approx(8.0)


class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 8.0

    @staticmethod
    def backward(ctx, grad):
        return grad * 8.0


def test_an_own_function_that_returns_the_loss_cannot_be_read():
    assert multiplier(Own.apply(loss())) is None


def test_a_hook_on_the_loss_cannot_be_read():
    root = loss()
    root.register_hook(lambda grad: grad * 8.0)

    assert multiplier(root) is None


def test_a_start_that_is_no_single_number_cannot_be_read():
    assert multiplier(torch.nn.Linear(3, 1)(torch.ones(2, 3))) is None
    assert multiplier(torch.ones(())) is None


def test_the_graph_can_still_be_used():
    root = loss() * 8.0
    multiplier(root)

    root.backward()
