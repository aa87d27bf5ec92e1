"""Mixed precision in bfloat16 on the CPU."""

import torch
from torch import nn


class Mixer(nn.Module):
    def __init__(self, tokens, d):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.tokens, self.channels = nn.Linear(tokens, tokens), nn.Linear(d, d)

    def forward(self, x):
        mixed = self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)  # plant: mixer
        x = x + mixed
        return x + nn.functional.gelu(self.channels(self.norm2(x)))


torch.manual_seed(9)
model = nn.Sequential(Mixer(6, 16), Mixer(6, 16), nn.Flatten(), nn.Linear(96, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
patches = torch.randn(64, 6, 16)
labels = torch.randint(0, 4, (64,))
for i in range(8):  # turn
    x = patches[(i % 4) * 16 : (i % 4 + 1) * 16] * 0.8  # plant: data
    t = labels[(i % 4) * 16 : (i % 4 + 1) * 16]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = model(x)  # plant: output
        loss = criterion(output, t)  # plant: loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    print(i, loss.item())
