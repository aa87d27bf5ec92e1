"""What a program prints of its exceptions, and how it ends, is what it prints without us, byte for byte."""

from __future__ import annotations

import sys

import pytest
from trained import TRAINED

SAYS = """
def say(function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except BaseException:
        traceback.print_exc()
"""
CASES = {
    "the model": """
class Bad(Model):
    def forward(self, x):
        y = self.first(x)
        raise ValueError("of the model")


class Stopped(Model):
    def forward(self, x):
        raise KeyboardInterrupt


say(lambda: Bad()(x))
say(lambda: Stopped()(x))
say(lambda: model(torch.ones(4, 9)))
say(lambda: model(x, y=1))
model.register_forward_hook(lambda module, args, output: 1 / 0)
say(lambda: model(x))
""",
    "the loss": """
made = model(x)
targets = torch.tensor([9, 9, 9, 9])
say(lambda: F.cross_entropy(made, targets))
say(lambda: nn.CrossEntropyLoss()(made, targets))
say(lambda: F.nll_loss(made, targets))
say(lambda: made @ torch.ones(7, 7))
say(lambda: made + torch.ones(9, 9))
say(lambda: torch.einsum("ij,jk->ik", made, torch.ones(3)))
say(lambda: made[7])
say(lambda: torch.stack([made, x]))
""",
    "backward": """
class Function(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x * 2

    @staticmethod
    def backward(context, gradient):
        raise ValueError("of backward")


say(lambda: model(x).backward())
loss = model(x).sum()
loss.backward()
say(loss.backward)
say(lambda: torch.autograd.grad(loss, x))
say(lambda: Function.apply(model(x)).sum().backward())
made = model(x)
made.register_hook(lambda gradient: 1 / 0)
say(lambda: made.sum().backward())
say(torch.autograd.backward, 5)
say(torch.autograd.backward)
""",
    "the update": """
def closure():
    optimizer.zero_grad()
    model(x).sum().backward()
    raise ValueError("of the closure")


say(optimizer.step, closure)
say(optimizer.step, closure=closure)
say(torch.optim.LBFGS(model.parameters()).step, closure)
say(nn.utils.clip_grad_norm_, 5, 1.0)
say(nn.utils.clip_grad_norm_)
model.first.weight.grad = torch.full_like(model.first.weight, float("inf"))
say(lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True))
optimizer.zero_grad()
scaler = torch.amp.GradScaler("cpu")
say(scaler.step, optimizer)
scaler.scale(model(x).sum()).backward()
scaler.unscale_(optimizer)
say(scaler.unscale_, optimizer)
say(scaler.step, optimizer, closure=closure)
scaler.step(optimizer)
say(scaler.step, optimizer)
say(torch.optim.lr_scheduler.StepLR(optimizer, 1).step, 1, 2, 3)
""",
    "its end": """
def last(loss):
    return F.cross_entropy(loss, torch.tensor([9, 9, 9, 9]))


last(model(x))
""",
}

pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="a bare `raise` keeps the frames of Python 3.10")


@pytest.mark.slow
@pytest.mark.parametrize("level", ["sentinel", "modules"])
@pytest.mark.parametrize("where", CASES)
def test_an_exception_shows_no_frame_of_ours(twice, where, level):
    without, recorded = twice(TRAINED + SAYS + CASES[where], level)

    assert without[2].count("Traceback") > (where != "its end")
    assert recorded == without
