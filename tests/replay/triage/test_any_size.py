"""However large or small its numbers are, whatever overflows or vanishes on the way: a healthy op is never wrong."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hypocenter.replay.triage.ops import FAMILIES, judge

torch.set_num_threads(1)
aten = torch.ops.aten
ROWS, N = 6, 16
EXPONENTS = st.sampled_from([-44, -38, -30, -22, -19, -12, -6, -2, 0, 1, 2, 4, 6, 12, 18, 19, 20, 30, 37, 38])


class Draw:
    """Tensors of any size, drawn from a seed."""

    def __init__(self, seed, exponents, dtype):
        self.generator = torch.Generator().manual_seed(seed)
        self.exponents, self.dtype, self.n = exponents, dtype, 0

    def __call__(self, *shape):
        exponent = self.exponents[self.n % len(self.exponents)]
        self.n += 1
        values = torch.randn(*shape, generator=self.generator, dtype=torch.float64) * 10.0**exponent
        limit = torch.finfo(self.dtype).max
        return values.clamp(-limit, limit).to(self.dtype)


def layer_norm(t):
    x, weight, bias = t(ROWS, N), t(N), t(N)
    return aten.native_layer_norm.default, (x, [N], weight, bias, 1e-5)


def layer_norm_backward(t):
    g, x, weight, bias = t(ROWS, N), t(ROWS, N), t(N), t(N)
    _, mean, rstd = aten.native_layer_norm.default(x, [N], weight, bias, 1e-5)
    return aten.native_layer_norm_backward.default, (g, x, [N], mean, rstd, weight, bias, [True] * 3)


def softmax_backward(t):
    return aten._softmax_backward_data.default, (t(ROWS, N), t(ROWS, N).softmax(-1), -1, t.dtype)


def log_softmax_backward(t):
    return aten._log_softmax_backward_data.default, (t(ROWS, N), t(ROWS, N).log_softmax(-1), -1, t.dtype)


def attention(t):
    return aten._scaled_dot_product_flash_attention_for_cpu.default, tuple(t(1, 2, N, 8) for _ in range(3))


def attention_backward(t):
    grad, q, k, v = (t(1, 2, N, 8) for _ in range(4))
    out, lse = aten._scaled_dot_product_flash_attention_for_cpu.default(q, k, v)
    return aten._scaled_dot_product_flash_attention_for_cpu_backward.default, (grad, q, k, v, out, lse, 0.0, False)


def convolution(t):
    return aten.convolution.default, (t(1, 2, 8, 8), t(3, 2, 3, 3), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)


def convolution_backward(t):
    rest = (None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    return aten.convolution_backward.default, (t(1, 3, 8, 8), t(1, 2, 8, 8), t(3, 2, 3, 3), *rest, [True, True, False])


def nll(t):
    return aten.nll_loss_forward.default, (t(ROWS, N), torch.arange(ROWS) % N, None, 1, -100)


CALLS = {
    "mm": lambda t: (aten.mm.default, (t(ROWS, N), t(N, 5))),
    "addmm": lambda t: (aten.addmm.default, (t(5), t(ROWS, N), t(N, 5))),
    "bmm": lambda t: (aten.bmm.default, (t(2, ROWS, N), t(2, N, 5))),
    "convolution": convolution,
    "convolution_backward": convolution_backward,
    "sum": lambda t: (aten.sum.dim_IntList, (t(ROWS, N), [0])),
    "mean": lambda t: (aten.mean.dim, (t(ROWS, N), [-1])),
    "cumsum": lambda t: (aten.cumsum.default, (t(ROWS, N), 0)),
    "linalg_vector_norm": lambda t: (aten.linalg_vector_norm.default, (t(ROWS, N),)),
    "mse_loss": lambda t: (aten.mse_loss.default, (t(ROWS, N), t(ROWS, N))),
    "mse_loss_backward": lambda t: (aten.mse_loss_backward.default, (t(1)[0], t(ROWS, N), t(ROWS, N), 1)),
    "smooth_l1_loss": lambda t: (aten.smooth_l1_loss.default, (t(ROWS, N), t(ROWS, N), 1, 0.5)),
    "huber_loss": lambda t: (aten.huber_loss.default, (t(ROWS, N), t(ROWS, N), 1, 0.5)),
    "nll_loss_forward": nll,
    "_softmax": lambda t: (aten._softmax.default, (t(ROWS, N), -1, False)),
    "_log_softmax": lambda t: (aten._log_softmax.default, (t(ROWS, N), -1, False)),
    "_softmax_backward_data": softmax_backward,
    "_log_softmax_backward_data": log_softmax_backward,
    "native_layer_norm": layer_norm,
    "native_layer_norm_backward": layer_norm_backward,
    "_scaled_dot_product_flash_attention_for_cpu": attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": attention_backward,
    "gelu": lambda t: (aten.gelu.default, (t(ROWS, N),), {"approximate": "tanh"}),
    "gelu_backward": lambda t: (aten.gelu_backward.default, (t(ROWS, N), t(ROWS, N)), {"approximate": "tanh"}),
    "silu_backward": lambda t: (aten.silu_backward.default, (t(ROWS, N), t(ROWS, N))),
    "tanh_backward": lambda t: (aten.tanh_backward.default, (t(ROWS, N), t(ROWS, N).tanh())),
    "sigmoid_backward": lambda t: (aten.sigmoid_backward.default, (t(ROWS, N), t(ROWS, N).sigmoid())),
    "softplus": lambda t: (aten.softplus.default, (t(ROWS, N),)),
    "div": lambda t: (aten.div.Tensor_mode, (t(ROWS, N), t(ROWS, N)), {"rounding_mode": "trunc"}),
    "pow": lambda t: (aten.pow.Tensor_Scalar, (t(ROWS, N), 3)),
    "add": lambda t: (aten.add.Tensor, (t(ROWS, N), t(ROWS, N)), {"alpha": -2}),
    "addcmul": lambda t: (aten.addcmul.default, (t(ROWS, N), t(ROWS, N), t(ROWS, N)), {"value": 0.5}),
    "addcdiv": lambda t: (aten.addcdiv.default, (t(ROWS, N), t(ROWS, N), t(ROWS, N)), {"value": 0.5}),
    "lerp": lambda t: (aten.lerp.Scalar, (t(ROWS, N), t(ROWS, N), 0.25)),
} | {
    name: (lambda op: lambda t: (op, (t(ROWS, N), t(ROWS, N))))(getattr(aten, name).Tensor)
    for name in ("mul", "sub")
} | {
    name: (lambda op: lambda t: (op, (t(ROWS, N),)))(getattr(aten, name).default)
    for name in (
        "exp", "tanh", "sigmoid", "erf", "sin", "cos", "log", "log1p", "sqrt", "rsqrt", "reciprocal", "silu", "mish",
        "elu", "hardswish", "relu", "neg",
    )
}  # fmt: skip


def judged(name, draw, spoil=None):
    """What is said of one call; [] if this format is not for this op here."""
    func, args, *rest = CALLS[name](draw)
    kwargs = rest[0] if rest else {}
    try:
        result = func(*args, **kwargs)
    except (RuntimeError, NotImplementedError):
        return []
    results = result if isinstance(result, tuple) else (result,)
    if spoil is not None:
        spoil(results[0])
    return judge(func, args, kwargs, results)


@pytest.mark.parametrize("name", list(CALLS))
def test_a_healthy_op_passes_where_things_overflow_or_vanish(name):
    for first, second, third in itertools.product((-44, -22, 0, 20, 37), (-44, 0, 20), (-38, 2)):
        for dtype in (torch.float32, torch.bfloat16):
            draw = Draw(0, (first, second, third), dtype)
            assert judged(name, draw) in ([], None), (first, second, third, dtype)


@pytest.mark.parametrize("name", list(CALLS))
@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 9999),
    exponents=st.lists(EXPONENTS, min_size=1, max_size=4),
    dtype=st.sampled_from([torch.float32, torch.float32, torch.bfloat16, torch.float16]),
)
def test_a_healthy_op_passes(name, seed, exponents, dtype):
    assert name in FAMILIES
    assert judged(name, Draw(seed, exponents, dtype)) in ([], None)


@pytest.mark.parametrize("name", sorted(CALLS.keys() - {"div"}))  # not judged where the quotient is rounded
def test_a_result_that_is_off_by_a_tenth_is_found_at_ordinary_sizes(name):
    def spoil(result):
        result[torch.unravel_index(result.abs().nan_to_num().argmax(), result.shape)] *= 1.1

    assert judged(name, Draw(1, (0,), torch.float32), spoil)
