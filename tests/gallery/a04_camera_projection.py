"""A camera projection in float16: far points become inf and are masked away in silence (BEVFormer)."""

import sys

import torch
from torch import nn

HEALTHY = "--healthy" in sys.argv
BAD_STEP, BAD_SAMPLE = 4, 1  # one scene of this batch looks 80 m ahead, all others 10 m
torch.manual_seed(0)
torch.set_num_threads(1)


class Camera(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("intrinsics", torch.tensor([[1266.0, 0, 800.0], [0, 1266.0, 450.0], [0, 0, 1.0]]))

    def forward(self, points):
        return points @ self.intrinsics.t()  # <- fault


class Visible(nn.Module):
    def forward(self, image):
        uv = torch.nan_to_num(image[..., :2] / image[..., 2:3])
        inside = ((uv >= 0) & (uv < torch.tensor([1600.0, 900.0], dtype=uv.dtype))).all(-1, keepdim=True)
        return torch.where(inside, uv / 1600.0, torch.zeros_like(uv)), inside


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.camera = Camera()
        self.visible = Visible()
        self.head = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, points):
        uv, inside = self.visible(self.camera(points))
        return (self.head(uv) * inside).mean(dim=1)


model = Detector().half()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for step in range(7):
    direction = torch.cat([0.4 * torch.rand(4, 32, 2) - 0.2, torch.ones(4, 32, 1)], dim=-1)
    depth = torch.full((4, 1, 1), 10.0)
    if step == BAD_STEP and not HEALTHY:
        depth[BAD_SAMPLE] = 80.0
    target = 2.0 + direction[..., :1].mean(dim=1)
    loss = nn.functional.mse_loss(model((direction * depth).half()).float(), target)
    loss.backward()
    grad = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    print(f"step {step} loss {loss.item():.6f} grad {grad.item():.6f}")
    optimizer.step()
    optimizer.zero_grad()
