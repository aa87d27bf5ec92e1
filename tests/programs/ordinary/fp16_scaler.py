"""float16 autocast with a GradScaler on the CPU, gradients unscaled and clipped."""

import torch
from torch import nn

torch.manual_seed(10)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(12, 32)
        self.mid = nn.Linear(32, 32)
        self.head = nn.Linear(32, 3)

    def forward(self, x):
        x = torch.relu(self.stem(x))
        x = torch.relu(self.mid(x))  # plant: forward
        return self.head(x)


net = Net()
opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=4)
data, target = torch.randn(64, 12), torch.randint(0, 3, (64,))
for epoch in range(8):  # turn
    pick = torch.randperm(64)[:24]
    inputs = data[pick] * 0.7  # plant: data
    with torch.autocast(device_type="cpu", dtype=torch.float16):
        output = net(inputs)  # plant: output
        loss = nn.functional.cross_entropy(output, target[pick])  # plant: loss
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()
    opt.zero_grad()
    print(epoch, loss.item(), scaler.get_scale())
