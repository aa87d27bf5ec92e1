"""A replay's backward adds nothing to gradients of the run, also where kernels and hooks write them past autograd."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hypocenter.replay.impossible import ReplayImpossible
from tests.replay.test_engine import Harness


class Fused(torch.autograd.Function):
    """As Megatron-Core's linear layer: its kernel adds to `main_grad`, and autograd gets memory that nobody has filled.

    Written through NumPy: no operator, no version counter, as in a CUDA kernel.
    """

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        ctx.main_grad = weight.main_grad
        return x @ weight.t()

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        kernel = (grad.t() @ x).numpy()
        ctx.main_grad.numpy()[...] += kernel
        if not hasattr(weight, "grad_added_to_main_grad"):
            return grad @ weight, None
        weight.grad_added_to_main_grad = True
        is_zero = getattr(weight, "zero_out_wgrad", False)
        return grad @ weight, torch.zeros_like(weight) if is_zero else torch.full_like(weight, float("nan"))


class Linear(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_out, n_in))

    def forward(self, x):
        return Fused.apply(x, self.weight)


class Model(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.first, self.head = nn.Linear(4, 6), Linear(6, 2)
        self.body = nn.Sequential(Linear(6, 6), nn.Dropout(0.5), nn.Tanh())
        self.how = how

    def forward(self, x):
        h = self.first(x)
        h = checkpoint(self.body, h, use_reentrant=True) if self.how == "reentrant" else self.body(h)
        return self.head(h).pow(2).mean()


class Buffers:
    """As Megatron-Core's DistributedDataParallel: hooks at the nodes that accumulate, out of reach for others."""

    def __init__(self, model, *, has_flags=True):
        self.n_heard, self._nodes = 0, []
        for p in model.parameters():
            p.main_grad = torch.zeros_like(p)
            if has_flags:
                p.grad_added_to_main_grad = False
            node = p.expand_as(p).grad_fn.next_functions[0][0]
            node.register_hook(self._hook(p))
            self._nodes.append(node)

    def _hook(self, p):
        def hook(*_):
            self.n_heard += 1
            is_fused = getattr(p, "grad_added_to_main_grad", False) and not getattr(p, "zero_out_wgrad", False)
            if p.grad is not None and not is_fused:
                p.main_grad.add_(p.grad)
            p.grad = None

        return hook


def trained(model, x):
    harness = Harness()
    with harness:
        model(x).backward()
    return harness


def state(model, buffers):
    ps = list(model.parameters())
    flags = [vars(p).get("grad_added_to_main_grad") for p in ps]
    return [p.main_grad.data_ptr() for p in ps], flags, [p.grad for p in ps], buffers.n_heard


@pytest.mark.parametrize("has_flags", [True, False], ids=["flags", "no-flags"])
@pytest.mark.parametrize("how", ["plain", "reentrant"])
def test_a_replay_gives_the_gradients_that_kernels_and_hooks_have_added_and_adds_none(how, has_flags):
    torch.manual_seed(0)
    model, x = Model(how), torch.randn(5, 4, requires_grad=True)
    buffers = Buffers(model, has_flags=has_flags)
    harness = trained(model, x)
    parameters = list(model.parameters())
    added, before = [p.main_grad.clone() for p in parameters], state(model, buffers)

    for _ in range(2):
        replayed = harness.replayer.run(harness.tape.microbatches[0], parameters, must_leave_no_trace=True)

    assert state(model, buffers) == before
    for p, was, grad in zip(parameters, added, replayed.grads, strict=True):
        assert torch.equal(p.main_grad, was)
        assert torch.equal(grad, was)


def test_before_the_run_has_gone_back_nothing_tells_who_is_fused():
    torch.manual_seed(0)
    model, x = Model("plain"), torch.randn(5, 4)
    buffers = Buffers(model)
    harness = trained(model, x)
    added = [p.main_grad.clone() for p in model.parameters()]
    for p in model.parameters():  # as at the beginning of the next step
        p.grad_added_to_main_grad = False
        p.main_grad.zero_()

    replayed = harness.replayer.run(harness.tape.microbatches[0], list(model.parameters()))

    assert all(torch.equal(grad, was) for grad, was in zip(replayed.grads, added, strict=True))
    assert all(not p.main_grad.any() and not p.grad_added_to_main_grad for p in model.parameters())
    assert buffers.n_heard == len(added)


def test_a_weight_that_is_also_used_in_another_way_gets_both_parts():
    torch.manual_seed(0)
    model, x = Model("plain"), torch.randn(5, 4)
    model.head.weight.zero_out_wgrad = True
    buffers = Buffers(model)

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x):
            return self.model(x) + self.model.head.weight.square().sum()

    harness = trained(Tied(), x)
    weight = model.head.weight

    (grad,) = harness.replayer.run(harness.tape.microbatches[0], [weight]).grads

    assert torch.equal(grad, weight.main_grad)
    assert buffers.n_heard == 4  # each parameter once, all in the run


def test_gradients_that_are_computed_later_are_not_computed_again():
    torch.manual_seed(0)
    model, x = Model("plain"), torch.randn(5, 4)
    Buffers(model)
    harness = trained(model, x)
    model.head.weight.skip_backward_post_hook = True  # Megatron-Core's delay_wgrad_compute

    with pytest.raises(ReplayImpossible, match="later than backward"):
        harness.replayer.run(harness.tape.microbatches[0], list(model.parameters()))

    assert all(hasattr(p, "main_grad") for p in model.parameters())
