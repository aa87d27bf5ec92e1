"""Loops that do what is seldom meant: a schedule that runs ahead, a new scaler, backward under autocast."""

from __future__ import annotations

import copy

import torch
from scaled_loop import START, Program, trained


class ScheduleRunsAhead(Program):
    init_scale = 2.0**22
    n_steps = 16
    is_held_back = False
    schedule = staticmethod(lambda opt: torch.optim.lr_scheduler.LinearLR(opt, start_factor=0.1, total_iters=20))

    def __init__(self):
        super().__init__()
        self.scheduler = self.schedule(self.opt)

    def step(self):
        super_scale = self.scaler.get_scale()
        self.scaler.scale(self.loss()).backward()
        self.scaler.step(self.opt)
        self.scaler.update()
        if not self.is_held_back or self.scaler.get_scale() >= super_scale:
            self.scheduler.step()


class FusedScheduleRunsAhead(ScheduleRunsAhead):
    """The program judges by whether optimizer.step was called; a fused optimizer is called for a skipped one too."""

    optimizer = staticmethod(lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, fused=True))

    def __init__(self):
        super().__init__()
        self.n_called = 0
        original = self.opt.step

        def step(*args, **kwargs):
            self.n_called += 1
            return original(*args, **kwargs)

        self.opt.step = step

    def step(self):
        before = self.n_called
        self.scaler.scale(self.loss()).backward()
        self.scaler.step(self.opt)
        self.scaler.update()
        if self.n_called > before:
            self.scheduler.step()


class LongScheduleRunsAhead(ScheduleRunsAhead):
    schedule = staticmethod(lambda opt: torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=10_000))


class AverageRunsAhead(ScheduleRunsAhead):
    def step(self):
        self.average = getattr(self, "average", None) or torch.optim.swa_utils.AveragedModel(self.model)
        self.is_held_back = True
        super().step()
        self.average.update_parameters(self.model)


class ScheduleHeldBack(ScheduleRunsAhead):
    is_held_back = True


class ScheduleByEpoch(ScheduleRunsAhead):
    """Steps after step 3, which is skipped, then after each fourth."""

    def step(self):
        Program.step(self)
        if self.now % 4 == 3:
            self.scheduler.step()


class ResumesWithoutScaler(Program):
    """The checkpoint's scale fits; a new scaler starts far above."""

    n_steps = 24
    loads = False

    def __init__(self):
        super().__init__()
        before = trained()
        self.model.load_state_dict(before.model.state_dict())
        self.opt.load_state_dict(copy.deepcopy(before.opt.state_dict()))
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**22)
        if self.loads:
            self.scaler.load_state_dict(before.scaler.state_dict())


class ResumesWithFittingScaler(ResumesWithoutScaler):
    def __init__(self):
        super().__init__()
        self.scaler = torch.amp.GradScaler("cpu", init_scale=START)


class ResumesWell(ResumesWithoutScaler):
    loads = True


class BackwardInside(Program):
    """A block in float32 on purpose: its backward, inside autocast, is not."""

    large = 1.0

    def step(self):
        x = self.centers[:16]
        with torch.autocast("cpu", self.dtype):
            hidden = self.model[1](self.model[0](x))
            with torch.autocast("cpu", enabled=False):
                out = self.model[2](hidden.float() / self.large) * self.large
            self.scaler.scale((out.squeeze(-1) - x.sum(-1)).pow(2).mean()).backward()
        self.scaler.step(self.opt)
        self.scaler.update()


class BackwardInsideOverflows(BackwardInside):
    large = 1e4


class ScalerWithBfloat16(Program):
    dtype = torch.bfloat16


class NeverLeavesAutocast(Program):
    dtype = torch.bfloat16

    def run(self):
        with torch.autocast("cpu", self.dtype):
            for now in range(self.n_steps):
                self.now = now
                self.opt.zero_grad()
                self.loss().backward()
                self.opt.step()
        return [p.detach().clone() for p in self.model.parameters()]


class LeavesAutocastEachStep(NeverLeavesAutocast):
    def run(self):
        for now in range(self.n_steps):
            self.now = now
            with torch.autocast("cpu", self.dtype):
                self.opt.zero_grad()
                self.loss().backward()
                self.opt.step()
        return [p.detach().clone() for p in self.model.parameters()]


class _Accumulates(Program):
    """Two micro-batches each update, with a schedule and without a scaler."""

    is_each = False

    def __init__(self):
        super().__init__()
        self.scheduler = torch.optim.lr_scheduler.LinearLR(self.opt, total_iters=20)

    def step(self):
        for _ in range(2):
            self.loss().backward()
            if self.is_each:
                self.scheduler.step()
        self.opt.step()
        if not self.is_each:
            self.scheduler.step()
            self.scheduler.step()  # as accelerate does for two processes


class SchedulePerMicrobatch(_Accumulates):
    is_each = True


class ScheduleTwiceAnUpdate(_Accumulates):
    pass
