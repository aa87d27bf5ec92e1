"""A term of a loss that pairs all outputs with all targets is found; what is meant so, or is no other loss, is not."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from hypocenter.testing import RelationBroken, check_relations

N = 8
X = torch.randn(N, 4, generator=torch.Generator().manual_seed(1))
KEPT = torch.randn(N, generator=torch.Generator().manual_seed(2))  # of a rollout: nothing says whose they are
ACCEPT = pytest.mark.filterwarnings("ignore:Using a target size")  # so a program must that does not want to know


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.actor, self.critic = nn.Linear(4, 8), nn.Linear(8, 3), nn.Linear(8, 1)

    def forward(self, x):
        h = self.body(x).tanh()
        return self.actor(h).log_softmax(-1), self.critic(h)


def returns_of(x):
    return x[:, 0].sin() + x[:, 1]


def policy_loss(policy, x):
    return -(policy[:, 0] * returns_of(x)).mean()


CROSSED = {
    "values": lambda policy, v, x: (returns_of(x) - v).pow(2).mean(),
    "a function of torch": lambda policy, v, x: (v.exp() - returns_of(x)).abs().mean(),
    "advantage": lambda policy, v, x: (policy[:, 1] * v.detach()).mean(),
    "kept": lambda policy, v, x: functional.mse_loss(v, KEPT),
    "kept, the other way": lambda policy, v, x: functional.smooth_l1_loss(KEPT, v),
}
SILENT = {
    "paired": lambda policy, v, x: (returns_of(x) - v.squeeze(1)).pow(2).mean(),
    "all pairs on purpose": lambda policy, v, x: (v.squeeze(1)[:, None] - returns_of(x)).pow(2).mean(),
    "only means": lambda policy, v, x: (v - returns_of(x)).mean(),
    "levels": lambda policy, v, x: (v - torch.linspace(-1, 1, N)).abs().mean(),
    "kept, paired": lambda policy, v, x: functional.mse_loss(v.squeeze(1), KEPT),
    "kept, nobody says whose": lambda policy, v, x: (v - KEPT).pow(2).mean(),
    "all of one target": lambda policy, v, x: functional.mse_loss(v, KEPT[:1]),
    "both learn": lambda policy, v, x: (v - policy[:, 0]).pow(2).mean(),
    "of no use": lambda policy, v, x: 0 * (v - returns_of(x)).pow(2).mean(),
    "its own only": lambda policy, v, x: (v - returns_of(x)).pow(2).diagonal().mean(),
    "needs all pairs": lambda policy, v, x: (v - returns_of(x)).pow(2).reshape(N, N).mean(),
}  # fmt: skip


@ACCEPT
@pytest.mark.parametrize("term", CROSSED.values(), ids=CROSSED)
def test_a_term_that_meets_all_targets(term):
    with pytest.raises(RelationBroken) as why:
        check_relations(ActorCritic(), X, loss=lambda out, x: policy_loss(out[0], x) + term(*out, x), labels=X)
    (found,) = why.value.looked.losses
    assert (found.code, found.wrong.title[:44]) == ("HC252", "a term of the loss does not depend on which ")
    assert found.source.file.endswith("test_crossed.py")


@ACCEPT
@pytest.mark.parametrize("term", SILENT.values(), ids=SILENT)
def test_what_is_meant_or_does_no_harm(term):
    check_relations(ActorCritic(), X, loss=lambda out, x: policy_loss(out[0], x) + term(*out, x), labels=X)
