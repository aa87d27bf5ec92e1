"""A loss that goes back in chunks, and then as their sum, as torchtitan's does, is recorded as that sum."""

import pytest
import torch
from torch import nn

import hypocenter
from hypocenter.record.reader import open_run
from hypocenter.session.check import Check


class Bridge(torch.autograd.Function):
    """The sum, whose backward gives what the chunks have gathered."""

    @staticmethod
    def forward(ctx, hidden, gathered, total):
        ctx.save_for_backward(gathered)
        return total.detach()

    @staticmethod
    def backward(ctx, grad):
        return ctx.saved_tensors[0] * grad, None, None


def chunked(head, hidden, target, n):
    """The loss of n chunks."""
    parts = [part.detach().requires_grad_() for part in hidden.chunk(n)]
    total = torch.zeros(())
    for part, wanted in zip(parts, target.chunk(n), strict=True):
        loss = (head(part) - wanted).pow(2).sum() / len(target)
        total = total + loss.detach()
        loss.backward()
    return Bridge.apply(hidden, torch.cat([part.grad for part in parts]), total)


@pytest.mark.slow
@pytest.mark.parametrize("n_samples", [1, 2])
def test_the_loss_of_a_step_that_goes_back_in_chunks_is_their_sum(tmp_path, n_samples):
    torch.manual_seed(0)
    body, head = nn.Linear(6, 6), nn.Linear(6, 1)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.01)
    told = []
    with hypocenter.watch(nn.ModuleList([body, head]), out=tmp_path / "run"):
        for _ in range(4):
            optimizer.zero_grad()
            losses = []
            for _ in range(n_samples):
                loss = chunked(head, body(torch.randn(12, 6)), torch.randn(12, 1), 4)
                loss.backward()
                losses.append(float(loss))
            optimizer.step()
            told.append(sum(losses) / n_samples)

    assert [record.loss for _, record in open_run(tmp_path / "run").step_records()] == pytest.approx(told, rel=1e-6)


@pytest.mark.parametrize(
    ("losses", "mean"),
    [
        ([1.0, 3.0], 2.0),
        ([2.0, 2.0, 2.0], 2.0),
        ([1.5, 1.5], 1.5),
        ([1.0, 2.0, 3.0], 3.0),
        ([0.1, 0.3, 0.2, 0.6, 1.1, 0.7, 1.8], 1.2),
        ([1.0, 2.0, 3.001], 6.001 / 3),
        ([0.0, 0.0, 0.0], 0.0),
    ],
)
def test_only_what_is_their_sum_stands_for_the_losses_before_it(losses, mean):
    assert Check(losses=losses).mean_loss(None) == pytest.approx(mean)


def test_a_loss_that_is_not_finite_stays_so():
    assert Check(losses=[1.0, float("inf"), float("inf")]).mean_loss(None) == float("inf")
