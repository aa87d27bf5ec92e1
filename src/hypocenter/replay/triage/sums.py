"""Expectations of sums, softmax and layer norm, and of their gradients."""

from __future__ import annotations

import math

import torch

from hypocenter.replay.triage.expected import Call, Expected, finished


def total(call: Call) -> list[Expected | None]:
    """Expect sum, mean, nansum, cumsum, pooling or embedding's gradient: n additions of magnitudes."""
    value, mass = call()[0], call(magnitudes=True)[0]
    n = max(a.numel() for a in call.args if isinstance(a, torch.Tensor))
    name = call.func.__name__.partition(".")[0]
    n = max(1, n // max(1, value.numel())) if name in ("sum", "mean", "nansum") else n
    u = call.u_out() if name == "embedding_dense_backward" else call.u  # rows are added in the format of the weight
    # a mean may be stored as a sum before it is divided
    error = (n + 8) * u * mass + call.u_out() * mass + call.underflow(n)
    return [finished(call, value, error, mass * n)]


def norm(call: Call) -> list[Expected | None]:
    """Expect vector norms: all terms have one sign; the squares of small numbers vanish."""
    order = call.args[1] if len(call.args) > 1 else call.kwargs.get("ord", 2)
    if order not in (1, 2, math.inf):
        raise NotImplementedError("powers other than squares")
    value, x = call()[0], call.tensor(0)
    lost = math.sqrt(x.numel() * call.tiny) if order == 2 else 0.0
    return [finished(call, value, (x.numel() + 16) * call.u * value + lost, value, inner=x.pow(2).sum() + value)]


def losses(call: Call) -> list[Expected | None]:
    """Expect mse_loss, l1_loss, smooth_l1_loss or huber_loss: sums of differences, which may cancel."""
    a, b = call.tensor(0), call.tensor(1)
    value = call()[0]
    size = a.abs() + b.abs()
    terms = torch.maximum(size, size * size)
    n = terms.numel()
    mass = terms if value.shape == terms.shape else terms.sum()
    share = mass / n if value.dim() == 0 and value.shape != terms.shape and _is_mean(call) else mass
    return [finished(call, value, (n + 16) * (call.u + call.u_out() / (n + 16)) * share, mass)]


def loss_backward(call: Call) -> list[Expected | None]:
    """Expect mse_loss_backward, l1 or smooth_l1: the outer gradient times a difference."""
    grad, a, b = call.tensor(0), call.tensor(1), call.tensor(2)
    value = call()[0]
    share = 2.0 / max(1, a.numel()) if _is_mean(call) else 2.0
    size = grad.abs() * share * (a.abs() + b.abs() + 1.0)
    return [finished(call, value, 16 * (call.u + call.u_out()) * size, torch.maximum(size, a.abs() + b.abs()))]


def _is_mean(call: Call) -> bool:
    return 1 in [v for v in (*call.args, *call.kwargs.values()) if type(v) is int] or not any(
        type(v) is int for v in (*call.args, *call.kwargs.values())
    )


def nll(call: Call) -> list[Expected | None]:
    """Expect nll_loss_forward: a mean of picked values."""
    value, mass = call(), call(magnitudes=True)
    n = call.tensor(0).shape[0] if call.tensor(0).dim() else 1
    n = max(n, call.tensor(1).numel())
    return [
        finished(call, v, (n + 16) * (call.u + call.u_out(i) / n) * m.abs(), m.abs() * n, index=i)
        if call.out_dtypes[i] is not None
        else None
        for i, (v, m) in enumerate(zip(value, mass, strict=True))
    ]


def softmax(call: Call) -> list[Expected | None]:
    """Expect softmax: each share is off by the rounding of the sum, and of its exponent unless it is tiny."""
    value, n = call()[0], _length(call.tensor(0), call.args[1])
    return [finished(call, value, (2 * n + 256) * call.u * value + 1e-30, value)]


def log_softmax(call: Call) -> list[Expected | None]:
    """Expect x - max - log Σ exp, with absolute errors of each term."""
    x, dim = call.tensor(0), call.args[1]
    value, n = call()[0], _length(x, dim)
    size = x.abs() + x.amax(dim, keepdim=True).abs() + 1.0
    return [finished(call, value, ((n + 32) + 8 * size) * call.u + call.u_out() * size, size)]


def softmax_backward(call: Call) -> list[Expected | None]:
    """Expect y · (g - Σ g·y), the gradient of softmax."""
    grad, out, dim = call.tensor(0), call.tensor(1), call.args[2]
    value = call()[0]
    terms = grad.abs() + (grad * out).abs().sum(dim, keepdim=True)
    size = out.abs() * terms
    error = (_length(out, dim) + 32) * call.u * size + call.u_out() * size
    return [finished(call, value, error, size, inner=terms)]


def log_softmax_backward(call: Call) -> list[Expected | None]:
    """Expect g - exp(y) · Σ g, the gradient of log_softmax."""
    grad, out, dim = call.tensor(0), call.tensor(1), call.args[2]
    value = call()[0]
    terms = grad.abs().sum(dim, keepdim=True).expand_as(grad)
    size = grad.abs() + out.exp() * (1 + out.abs()) * terms
    size = torch.where(torch.isneginf(out), grad.abs(), size)
    error = (_length(out, dim) + 32) * call.u * size + call.u_out() * size + call.tiny * terms
    return [finished(call, value, error, size, inner=terms)]


def layer_norm(call: Call) -> list[Expected | None]:
    """Expect (x - mean) / std · w + b; mean and 1/std are outputs too, and are not checked."""
    x, shape, weight, bias = call.tensor(0), call.args[1], call.args[2], call.args[3]
    eps = float(call.args[4])
    value, mean, rstd = call()[:3]
    n = math.prod(shape)
    wide = x.dim() - len(shape)
    dims = tuple(range(wide, x.dim()))
    mean = mean.reshape(x.shape[:wide] + (1,) * len(shape)).double()
    rstd = rstd.reshape(mean.shape).double()
    var = (1 / (rstd * rstd) - eps).clamp_min(0)
    gain = weight.abs() if isinstance(weight, torch.Tensor) else torch.ones((), dtype=torch.float64, device="cpu")
    size = (x.abs() + x.abs().mean(dims, keepdim=True)) * rstd * gain
    cancelled = 1 + mean * mean / (var + eps)  # what is left of the digits in mean(x²) - mean²
    added = bias.abs() if isinstance(bias, torch.Tensor) else torch.zeros((), dtype=torch.float64, device="cpu")
    error = (n + 32) * call.u * size * (1 + cancelled) + 4 * call.u * added + call.u_out() * (size + added)
    error = error + call.tiny * (size / (var + eps) + 4 * rstd.clamp_min(1.0) * gain)  # squares, products that vanish
    error = torch.where((n + 32) * call.u * cancelled < 0.05, error, torch.inf).expand_as(value)
    squares = n * (x.abs().amax(dims, keepdim=True) + mean.abs()).pow(2)
    return [finished(call, value, error, size + added, inner=squares + size + added), None, None]


def layer_norm_backward(call: Call) -> list[Expected | None]:
    """Expect rstd · (g·w - mean(g·w) - x̂ · mean(g·w·x̂)), Σ g·x̂, and Σ g: the gradients of layer_norm."""
    grad, x, shape = call.tensor(0), call.tensor(1), call.args[2]
    wide = x.dim() - len(shape)
    dims = tuple(range(wide, x.dim()))
    mean = call.tensor(3).reshape(x.shape[:wide] + (1,) * len(shape))
    rstd = call.tensor(4).reshape(mean.shape)
    weight = call.args[5]
    upstream = grad.abs() * (weight.abs() if isinstance(weight, torch.Tensor) else 1.0)
    reach, factor = x.abs() + mean.abs(), rstd.clamp_min(1.0)
    normed = reach * rstd
    dx = rstd * (upstream + upstream.mean(dims, keepdim=True) + normed * (upstream * normed).mean(dims, keepdim=True))

    def over_rows(terms: torch.Tensor) -> torch.Tensor:
        return terms.sum(tuple(range(wide))) if wide else terms

    masses = dx, over_rows(grad.abs() * normed), over_rows(grad.abs())
    # some kernels multiply Σ g·w·x by rstd three times, then by x: on the way that may overflow, or vanish
    sums = (torch.maximum(upstream, grad.abs()) * (1.0 + reach)).sum(dims, keepdim=True)
    inner = dx + sums * factor.pow(3), masses[1], masses[2]
    lost = (
        8 * call.tiny * factor.pow(3) * reach,
        4 * call.tiny * over_rows(grad.abs() * factor),
        torch.zeros((), device="cpu"),
    )
    n_rows = max(1, x.numel() // math.prod(shape))
    found: list[Expected | None] = []
    for index, value in enumerate(call()):
        n = math.prod(shape) if index == 0 else n_rows
        if not isinstance(value, torch.Tensor) or call.out_dtypes[index] is None:
            found.append(None)
            continue
        mass = masses[index].reshape(value.shape)
        u = call.u_out(index) if index else call.u  # some kernels add the rows up in the format of the weights
        error = ((n + 32) * u + 4 * call.u_out(index)) * mass + call.underflow(n) + lost[index]
        found.append(finished(call, value, error, mass, index=index, inner=inner[index].reshape(value.shape)))
    return found


def _length(tensor: torch.Tensor, dim: int) -> int:
    return tensor.shape[dim] if tensor.dim() else 1
