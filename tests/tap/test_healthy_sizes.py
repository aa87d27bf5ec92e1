"""Sizes of healthy steps are those that a step which jumped is compared with: by operator, place and reading."""

from __future__ import annotations

import dataclasses

import torch
import torch.nn.functional as F
from torch import nn

import hypocenter
from hypocenter.replay.spike import SpikeReplay


class Odd(nn.Module):
    """Indices, a recurrence, masks, views, random draws, buffers, a loop, something in place, a Function of its own."""

    def __init__(self):
        super().__init__()
        self.embed, self.recurrent = nn.Embedding(50, 16), nn.LSTM(16, 16, batch_first=True)
        self.attention, self.norm = nn.MultiheadAttention(16, 2, batch_first=True), nn.BatchNorm1d(7)
        self.drop, self.out = nn.Dropout(0.2), nn.Linear(16, 50)

    def forward(self, x):
        x, _ = self.recurrent(self.drop(self.embed(x)))
        mask = torch.full((7, 7), float("-inf")).triu(1)
        x = self.norm(x + self.attention(x, x, x, attn_mask=mask, need_weights=False)[0])
        x[:, 0] *= 2
        for _ in range(3):
            x = torch.cat([x, x.flip(1)], 1)[:, :7] * 0.5
        return self.out(Double.apply(x))


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x) * 2

    @staticmethod
    def backward(ctx, grad):
        out = torch.empty_like(grad)
        out[:] = grad * 2
        return out


def test_they_are_those_of_the_trace(tmp_path, monkeypatch):
    torch.manual_seed(0)
    both = []

    def learn(self, microbatch, scale):
        new = self._tracing.healthy_sizes(microbatch, scale=scale)
        tracer, _ = self._tracing.run_sized(microbatch, scale=scale, judge=lambda *_: False)
        both.append((new, tracer.sized, microbatch.makes_room))

    monkeypatch.setattr(SpikeReplay, "learn", learn)
    model = Odd()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with hypocenter.watch(model, optimizer, out=tmp_path / "run", relations="never"):
        for _ in range(3):
            optimizer.zero_grad()
            x = torch.randint(0, 50, (4, 7))
            F.cross_entropy(model(x).flatten(0, 1), x.flatten()).backward()
            optimizer.step()

    assert both
    for new, old, makes_room in both:
        assert {k: dataclasses.asdict(each) for k, each in new.items()} == {
            k: dataclasses.asdict(each) for k, each in old.items()
        }
        assert len(new) > 90
        assert makes_room  # dropout on a CPU, and the Function
