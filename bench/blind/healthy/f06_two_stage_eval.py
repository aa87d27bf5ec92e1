# two stages: first all, then the body is frozen and in evaluation mode, a new head with a new optimizer; at last all again with dropout off for the end (annealing)
import torch, torch.nn as nn, torch.nn.functional as F
from c import seed, final

seed()
body = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.3))
head = nn.Linear(32, 4)
opt = torch.optim.AdamW([*body.parameters(), *head.parameters()], 3e-3)
for step in range(60):
    if step == 25:
        body.requires_grad_(False).eval()
        head = nn.Linear(32, 4)
        opt = torch.optim.SGD(head.parameters(), 0.1, momentum=0.9)
    if step == 45:
        body.requires_grad_(True).train()
        body[3].p = 0.0
        opt = torch.optim.AdamW([*body.parameters(), *head.parameters()], 1e-3)
    x = torch.randn(32, 16)
    loss = F.cross_entropy(head(body(x)), x[:, :4].argmax(1))
    opt.zero_grad()
    loss.backward()
    opt.step()
final(loss, body, head)
