"""A healthy op is never called wrong; a flipped high bit and a wrong kernel always are."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from hypocenter.replay.triage.ops import OpCheck, judge
from hypocenter.tap.op_context import OpContext

torch.set_num_threads(1)
aten = torch.ops.aten
SIZES = st.integers(1, 40)
FORMATS = st.sampled_from([torch.float32, torch.float32, torch.bfloat16, torch.float16, torch.float64])
SCALES = st.sampled_from([1e-4, 1e-2, 1.0, 30.0])
INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def values(*shape, seed, dtype=torch.float32, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=generator, dtype=torch.float64) * scale).to(dtype)


def found(func, *args, out=None, **kwargs):
    result = func(*args, **kwargs) if out is None else out
    return judge(func, args, kwargs, result if isinstance(result, tuple) else (result,))


@settings(max_examples=60, deadline=None)
@given(m=SIZES, k=st.integers(1, 300), n=SIZES, seed=st.integers(0, 999), dtype=FORMATS, scale=SCALES)
def test_healthy_products_pass(m, k, n, seed, dtype, scale):
    a, b = values(m, k, seed=seed, dtype=dtype, scale=scale), values(k, n, seed=seed + 1, dtype=dtype)
    bias = values(n, seed=seed + 2, dtype=dtype, scale=10.0)

    assert found(aten.mm.default, a, b) == []
    assert found(aten.addmm.default, bias, a, b, beta=0.5, alpha=2.0) == []
    assert found(aten.bmm.default, a[None], b[None]) == []


@settings(max_examples=60, deadline=None)
@given(m=SIZES, k=st.integers(1, 200), n=SIZES, seed=st.integers(0, 999), bit=st.integers(24, 31))
def test_a_flipped_high_bit_of_a_product_is_found(m, k, n, seed, bit):
    a, b = values(m, k, seed=seed), values(k, n, seed=seed + 1)
    product = aten.mm.default(a, b)
    place = int(product.abs().argmax())  # a result that is not lost in its own rounding
    product.view(torch.int32).view(-1)[place] ^= 1 << bit if bit < 31 else -(1 << 31)

    wrong = found(aten.mm.default, a, b, out=product)

    assert [w.n_wrong for w in wrong] == [1]
    assert wrong[0].index == tuple(divmod(place, n))


@pytest.mark.parametrize("spoil", ["last product", "swapped rows", "bfloat16", "no bias"])
def test_a_wrong_kernel_is_found(spoil):
    a, b, bias = values(16, 24, seed=1), values(24, 8, seed=2), values(8, seed=3)
    product = aten.addmm.default(bias, a, b)
    if spoil == "last product":
        product -= a[:, -1:] * b[-1:, :]
    elif spoil == "swapped rows":
        product[:2] = product[:2].flip(0).clone()
    elif spoil == "bfloat16":
        product = product.bfloat16().float()
    else:
        product -= bias

    assert found(aten.addmm.default, bias, a, b, out=product)


def test_a_large_product_is_judged_by_its_row_sums(monkeypatch):
    from hypocenter.replay.triage import expected

    monkeypatch.setattr(expected, "MOST_PRODUCTS", 10)
    a, b = values(64, 96, seed=1), values(96, 48, seed=2)
    product = aten.mm.default(a, b)
    assert found(aten.mm.default, a, b) == []

    product[7, 5] += 1.0

    wrong = found(aten.mm.default, a, b, out=product)
    assert [w.index for w in wrong] == [(7,)]


@settings(max_examples=40, deadline=None)
@given(rows=SIZES, n=st.integers(2, 64), seed=st.integers(0, 999), dtype=FORMATS, scale=SCALES)
def test_healthy_reductions_and_elements_pass(rows, n, seed, dtype, scale):
    x = values(rows, n, seed=seed, dtype=dtype, scale=scale) + 3.0
    y, g = values(rows, n, seed=seed + 1, dtype=dtype), values(rows, n, seed=seed + 2, dtype=dtype)
    weight, bias = values(n, seed=seed + 3, dtype=dtype), values(n, seed=seed + 4, dtype=dtype)
    shares, logs = torch.softmax(y, -1), torch.log_softmax(y, -1)
    normed = aten.native_layer_norm.default(x, [n], weight, bias, 1e-5)

    assert found(aten.sum.dim_IntList, x, [0]) == []
    assert found(aten.mean.dim, x, [-1]) == []
    assert found(aten._softmax.default, x, -1, False) == []
    assert found(aten._log_softmax.default, x, -1, False) == []
    assert found(aten._softmax_backward_data.default, g, shares, -1, dtype) == []
    assert found(aten._log_softmax_backward_data.default, g, logs, -1, dtype) == []
    assert found(aten.native_layer_norm.default, x, [n], weight, bias, 1e-5) == []
    backward = aten.native_layer_norm_backward.default
    assert found(backward, g, x, [n], normed[1], normed[2], weight, bias, [True, True, True]) == []
    for op in (aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor):
        assert found(op, x, g) == []
    for op in (aten.exp, aten.tanh, aten.sigmoid, aten.gelu, aten.silu, aten.relu):
        assert found(op.default, y) == []
    assert found(aten.gelu_backward.default, g, y) == []
    assert found(aten.threshold_backward.default, g, y, 0) == []
    assert found(aten.mse_loss.default, x, y) == []
    assert found(aten.mse_loss_backward.default, g.sum(), x, y, 1) == []


@pytest.mark.parametrize("n_rows", [16, 300, 3000])
def test_rows_that_a_kernel_adds_up_in_the_weights_format_pass(n_rows):
    x = values(n_rows, 8, seed=0, dtype=torch.bfloat16, scale=600.0)
    weight, bias = torch.ones(8, dtype=torch.bfloat16), torch.zeros(8, dtype=torch.bfloat16)
    _, mean, rstd = aten.native_layer_norm.default(x, [8], weight, bias, 1e-5)
    g = ((x.float() - mean.float()) * rstd.float()).to(torch.bfloat16)  # all terms of one sign

    backward = aten.native_layer_norm_backward.default
    assert found(backward, g, x, [8], mean, rstd, weight, bias, [True, True, True]) == []
    tokens = torch.zeros(n_rows, dtype=torch.int64)
    assert found(aten.embedding_dense_backward.default, g.abs(), tokens, 4, -1, False) == []


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 999), channels=st.integers(1, 6), dtype=st.sampled_from([torch.float32, torch.bfloat16]))
def test_healthy_convolutions_pass(seed, channels, dtype):
    x, weight = values(2, channels, 9, 9, seed=seed, dtype=dtype), values(4, channels, 3, 3, seed=seed + 1, dtype=dtype)
    rest = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    out = aten.convolution.default(x, weight, None, *rest)

    assert found(aten.convolution.default, x, weight, None, *rest) == []
    backward = aten.convolution_backward.default
    assert found(backward, out, x, weight, None, *rest, [True, True, False]) == []


def test_what_overflows_a_format_is_no_fault():
    x = torch.full((2048,), 600.0, dtype=torch.float16)

    assert found(aten.sum.default, x, out=torch.tensor(float("inf"), dtype=torch.float16)) == []
    assert found(aten.mul.Tensor, x, x) == []
    assert found(aten.mm.default, x[None], x[:, None]) == []


def test_what_is_not_finite_before_is_no_fault():
    x = torch.tensor([[1.0, float("nan")], [float("inf"), 2.0]])

    assert found(aten.mm.default, x, x) == []
    assert found(aten._softmax.default, x, -1, False) == []


def test_an_infinity_out_of_nothing_is_a_fault():
    a, b = values(4, 4, seed=1), values(4, 4, seed=2)
    product = aten.mm.default(a, b)
    product[1, 2] = float("inf")

    assert [w.index for w in found(aten.mm.default, a, b, out=product)] == [(1, 2)]


def test_unknown_ops_are_not_judged():
    assert found(aten.bernoulli.p, torch.ones(4), 0.5) is None
    assert found(aten.linalg_qr.default, torch.eye(3)) is None


def test_the_check_of_a_step_judges_forward_and_backward():
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2))

    with OpCheck(OpContext(lambda module: None)) as check:
        model(values(3, 4, seed=0)).square().mean().backward()

    assert not check.report.wrong
    assert check.report.n_checked > 12


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, "autocast"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: (nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), (4, 12, 32)),
        lambda: (
            nn.Sequential(nn.Conv2d(3, 8, 3), nn.SiLU(), nn.Conv2d(8, 8, 3, groups=2), nn.AvgPool2d(2)),
            (4, 3, 16, 16),
        ),
        lambda: (nn.Sequential(nn.ConvTranspose1d(4, 6, 3, stride=2), nn.GELU(), nn.Conv1d(6, 2, 3)), (8, 4, 33)),
        lambda: (nn.Sequential(nn.Linear(16, 64), nn.LayerNorm(64), nn.Softplus(), nn.Linear(64, 3)), (64, 16)),
    ],
)
def test_healthy_layers_pass_in_every_format(make, dtype):
    torch.manual_seed(0)
    layer, shape = make()
    x = torch.randn(*shape)
    if isinstance(dtype, torch.dtype):
        layer, x = layer.to(dtype), x.to(dtype)

    with OpCheck(OpContext(lambda module: None)) as check:
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "autocast"):
            out = layer(x.requires_grad_())
        (out.float().square().mean() * 1e-2).backward()

    assert check.report.wrong == []
    assert check.report.n_checked > 10
