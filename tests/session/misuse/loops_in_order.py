"""Loops that use mixed precision rightly, in all the ways that look odd."""

from __future__ import annotations

import torch
from scaled_loop import START, Program
from torch import nn


class ClipsRightly(Program):
    def step(self):
        self.scaler.scale(self.loss()).backward()
        self.scaler.unscale_(self.opt)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1e-4)  # nearly everything is cut off, on purpose
        self.scaler.step(self.opt)
        self.scaler.update()


class ClipsToAScaledNorm(Program):
    """Right without unscale_: the threshold carries the scale too. The gradients here are 100 times the threshold."""

    def step(self):
        self.scaler.scale(self.loss()).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.01 * self.scaler.get_scale())
        self.scaler.step(self.opt)
        self.scaler.update()


class OnlyMeasures(Program):
    def step(self):
        self.scaler.scale(self.loss()).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), float("inf"))
        self.scaler.step(self.opt)
        self.scaler.update()


class LeavesOutAnUpdate(Program):
    """The gradients are too large for it at one step: it throws them away."""

    def step(self):
        self.scaler.scale(self.loss()).backward()
        self.scaler.unscale_(self.opt)
        if self.now != 4:
            self.scaler.step(self.opt)
        self.scaler.update()


class Accumulates(Program):
    def step(self):
        for _ in range(4):
            self.scaler.scale(self.loss() / 4).backward()
        self.scaler.unscale_(self.opt)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.opt)
        self.scaler.update()


class AccumulatesAndDividesGradients(Program):
    """Divides by the number of tokens, which happens to be the scale, and logs the scale once in a while."""

    def step(self):
        for _ in range(4):
            self.scaler.scale(self.loss() * START).backward()
        for p in self.model.parameters():
            p.grad /= START
        if self.now % 3 == 0:
            self.scaler.get_scale()
        self.scaler.step(self.opt)
        self.scaler.update()


class TwoOptimizersOneScaler(Program):
    """They share one backward; the scale grows every second step."""

    def __init__(self):
        super().__init__()
        self.scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=2)
        self.opt = torch.optim.SGD(self.model[0].parameters(), lr=1e-3)
        self.opt2 = torch.optim.AdamW(self.model[2].parameters(), lr=1e-3)

    def step(self):
        self.opt2.zero_grad()
        self.scaler.scale(self.loss()).backward()
        for opt in (self.opt, self.opt2):
            self.scaler.unscale_(opt)
            nn.utils.clip_grad_norm_([p for g in opt.param_groups for p in g["params"]], 1.0)
        self.scaler.step(self.opt)
        self.scaler.step(self.opt2)
        self.scaler.update()


class Adversarial(Program):
    """Two losses, two optimizers, one scaler, updated after each; the second backward also reaches the first's."""

    set_to_none = True

    def __init__(self):
        super().__init__()
        self.critic = nn.Linear(1, 1)
        self.opt2 = torch.optim.SGD(self.critic.parameters(), lr=1e-3)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=1)

    def step(self):
        x = self.centers[:16]
        with torch.autocast("cpu", torch.float16):
            fake = self.model(x)
            loss = self.critic(fake.detach()).float().pow(2).mean()
        self.opt2.zero_grad(self.set_to_none)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.opt2)
        self.scaler.step(self.opt2)
        self.scaler.update()
        with torch.autocast("cpu", torch.float16):
            loss = (1 - self.critic(fake)).float().pow(2).mean()
        self.opt.zero_grad(self.set_to_none)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.opt)
        self.scaler.step(self.opt)
        self.scaler.update()


class AdversarialZeroed(Adversarial):
    set_to_none = False


class OnlyOneLossScaled(Adversarial):
    """The critic trains in float32 without the scaler."""

    def step(self):
        x = self.centers[:16]
        self.opt2.zero_grad()
        with torch.autocast("cpu", torch.float16):
            fake = self.model(x)
        self.critic(fake.detach().float()).pow(2).mean().backward()
        with torch.autocast("cpu", torch.float16):
            loss = (1 - self.critic(fake)).float().pow(2).mean()
        self.opt2.step()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.opt)
        self.scaler.update()


