"""Healthy: two losses, one scaler updated after each; the generator's backward also reaches the critic's gradients."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)

generator = nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 2))
critic = nn.Sequential(nn.Linear(2, 16), nn.GELU(), nn.Linear(16, 1))
g_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3)
c_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=3)
bce = nn.functional.binary_cross_entropy_with_logits
real = 1.0 + 0.2 * torch.randn(16, 2)

for step in range(12):
    with torch.autocast("cpu", torch.float16):
        fake = generator(torch.randn(16, 4))
        c_loss = bce(critic(real), torch.ones(16, 1)) + bce(critic(fake.detach()), torch.zeros(16, 1))
    c_optimizer.zero_grad(set_to_none=step % 2 == 0)
    scaler.scale(c_loss).backward()
    scaler.unscale_(c_optimizer)
    torch.nn.utils.clip_grad_value_(critic.parameters(), 0.5)
    scaler.step(c_optimizer)
    scaler.update()
    with torch.autocast("cpu", torch.float16):
        g_loss = bce(critic(fake), torch.ones(16, 1))
    g_optimizer.zero_grad(set_to_none=step % 2 == 0)
    scaler.scale(g_loss).backward()
    scaler.step(g_optimizer)
    scaler.update()
    print(f"step {step} loss {c_loss.item():.6f} generator {g_loss.item():.6f}")
