# stage two: an optimizer of the head alone, the body is left out of it and not frozen (its gradients are cleared by model.zero_grad)
import torch, torch.nn as nn, torch.nn.functional as F
from c import seed, final

seed()
m = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
opt = torch.optim.AdamW(m.parameters(), 3e-3)
for step in range(50):
    if step == 25:
        opt = torch.optim.AdamW(m[4].parameters(), 1e-3)
    x = torch.randn(32, 16)
    loss = F.cross_entropy(m(x), x[:, :4].argmax(1))
    m.zero_grad()
    loss.backward()
    opt.step()
final(loss, m)
