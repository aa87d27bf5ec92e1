"""Training in low precision with averages, many micro-batches and a rollout is bit-identical under observation."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import hypocenter
from hypocenter.record.reader import open_run

torch.set_num_threads(1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.mix, self.head = nn.Embedding(16, 8), nn.Linear(8, 8), nn.Linear(8, 600)

    def forward(self, ids):
        hidden = torch.tanh(self.mix(self.embed(ids)))
        return self.head(hidden.to(self.head.weight.dtype)).float()


def train(make, n_steps=6, accumulate=9):
    torch.manual_seed(0)
    model = Model().bfloat16()
    rollout = copy.deepcopy(model)
    rollout.head.float()
    average = copy.deepcopy(model)
    swa = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.999))
    optimizer = make(model.parameters())
    losses = []
    for step in range(n_steps):
        ids = torch.randint(0, 16, (2, 4))
        with torch.no_grad():
            for theirs, ours in zip(rollout.parameters(), model.parameters(), strict=True):
                theirs.copy_(ours)
            old = rollout(ids).log_softmax(-1)
        for _ in range(accumulate):
            new = model(ids).log_softmax(-1)
            loss = -(new - old).exp().mean() - new[..., 0].mean()
            loss.backward()
            losses.append(float(loss.detach()))
        optimizer.step()
        optimizer.zero_grad()
        if step == 2:
            for state in optimizer.state.values():
                if "step" in state:
                    state["step"] = state["step"].bfloat16()
        with torch.no_grad():
            for theirs, ours in zip(average.parameters(), model.parameters(), strict=True):
                theirs.mul_(0.99).add_(ours, alpha=0.01)
        swa.update_parameters(model)
    states = [v for s in optimizer.state.values() for v in s.values() if isinstance(v, torch.Tensor)]
    return losses, [*model.parameters(), *average.parameters(), *swa.parameters(), *states]


MAKERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "adam-amsgrad": lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True, weight_decay=0.1),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("level", ["sentinel", "ops"])
def test_training_is_bit_identical(tmp_path, kind, level):
    plain = train(MAKERS[kind])

    with hypocenter.watch(level=level, out=str(tmp_path / "run")):
        watched = train(MAKERS[kind])

    assert str(plain[0]) == str(watched[0])
    assert all(torch.equal(a, b) for a, b in zip(plain[1], watched[1], strict=True))
    assert all(a.dtype == b.dtype for a, b in zip(plain[1], watched[1], strict=True))
    run = open_run(tmp_path / "run")
    assert run.run.warnings == ()
    ports = {row.port for row in run.readings(phase="optimizer")}
    assert {"update_lost", "accumulated", "head_gap"} <= ports
