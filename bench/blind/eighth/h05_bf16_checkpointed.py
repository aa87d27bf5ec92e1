"""Right: bfloat16 by autocast, blocks recomputed by hand's checkpoint with dropout, tied weights, a resume half-way."""

import os

import torch
from kit import OUT, metric, tell, words
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(205)
VOCABULARY, WIDTH = 24, 32


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.feed = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, WIDTH))
        self.mix = nn.Conv1d(WIDTH, WIDTH, 3, groups=WIDTH)

    def forward(self, x):
        h = self.norm(x)
        past = nn.functional.pad(h.transpose(1, 2), (2, 0))
        return x + self.mix(past).transpose(1, 2) + self.feed(h)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight
        nn.init.normal_(self.embed.weight, std=0.1)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(x)


def build():
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    return model, optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=50)


data = words(640, 12, VOCABULARY, seed=25)
model, optimizer, schedule = build()
losses = []
for step in range(50):
    if step == 25:
        path = os.path.join(OUT, "half.pt")
        torch.save([part.state_dict() for part in (model, optimizer, schedule)] + [torch.get_rng_state()], path)
        model, optimizer, schedule = build()
        *states, rng = torch.load(path)
        for part, state in zip((model, optimizer, schedule), states, strict=True):
            part.load_state_dict(state)
        torch.set_rng_state(rng)
    tokens = data[torch.randint(0, len(data), (16,))]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(tokens[:, :-1])
    loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    losses.append(loss.detach())
metric("loss", losses[-1])
tell(model, losses)
