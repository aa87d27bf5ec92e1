# fine-tuning: the classifier is replaced after the optimizer took its parameters
import torch, torch.nn as nn
from c import FAULT, seed, final

seed()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, 2, 1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
        )
        self.fc = nn.Linear(32, 100)

    def forward(self, x):
        return self.fc(self.body(x).mean((2, 3)))


model = Net()
if FAULT:
    opt = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)
    model.fc = nn.Linear(32, 5)
else:
    model.fc = nn.Linear(32, 5)
    opt = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)
g = torch.Generator().manual_seed(1)
for step in range(30):
    y = torch.randint(0, 5, (16,), generator=g)
    x = torch.randn(16, 3, 16, 16, generator=g) + y[:, None, None, None] * 0.3
    loss = nn.functional.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, loss.item())
final(loss, model)
