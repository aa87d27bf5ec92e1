"""Gradients of attention and of convolutions that are too large to be done again whole are done again in part."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hypocenter.replay import adjudicate, attention, effort
from hypocenter.replay.attention_backward import AttentionBackward
from hypocenter.replay.deadline import Deadline
from hypocenter.replay.rows import as_rows, by_rows
from hypocenter.tap.op_context import OpContext
from hypocenter.tap.tracer import OpTracer

torch.set_num_threads(1)
aten = torch.ops.aten
FORWARD = aten._scaled_dot_product_flash_attention_for_cpu.default
BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
CPU = torch.device("cpu")
MASKS = {
    "none": lambda n: None,
    "bias": lambda n: torch.randn(2, 4, n, n, generator=torch.Generator().manual_seed(2)),
    "hidden": lambda n: torch.zeros(2, 1, n, n).masked_fill(torch.arange(n) > torch.arange(n)[:, None], -torch.inf),
}


def slow(monkeypatch, flops=1e7):
    """A CPU that does so many FLOPs a second, so that small tensors are large."""
    monkeypatch.setattr(effort, "pace", lambda device, dtype: flops)


def node_of(func, *args, **kwargs):
    with OpTracer(OpContext(lambda module: None), lambda t: ("batch", "")) as tracer:
        func(*args, **kwargs)
    return tracer.nodes[-1]


def backward(n, *, is_causal=False, mask="none", dtype=torch.float32, scale=0.3):
    """The arguments of attention's backward."""
    generator = torch.Generator().manual_seed(n)
    q, k, v, grad = (torch.randn(2, 4, n, 16, generator=generator).to(dtype) for _ in range(4))
    given = {"attn_mask": MASKS[mask](n), "scale": scale}
    given["attn_mask"] = given["attn_mask"] if given["attn_mask"] is None else given["attn_mask"].to(dtype)
    out, lse = FORWARD(q, k, v, 0.0, is_causal, **given)
    return (grad, q, k, v, out, lse, 0.0, is_causal), given


class Largest(TorchDispatchMode):
    """Counts the bytes of the largest tensor that is made."""

    bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(t, torch.Tensor):
                self.bytes = max(self.bytes, t.untyped_storage().nbytes())
        return out


