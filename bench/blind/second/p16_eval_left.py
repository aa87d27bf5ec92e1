# validation at step 10 leaves the model in eval mode
import torch, torch.nn as nn
from c import FAULT, seed, final

seed()
model = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1),
    nn.BatchNorm2d(16),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(4),
    nn.Flatten(),
    nn.Dropout(0.3),
    nn.Linear(256, 4),
)


def validate(g):
    model.eval()
    with torch.no_grad():
        x = torch.randn(32, 3, 12, 12, generator=g)
        out = model(x).mean().item()
    if not FAULT:
        model.train()
    return out


opt = torch.optim.AdamW(model.parameters(), 2e-3)
g = torch.Generator().manual_seed(1)
model.train()
for step in range(30):
    y = torch.randint(0, 4, (16,), generator=g)
    x = torch.randn(16, 3, 12, 12, generator=g) * 2 + y[:, None, None, None] + 3
    loss = nn.functional.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, loss.item())
    if step % 10 == 9:
        print("val", validate(g))
final(loss, model)
