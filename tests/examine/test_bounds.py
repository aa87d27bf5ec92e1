"""Bounds of rounding errors: right results stay inside in every order, wrong ones of a few units fall out."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hypocenter.examine import arithmetic


@settings(max_examples=20)
@given(seed=st.integers(0, 2**31), k=st.sampled_from([1, 3, 64, 700]), scale=st.sampled_from([1e-3, 1.0, 1e4]))
def test_products_stay_inside_in_any_order_of_the_sum(seed, k, scale):
    draw = torch.Generator().manual_seed(seed)
    a, b = scale * torch.randn(5, k, generator=draw), torch.randn(k, 4, generator=draw)
    exact = a.double() @ b.double()
    bound = arithmetic.product_bound(a.double(), b.double(), exact, torch.float32)
    order = torch.randperm(k, generator=draw)

    one_by_one = torch.zeros(5, 4)
    for i in order.tolist():
        one_by_one = one_by_one + a[:, i : i + 1] * b[i : i + 1]

    assert bool(((a @ b).double() - exact).abs().le(bound).all())
    assert bool((one_by_one.double() - exact).abs().le(bound).all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_products_stay_inside_and_a_bit_in_the_middle_falls_out(dtype):
    draw = torch.Generator().manual_seed(0)
    a, b = torch.randn(16, 64, generator=draw).to(dtype), torch.randn(64, 16, generator=draw).to(dtype)
    exact = a.double() @ b.double()
    bound = arithmetic.product_bound(a.double(), b.double(), exact, dtype)

    right = (a @ b).double()
    wrong = right * (1 + 8 * arithmetic.UNIT[dtype])

    assert bool((right - exact).abs().le(bound).all())
    assert not bool((wrong - exact).abs().le(bound).all())


@settings(max_examples=20)
@given(seed=st.integers(0, 2**31), n=st.sampled_from([2, 33, 1000]), spread=st.sampled_from([0.1, 1.0, 20.0]))
def test_softmax_layer_norm_and_sums_stay_inside(seed, n, spread):
    x = spread * torch.randn(8, n, generator=torch.Generator().manual_seed(seed)) + 0.5
    wide = x.double()
    norm = torch.nn.functional.layer_norm

    soft = (torch.softmax(x, -1).double() - torch.softmax(wide, -1)).abs()
    normed = (norm(x, (n,)).double() - norm(wide, (n,))).abs()
    summed = (x.sum(-1).double() - wide.sum(-1)).abs()

    assert bool(soft.le(arithmetic.softmax_bound(wide, torch.softmax(wide, -1), torch.float32)).all())
    assert bool(normed.le(arithmetic.layernorm_bound(wide, norm(wide, (n,)), torch.float32)).all())
    assert bool(summed.le(arithmetic.sum_bound(wide, torch.float32)).all())


def test_gamma_is_that_of_highams_lemma():
    assert arithmetic.gamma(1, 0.25) == 0.25 / 0.75