class Disabled(Program):
    def __init__(self):
        super().__init__()
        self.scaler = torch.amp.GradScaler("cpu", enabled=False)

    def step(self):
        self.scaler.scale(self.loss()).backward()
        self.scaler.unscale_(self.opt)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.opt)
        self.scaler.update()


class ScalesByHand(Program):
    def step(self):
        (self.loss() * 256.0).backward()
        for p in self.model.parameters():
            p.grad /= 256.0
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.opt.step()


class MultipliesByTheScaleByHand(Program):
    """`scaler.step` with the multiplication written out, in several ways."""

    def step(self):
        loss = self.loss()
        self.scaler.scale(loss)
        scale = self.scaler.get_scale()
        ways = [
            scale * loss,
            loss * self.scaler._scale,
            (loss * scale + 0.0) / 2,
            torch.stack([loss, loss]).mul(scale).mean(),
        ]
        ways[self.now % 4].backward()
        self.scaler.step(self.opt)
        self.scaler.update()


class OwnLossFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, loss, scale):
        ctx.scale = scale
        return loss * scale

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.scale, None


class ScalesInAFunction(Program):
    def step(self):
        self.scaler.scale(torch.zeros(()))
        OwnLossFunction.apply(self.loss(), self.scaler.get_scale()).backward()
        self.scaler.step(self.opt)
        self.scaler.update()


class SkippedByUs(Program):
    """Hypocenter skips an update on request, and the schedule goes on: that is nobody's fault."""

    n_steps = 16
    on_finding = "skip"

    def __init__(self):
        super().__init__()
        self.opt = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.scheduler = torch.optim.lr_scheduler.LinearLR(self.opt, start_factor=0.1, total_iters=20)

    def step(self):
        x = self.centers[:16] / (0.0 if self.now in (2, 3, 4) else 1.0)
        self.model(x).pow(2).mean().backward()
        self.opt.step()
        self.scheduler.step()


class BacksOff(Program):
    """The usual start: too high, five skipped updates, then it fits."""

    init_scale = 2.0**22
    n_steps = 16

    def step(self):
        self.scaler.scale(self.loss()).backward()
        self.scaler.unscale_(self.opt)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.opt)
        self.scaler.update()


class TakesTheScaleOutByHand(Program):
    """Its scale is only asked for once."""

    def step(self):
        self.scaler.scale(self.loss()).backward()
        for p in self.model.parameters():
            p.grad /= self.init_scale
        self.opt.step()


class UnscalesAndSteps(Program):
    """What `scaler.step` does, but for the check."""

    def step(self):
        self.scaler.scale(self.loss()).backward()
        self.scaler.unscale_(self.opt)
        self.opt.step()
        self.scaler.update()


class TakesTheScaleOutInItsStep(Program):
    """An optimizer that is told the scale."""

    def step(self):
        self.scaler.scale(self.loss()).backward()
        scale = self.scaler.get_scale()

        def unscale(*_):
            for p in self.model.parameters():
                p.grad /= scale

        hook = self.opt.register_step_pre_hook(unscale)
        self.opt.step()
        hook.remove()


class TwoOptimizers(Program):
    """One of them without the scaler."""

    def step(self):
        self.other = getattr(self, "other", None) or nn.Linear(6, 1)
        self.plain = getattr(self, "plain", None) or torch.optim.SGD(self.other.parameters(), 0.01)
        self.plain.zero_grad()
        self.scaler.scale(self.loss()).backward()
        self.other(self.centers).square().mean().backward()
        self.scaler.step(self.opt)
        self.scaler.update()
        self.plain.step()


class ScalesBoth(Program):
    def step(self):
        for _ in range(2):
            self.scaler.scale(self.loss()).backward()
        self.scaler.step(self.opt)
        self.scaler.update()
