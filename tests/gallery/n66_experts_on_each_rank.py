"""Experts that began alike on all ranks are different by design; the router and the rest are averaged by hand.

To be run by torchrun with two ranks. Rank 0 prints.
"""

import many_ranks
import torch
from torch import nn


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(8, 2)
        self.experts = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])  # two of four, made with the seed of all

    def forward(self, x):
        weights = self.router(x).softmax(-1)
        return sum(weights[:, i : i + 1] * torch.tanh(expert(x)) for i, expert in enumerate(self.experts))


def main(mesh):
    torch.manual_seed(0)
    model = Mixture()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, x in many_ranks.batches(14):
        loss = many_ranks.error(model, x)
        loss.backward()
        many_ranks.average_gradients(model.router.parameters())
        many_ranks.finish(step, loss, many_ranks.norm_of_gradients(model), optimizer)


many_ranks.run(main, dp=2)
