import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from hypocenter.replay.calibration import UNIT, Rounding, adds_up, off_by_one_rounding

ULP = {torch.float64: 2.0**-52, torch.float32: 2.0**-23, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}
aten = torch.ops.aten


@pytest.mark.parametrize("dtype", UNIT)
def test_values_move_by_about_a_rounding_of_their_own_format(dtype):
    x = torch.randn(20_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)

    moved = off_by_one_rounding(x, torch.Generator().manual_seed(1))

    relative = ((moved.double() - x.double()).norm() / x.double().norm()).item()
    assert moved.dtype == dtype
    assert 0.2 * ULP[dtype] < relative < ULP[dtype]
    assert bool(((moved.double() - x.double()).abs() <= 1.51 * ULP[dtype] * x.double().abs()).all())


@given(dtype=st.sampled_from(list(UNIT)), seed=st.integers(0, 99))
def test_masks_counts_and_what_is_not_finite_stay(dtype, seed):
    largest = torch.finfo(dtype).max
    x = torch.tensor([0.0, -0.0, 1.0, -3.0, 12.0, float("inf"), -float("inf"), float("nan"), -largest], dtype=dtype)

    moved = off_by_one_rounding(x, torch.Generator().manual_seed(seed))

    assert torch.equal(moved[:7], x[:7])
    assert moved[7].isnan()
    assert moved[8].isfinite()


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (aten.mm.default, True),
        (aten.addmm.default, True),
        (aten._softmax.default, True),
        (aten._softmax_backward_data.default, True),
        (aten.native_layer_norm_backward.default, True),
        (aten._scaled_dot_product_flash_attention_for_cpu.default, True),
        (aten.convolution_backward.default, True),
        (aten.embedding_dense_backward.default, True),
        (aten.nll_loss_forward.default, True),
        (aten.sum.dim_IntList, True),
        (aten.embedding.default, False),
        (aten.add.Tensor, False),
        (aten.mul.Tensor, False),
        (aten.log.default, False),
        (aten.cumsum.default, False),
        (aten.normal.float_Tensor, False),
        (aten.max_pool2d_with_indices.default, False),
        (aten.mm.out, False),
        (aten.addmm_.default, False),
        (aten.view.default, False),
    ],
)
def test_only_what_adds_up_into_something_new_is_touched(op, expected):
    assert adds_up(op) is expected


def forward_and_backward(mode=None):
    torch.manual_seed(0)
    x, w = torch.randn(16, 32, requires_grad=True), torch.randn(32, 32, requires_grad=True)
    given = x.detach().clone(), w.detach().clone()

    def loss():
        return functional.layer_norm(functional.gelu(x @ w), (32,)).softmax(-1).square().sum()

    if mode is None:
        value = loss()
        grads = torch.autograd.grad(value, (x, w))
    else:
        with mode:
            value = loss()
            grads = torch.autograd.grad(value, (x, w))
    assert torch.equal(x, given[0])
    assert torch.equal(w, given[1])
    return value.detach(), *grads


def test_forward_and_backward_are_off_by_a_few_roundings_and_nothing_is_written_to():
    before = torch.get_rng_state()
    exact = forward_and_backward()
    after_exact = torch.get_rng_state()

    samples = [forward_and_backward(Rounding(seed)) for seed in (1, 2)]

    assert not torch.equal(before, after_exact)
    assert torch.equal(torch.get_rng_state(), after_exact)
    for sample in samples:
        for a, b in zip(exact[1:], sample[1:], strict=True):
            assert 2.0**-25 < float((a - b).norm() / a.norm()) < 2.0**-18
    assert not torch.equal(samples[0][1], samples[1][1])


def test_a_seed_gives_the_same_sample_again_also_after_a_restart():
    told = []
    mode = Rounding(3, on_restart=lambda: told.append(1))
    first = forward_and_backward(mode)
    mode.restart()

    again, other = forward_and_backward(mode), forward_and_backward(Rounding(3))

    assert told == [1]
    assert all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(first, again, other, strict=True))


def test_running_statistics_are_not_moved():
    norm = torch.nn.BatchNorm1d(4)
    x = torch.randn(8, 4)
    plain = torch.nn.BatchNorm1d(4)
    plain(x)

    with Rounding(0):
        norm(x)

    assert float((norm.running_mean - plain.running_mean).abs().max()) < 1e-6
