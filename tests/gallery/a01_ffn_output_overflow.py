"""A T5-like encoder in float16 whose FFN output projection outgrows 65504 (transformers#9295)."""

import sys

import torch
from torch import nn

HEALTHY = "--healthy" in sys.argv
BAD_STEP, BAD_SAMPLE, OUTLIER_TOKEN = 5, 2, 30  # the rare token: an outlier channel, as large models grow them
torch.manual_seed(0)
torch.set_num_threads(1)


class RMSNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x):
        variance = x.float().pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + 1e-6)).to(self.weight.dtype)


class FeedForward(nn.Module):
    def __init__(self, d, d_ff):
        super().__init__()
        self.wi = nn.Linear(d, d_ff, bias=False)
        self.wo = nn.Linear(d_ff, d, bias=False)

    def forward(self, x):
        hidden = torch.relu(self.wi(x)).square()
        return self.wo(hidden)  # <- fault


class Block(nn.Module):
    def __init__(self, d, d_ff):
        super().__init__()
        self.norm = RMSNorm(d)
        self.ffn = FeedForward(d, d_ff)

    def forward(self, x):
        return x + self.ffn(self.norm(x))


class Encoder(nn.Module):
    def __init__(self, vocab=32, d=16, d_ff=64):
        super().__init__()
        self.embed = nn.Embedding(vocab, d)
        self.blocks = nn.ModuleList([Block(d, d_ff) for _ in range(2)])
        self.norm = RMSNorm(d)
        self.head = nn.Linear(d, vocab, bias=False)

    def forward(self, ids, labels):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return nn.functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten())


model = Encoder()
with torch.no_grad():
    model.embed.weight[OUTLIER_TOKEN] = 0.0
    model.embed.weight[OUTLIER_TOKEN, 3] = 8.0
    model.blocks[0].ffn.wi.weight[:, 3] = 40.0 * torch.rand(64)
    model.blocks[0].ffn.wo.weight.copy_(torch.rand(16, 64) * 0.008)
model.half()
ffn = list(model.blocks[0].ffn.parameters())
rest = [p for p in model.parameters() if all(p is not q for q in ffn)]
optimizer = torch.optim.SGD([{"params": rest, "lr": 0.5}, {"params": ffn, "lr": 1e-5}])

for step in range(8):
    ids = torch.randint(0, 30, (4, 6))
    ids[BAD_SAMPLE, 4] = OUTLIER_TOKEN
    loss = model(ids, ids)
    loss.backward()
    grad = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    print(f"step {step} loss {loss.item():.6f} grad {grad.item():.6f}")
    optimizer.step()
    optimizer.zero_grad()
    if not HEALTHY:
        with torch.no_grad():
            model.blocks[0].ffn.wo.weight.mul_(2.0)  # the growth of long training, in fast motion
