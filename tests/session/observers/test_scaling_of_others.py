"""Unscaling and clipping under a scaler whose `unscale_` nobody hears is no misuse."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hypocenter
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.record.reader import open_run

torch.set_num_threads(1)


class OwnScaler(torch.amp.GradScaler):
    """As FSDP's ShardedGradScaler: unscales in its own way, without the inherited method."""

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        from torch.amp.grad_scaler import OptState

        state = self._per_optimizer_states[id(optimizer)]
        found = torch.zeros(())
        inverse = self._scale.double().reciprocal().float()
        state["found_inf_per_device"] = self._unscale_grads_(optimizer, inverse, found, True)
        state["stage"] = OptState.UNSCALED


@pytest.mark.parametrize("kind", [torch.amp.GradScaler, OwnScaler])
def test_unscaling_before_the_clip_is_right_whoever_scales(tmp_path, kind):
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = kind("cpu", init_scale=1024.0, growth_interval=2)

    with hypocenter.watch(model, out=tmp_path / "run"):
        for _ in range(6):
            optimizer.zero_grad()
            scaler.scale(model(torch.randn(8, 4)).square().mean()).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()

    found = diagnose(open_run(tmp_path / "run"))
    assert [finding.code for finding in found.findings if finding.severity != "note"] == []
