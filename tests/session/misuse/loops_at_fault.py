"""Loops that use mixed precision wrongly: the update is not the one that was meant."""

from __future__ import annotations

import torch
from scaled_loop import START, Program
from torch import nn


class ClipsTooEarly(Program):
    def step(self):
        self.scaler.scale(self.loss()).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.opt)
        self.scaler.update()


class ClipsThenUnscales(Program):
    def step(self):
        self.scaler.scale(self.loss()).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.unscale_(self.opt)
        self.scaler.step(self.opt)
        self.scaler.update()


class ClipsValuesTooEarly(Program):
    def step(self):
        self.scaler.scale(self.loss()).backward()
        nn.utils.clip_grad_value_(self.model.parameters(), 0.1)
        self.scaler.step(self.opt)
        self.scaler.update()


class ClipsByHandTooEarly(Program):
    def step(self):
        self.scaler.scale(self.loss()).backward()
        grads = [p.grad for p in self.model.parameters()]
        total = torch.stack([g.norm() for g in grads]).norm()
        for g in grads:
            g.mul_(min(1.0, 1.0 / float(total)))
        self.scaler.step(self.opt)
        self.scaler.update()


class DividesByHand(Program):
    def step(self):
        self.scaler.scale(self.loss()).backward()
        for p in self.model.parameters():
            p.grad.div_(self.scaler.get_scale())
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.opt)
        self.scaler.update()


class TwoScalers(Program):
    def step(self):
        self.other = getattr(self, "other", None) or torch.amp.GradScaler("cpu", init_scale=START)
        self.other.scale(torch.zeros(()))
        self.scaler.scale(self.loss()).backward()
        self.scaler.unscale_(self.opt)
        self.scaler.get_scale()
        self.other.step(self.opt)
        self.other.update()
        self.scaler.update()


class UnscalesTooEarly(Program):
    def step(self):
        self.scaler.scale(self.loss()).backward()
        self.scaler.unscale_(self.opt)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.scale(self.loss()).backward()
        self.scaler.step(self.opt)
        self.scaler.update()


class SecondOfTwoClipsTooEarly(Program):
    """The first optimizer is unscaled before its clip, the second is not."""

    def __init__(self):
        super().__init__()
        self.opt = torch.optim.SGD(self.model[0].parameters(), lr=1e-3)
        self.opt2 = torch.optim.SGD(self.model[2].parameters(), lr=1e-3)

    def step(self):
        self.opt2.zero_grad()
        self.scaler.scale(self.loss()).backward()
        self.scaler.unscale_(self.opt)
        nn.utils.clip_grad_norm_(self.model[0].parameters(), 1.0)
        nn.utils.clip_grad_norm_(self.model[2].parameters(), 1.0)
        self.scaler.step(self.opt)
        self.scaler.step(self.opt2)
        self.scaler.update()


class UpdatesBetweenTwoOptimizers(Program):
    """The scale grows every second update, between the two optimizers' steps."""

    def __init__(self):
        super().__init__()
        self.scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=3)
        self.opt = torch.optim.SGD(self.model[0].parameters(), lr=1e-3)
        self.opt2 = torch.optim.SGD(self.model[2].parameters(), lr=1e-3)

    def step(self):
        self.opt2.zero_grad()
        self.scaler.scale(self.loss()).backward()
        self.scaler.step(self.opt)
        self.scaler.update()
        self.scaler.step(self.opt2)
        if self.now % 3 == 0:
            self.scaler.update()


class NeverScales(Program):
    def step(self):
        loss = self.loss()
        self.scaler.scale(loss)
        loss.backward()
        self.scaler.unscale_(self.opt)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.opt)
        self.scaler.update()


class NeverTakesTheScaleOut(Program):
    """The optimizer steps by itself."""

    def step(self):
        self.scaler.scale(self.loss()).backward()
        self.opt.step()


class ClipsAndNeverTakesTheScaleOut(Program):
    def step(self):
        self.scaler.scale(self.loss()).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.opt.step()


class ScalesOneOfTwo(Program):
    def step(self):
        self.scaler.scale(self.loss()).backward()
        self.loss().backward()
        self.scaler.step(self.opt)
        self.scaler.update()
