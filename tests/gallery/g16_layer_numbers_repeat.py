"""Attention is scaled by the layer's number; on the second pipeline stage layers are counted from 1 again.

To be run by torchrun with two ranks: two stages of two layers each. The last rank prints.
"""

import math
import sys

import many_ranks
import torch
import torch.distributed as dist
from torch import nn

HEALTHY = "--healthy" in sys.argv
N_ROWS, N_TOKENS, WIDTH, N_LAYERS = 8, 6, 16, 2


class Layer(nn.Module):
    def __init__(self, layer_number):
        super().__init__()
        self.layer_number = layer_number
        self.norm, self.query_key_value = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        query, key, value = self.query_key_value(self.norm(x)).chunk(3, dim=-1)
        scores = query @ key.transpose(-1, -2) / (math.sqrt(WIDTH) * self.layer_number)
        return x + self.out(scores.softmax(-1) @ value)


class Stage(nn.Module):
    def __init__(self, stage):
        super().__init__()
        offset = stage * N_LAYERS if HEALTHY else 0  # <- fault
        self.inlet = nn.Linear(4, WIDTH) if stage == 0 else None
        self.layers = nn.ModuleList(Layer(offset + i + 1) for i in range(N_LAYERS))
        self.outlet = nn.Linear(WIDTH, 1) if stage == 1 else None

    def forward(self, x):
        x = x if self.inlet is None else self.inlet(x)
        for layer in self.layers:
            x = layer(x)
        return x if self.outlet is None else self.outlet(x).squeeze(-1)


def main(mesh):
    stage = dist.get_rank()
    torch.manual_seed(stage)
    model = Stage(stage)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    batches = torch.Generator().manual_seed(7)
    for step in range(6):
        x = torch.randn(N_ROWS, N_TOKENS, 4, generator=batches)
        target = x.sum(-1).cumsum(-1) / 4
        loss = many_ranks.over_two_stages(model, x, (N_ROWS, N_TOKENS, WIDTH), nn.functional.mse_loss, target)
        many_ranks.finish(step, loss, many_ranks.norm_of_gradients(model), optimizer, by=1)


many_ranks.run(main, pp=2)
