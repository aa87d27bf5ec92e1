"""Everything in float64, whatever the program asks for, and nothing left behind."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from hypocenter.replay.remedies.float64_reference import Float64Reference

torch.set_num_threads(1)


class Net(nn.Module):
    """Asks for narrow formats in every way a program does."""

    def __init__(self, checkpointed=False):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.checkpointed = checkpointed

    def body(self, h):
        h = self.linear(h).half()
        h = torch.softmax(h, -1, dtype=torch.float32).to(torch.bfloat16)
        h = h + torch.zeros(8) + torch.ones_like(h, dtype=torch.float16) / 3
        return h.float() @ torch.eye(8)

    def forward(self, x):
        h = self.norm(x)
        h = checkpoint(self.body, h, use_reentrant=False) if self.checkpointed else self.body(h)
        return F.dropout(h, 0.5, self.training) * (1 + torch.randn_like(h))


def by_hand(model, x, noise, mask):
    twin = copy.deepcopy(model).double()
    h = torch.softmax(twin.linear(twin.norm(x.double())), -1) + 1 / 3
    return twin, h * mask * 2 * (1 + noise.double())


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_it_is_what_float64_gives_by_hand(checkpointed, dtype):
    torch.manual_seed(0)
    model = Net(checkpointed).to(dtype)
    x = torch.randn(4, 8).to(dtype)
    torch.manual_seed(1)
    mask = F.dropout(torch.ones(4, 8), 0.5) != 0
    noise = torch.randn(4, 8)
    twin, expected = by_hand(model, x, noise, mask)

    torch.manual_seed(1)
    with Float64Reference([model], leaves=True) as reference, torch.autocast("cpu", torch.float16):
        out = model(x)
        loss = out.pow(2).mean()
        grads = torch.autograd.grad(loss, reference.parameters(list(model.parameters())))

    assert out.dtype == torch.float64
    assert torch.allclose(out, expected, rtol=1e-12, atol=0)
    exact = torch.autograd.grad(expected.pow(2).mean(), list(twin.parameters()))
    assert all(torch.allclose(a, b, rtol=1e-9, atol=1e-18) for a, b in zip(grads, exact, strict=True))


def test_as_a_replays_surroundings_it_gives_gradients_of_the_originals():
    model = nn.Linear(4, 4).half()
    weight = model.weight
    x = torch.full((1, 4), 300.0).half()

    with Float64Reference([model]):
        loss = (model(x) * 300).sum() * 1e-6
        (grad,) = torch.autograd.grad(loss, [weight])

    assert loss.dtype == torch.float64
    assert grad.dtype == torch.float16
    assert torch.equal(grad, torch.full((4, 4), 300 * 300 * 1e-6, dtype=torch.float64).half())


def test_a_parameter_used_in_loss_code_is_the_same_twin():
    model = nn.Linear(2, 2)
    outside = model.weight

    with Float64Reference([model], leaves=True) as reference:
        loss = model(torch.ones(1, 2)).sum() + (outside * 2).sum()
        (grad,) = torch.autograd.grad(loss, reference.parameters([model.weight, outside])[1:])

    assert torch.equal(grad, torch.full((2, 2), 3.0, dtype=torch.float64))


def test_everything_is_put_back_after_an_error():
    model = Net().half()
    before = {name: id(t) for name, t in (*model.named_parameters(), *model.named_buffers())}

    with pytest.raises(RuntimeError), Float64Reference([model]):
        model(torch.ones(4, 9))

    assert before == {name: id(t) for name, t in (*model.named_parameters(), *model.named_buffers())}
    assert torch.ones(1).dtype == torch.float32
    assert (torch.ones(1).half() + 1).dtype == torch.float16


def test_a_recurrent_net():
    net = nn.GRU(3, 4).bfloat16()
    x = torch.randn(5, 1, 3).bfloat16()

    with Float64Reference([net]):
        out, _ = net(x)

    assert torch.equal(out, copy.deepcopy(net).double()(x.double())[0])
