# pruning masks by torch.nn.utils.prune in rounds, spectral norm, weights renormalised after each step
import torch, torch.nn as nn, torch.nn.functional as F, torch.nn.utils.prune as prune
from c import seed, final

seed()
m = nn.Sequential(
    nn.Linear(16, 64),
    nn.ReLU(),
    nn.utils.parametrizations.spectral_norm(nn.Linear(64, 32)),
    nn.ReLU(),
    nn.Linear(32, 4),
)
opt = torch.optim.SGD(m.parameters(), 0.1, momentum=0.9)
for step in range(60):
    if step in (15, 30, 45):
        prune.l1_unstructured(m[0], "weight", 0.3)
        opt = torch.optim.SGD(m.parameters(), 0.1, momentum=0.9)
    x = torch.randn(32, 16)
    loss = F.cross_entropy(m(x), x[:, :4].argmax(1))
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        m[4].weight.copy_(F.normalize(m[4].weight, dim=1))
final(loss, m)
