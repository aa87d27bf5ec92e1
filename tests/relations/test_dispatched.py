"""Experts with a capacity leave out samples because of the others, by definition; nothing else is excused by that."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import hypocenter
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.record.reader import open_run
from hypocenter.relations.dispatched import LEFT_OUT

N, LENGTH, WIDTH = 24, 3, 8


class Experts(nn.Module):
    """Sorts rows by expert, gives each as many as fit, and sorts back."""

    def __init__(self, factor=1.2, top=1):
        super().__init__()
        self.router = nn.Linear(WIDTH, 3, bias=False)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, 12), nn.Linear(12, WIDTH)) for _ in range(3))
        self.factor, self.top = factor, top

    def probability(self, x):
        return (4 * self.router(x)).softmax(-1)

    def back(self, order):
        return order.argsort()

    def one(self, x, gate, chosen):
        order = chosen.argsort(stable=True)
        capacity = int(self.factor * len(x) / len(self.experts))
        parts = []
        for expert, part in zip(self.experts, x[order].split(chosen.bincount(minlength=3).tolist()), strict=True):
            parts.append(torch.cat([expert(part[:capacity]), torch.zeros_like(part[capacity:])]))
        return gate[:, None] * torch.cat(parts)[self.back(order)]

    def forward(self, x):
        flat = x.reshape(-1, WIDTH)
        gates, chosen = self.probability(flat).topk(self.top, -1)
        return sum(self.one(flat, gates[:, i], chosen[:, i]) for i in range(self.top)).reshape(x.shape)


class SortedWrongly(Experts):
    def back(self, order):
        return order


class SortedAsBefore(Experts):
    known = None

    def back(self, order):
        self.known = order.argsort() if self.known is None else self.known
        return self.known


class RoutedByOthers(Experts):
    def probability(self, x):
        return (4 * self.router(x)).softmax(0)


class Largest(nn.Module):
    """Changes the rows above the median of all alone: there is no expert for the others."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())

    def forward(self, x):
        rows = (x[:, 0] > x[:, 0].median()).nonzero().squeeze(1)
        return x.index_copy(0, rows, self.body(x[rows]))


class LessTheMean(Experts):
    def forward(self, x):
        return super().forward(x) - x.mean(0)


def found(tmp_path, experts, *, is_long=False):
    """Severities of what HC241 says of the samples, and what it is by definition."""
    torch.manual_seed(1)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.enter, self.norm = nn.Linear(5, WIDTH), nn.LayerNorm(WIDTH)
            self.experts, self.leave = experts, nn.Linear(WIDTH, 3)

        def forward(self, x):
            h = self.enter(x)
            return self.leave(h + self.experts(self.norm(h)))

    model = Net()
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    shape = (N, LENGTH, 5) if is_long else (N, 5)
    with hypocenter.watch(model, optimizer, out=str(tmp_path / "run"), relations="1", audit="never"):
        for _ in range(2):
            x, y = torch.randn(shape), torch.randn(*shape[:-1], 3)
            optimizer.zero_grad()
            functional.mse_loss(model(x), y).backward()
            optimizer.step()
    findings = [f for f in diagnose(open_run(tmp_path / "run")).findings if f.code == "HC241"]
    return {(f.severity, any(LEFT_OUT in line for line in f.why)) for f in findings}


@pytest.mark.parametrize("is_long", [False, True])
@pytest.mark.parametrize("top", [1, 2])
def test_rows_that_no_expert_has_room_for(tmp_path, top, is_long):
    assert found(tmp_path, Experts(factor=0.6, top=top), is_long=is_long) == {("note", True)}


def test_experts_with_room_for_all(tmp_path):
    assert found(tmp_path, Experts(factor=3)) == set()


@pytest.mark.parametrize("factor", [0.6, 3])
@pytest.mark.parametrize("made", [SortedWrongly, SortedAsBefore, RoutedByOthers, LessTheMean])
def test_rows_that_others_change_in_another_way(tmp_path, made, factor):
    assert ("warning", False) in found(tmp_path, made(factor))


def test_rows_that_one_module_alone_is_given(tmp_path):
    assert ("warning", False) in found(tmp_path, Largest())