@pytest.mark.parametrize(("is_causal", "mask"), [(False, "none"), (True, "none"), (False, "bias"), (False, "hidden")])
@pytest.mark.parametrize("result", [0, 1, 2])
def test_rows_of_attentions_gradients_are_those_of_the_whole(is_causal, mask, result):
    args, given = backward(48, is_causal=is_causal, mask=mask, dtype=torch.float64)
    wanted = BACKWARD(*args, **given)
    rows = by_rows(BACKWARD, args, given, wanted, result)
    picked = torch.tensor([0, 5, 47, 48, 200, 383])

    found = rows.done(picked, torch.float64, CPU)

    torch.testing.assert_close(found, as_rows(wanted[result], rows)[picked], rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("result", [0, 1, 2])
def test_gradients_of_keys_that_heads_share_are_summed(result):
    (grad, q, k, v, *_), _ = backward(32, dtype=torch.float64)
    q, k, v = q.requires_grad_(), k[:, :2].clone().requires_grad_(), v[:, :2].clone().requires_grad_()
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    lse = (q.detach() @ k.detach().repeat_interleave(2, 1).mT / 4).logsumexp(-1)
    wanted = torch.autograd.grad(out, (q, k, v), grad)[result]
    call = AttentionBackward.of(
        aten._scaled_dot_product_flash_attention_backward.default,
        (grad, q, k, v, out, lse, None, None, 32, 32, 0.0, False, None, None),
        {},
    )
    n = call.n_rows(result)

    found = call.rows(result, torch.arange(n), torch.float64, CPU)

    torch.testing.assert_close(found, wanted.reshape(n, -1), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("result", [0, 1, 2])
def test_of_attentions_large_gradient_the_rows_with_bad_elements_are_done_again(monkeypatch, result):
    slow(monkeypatch)
    (grad, q, k, v, out, lse, *rest), given = backward(512)
    grad[1, 2] = 3e38
    node = node_of(BACKWARD, grad, q, k, v, out, lse, *rest, **given)
    assert not any(bool(t.isfinite().all()) for t in node.outputs)
    for position in range(3):
        if position != result:
            node.outputs[position].zero_()
    monkeypatch.setattr(attention, "BLOCK_BYTES", 1 << 16)

    with Largest() as largest:
        found = adjudicate.rerun_float64(node, Deadline(60.0))
        cpu = adjudicate.rerun_on_cpu(node, Deadline(60.0))

    assert found.ran
    assert found.finite
    assert found.absmax > 1e38
    assert found.part.endswith(" of 4,096 rows")
    assert not cpu.finite
    assert largest.bytes < 8 * 512 * 512


def test_dropout_leaves_attentions_gradient_undone(monkeypatch):
    (grad, q, k, v, out, lse, *_), given = backward(32)

    assert by_rows(BACKWARD, (grad, q, k, v, out, lse, 0.1, False), given, (q, k, v), 0) is None


def convolved(*, groups=1, transposed=False, n=6):
    """The arguments of a convolution's backward."""
    generator = torch.Generator().manual_seed(3)
    x, w = (torch.randn(*s, generator=generator).double() for s in ((n, 8, 12, 12), (8, 8 // groups, 3, 3)))
    rest = ([2, 2], [1, 1], [1, 1], transposed, [1, 1] if transposed else [0, 0], groups)
    out = aten.convolution.default(x, w, None, *rest)
    grad = torch.randn(out.shape, generator=generator).double()
    return grad, x, w, [8], *rest, [True, True, True]


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize("result", [0, 1, 2])
def test_parts_of_a_convolutions_gradients_are_those_of_the_whole(result, groups, transposed):
    args = convolved(groups=groups, transposed=transposed)
    wanted = aten.convolution_backward.default(*args)
    rows = by_rows(aten.convolution_backward.default, args, {}, wanted, result)
    picked = torch.tensor([1, 2, 5])

    found = rows.done(picked, torch.float64, CPU)

    torch.testing.assert_close(found, as_rows(wanted[result], rows)[picked], rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(("result", "part"), [(0, " of 64 rows"), (1, "2 of 8 rows"), (2, "")])
def test_of_a_convolutions_large_gradient_samples_or_channels_are_done_again(monkeypatch, result, part):
    slow(monkeypatch, 1e5)
    grad, x, w, *rest = (t.float() if isinstance(t, torch.Tensor) else t for t in convolved(n=64))
    grad[5, 3] = 3e38
    x[5] = 3e38 if result == 1 else x[5]
    w[3] = 3e38 if result == 0 else w[3]
    node = node_of(aten.convolution_backward.default, grad, x, w, *rest)
    for position in range(3):
        if position != result:
            node.outputs[position].zero_()

    found = adjudicate.rerun_float64(node, Deadline(60.0))

    assert found.ran, found.why_not
    assert found.finite
    assert found.absmax > torch.finfo(torch.float32).max
    assert found.part.endswith(part)


@pytest.mark.parametrize("kind", ["attention", "convolution", "product", "gradient"])
def test_a_default_device_of_the_program_is_not_where_rows_are_counted(monkeypatch, kind):
    slow(monkeypatch, 1e4)
    args, given = backward(96)
    func = BACKWARD
    if kind == "attention":
        func, args = FORWARD, (*args[1:4], 0.0, False)
    elif kind == "convolution":
        func, args, given = aten.convolution_backward.default, convolved(), {}
    elif kind == "product":
        func, args, given = aten.bmm.default, (torch.randn(8, 64, 32), torch.randn(8, 32, 32)), {}
    args[0][0, 0] = torch.inf
    node = node_of(func, *args, **given)

    with torch.device("meta"):
        found = adjudicate.rerun_float64(node, Deadline(60.0))

    assert found.ran, found.why_not
    assert " of " in found.part
