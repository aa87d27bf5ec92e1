"""One attention's gradients outgrow the loss scale again and again, while all other layers would fit."""

import sys

import torch
from torch import nn

HEALTHY = "--healthy" in sys.argv
BAD_STEP = 12  # from here on the first half of the attention is sharpened, the second flattened by as much
torch.manual_seed(0)
torch.set_num_threads(1)


class Attention(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.qkv = nn.Linear(d, 3 * d)
        self.proj = nn.Linear(d, d)
        self.sharpness = 1.0

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = (q * self.sharpness) @ k.transpose(1, 2) / x.shape[1]
        mixed = scores @ (v / self.sharpness)  # <- fault
        return self.proj(mixed)


class Block(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(d), Attention(d)
        self.norm2, self.mlp = nn.LayerNorm(d), nn.Sequential(nn.Linear(d, 32), nn.GELU(), nn.Linear(32, d))

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Net(nn.Module):
    def __init__(self, d=16, k=4):
        super().__init__()
        self.embed = nn.Linear(8, d)
        self.blocks = nn.ModuleList([Block(d) for _ in range(3)])
        self.head = nn.Linear(d, k)

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)
centers = torch.randn(4, 8)

for step in range(34):
    if step >= BAD_STEP and not HEALTHY:
        model.blocks[1].attn.sharpness = 64.0 * 1.25 ** (step - BAD_STEP)
    labels = torch.arange(16) % 4
    inputs = centers[labels][:, None] + torch.randn(16, 6, 8)
    labels = torch.where(torch.rand(16) < 0.3, torch.randint(0, 4, (16,)), labels)  # data as they are
    with torch.autocast("cpu", torch.float16):
        logits = model(inputs)
        loss = nn.functional.cross_entropy(logits.float(), labels)
    scaler.scale(loss).backward()
    grad = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]) / scaler.get_scale()
    print(f"step {step} loss {loss.item():.6f} grad {grad.item():.6f} scale {scaler.get_scale():.0f}")
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
